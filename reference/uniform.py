"""Which layers may share one block table though they are not equal (FACTS section 8)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvconform.reference.interface import Refused
from kvconform.reference.specs import (
    ChunkedLocalAttention,
    Mamba,
    ReferenceSlidingWindow,
    SlidingWindow,
    Spec,
    UniformType,
)

BASES = {
    "full_attention": "full_attention",
    "mla_attention": "full_attention",
    "hidden_state_cache": "full_attention",
    "rswa": "full_attention",
    "sink_full_attention": "full_attention",
    "sliding_window": "sliding_window",
    "sliding_window_mla": "sliding_window_mla",
    "chunked_local_attention": "chunked_local_attention",
    "cross_attention": "cross_attention",
    "encoder_only_attention": "encoder_only_attention",
    "mamba": "mamba",
}
"""The base that each of the spec's own kinds is registered with."""


class Registry:
    """Every kind that may be planned, with its base: the spec's own, and those of third parties."""

    def __init__(self) -> None:
        self._bases = dict(BASES)

    def register_kv_cache_spec(self, kind: str, base: str) -> None:
        """Let specs of ``kind`` be planned, uniform with those of ``base``.

        Registering a kind again alike changes nothing. Raises `Refused` for another base, and for
        a base that is no base of the spec's own kinds.
        """
        if base not in BASES or BASES[base] != base:
            raise Refused(f"{base!r} is not a base kind")
        known = self._bases.get(kind, base)
        if known != base:
            raise Refused(f"kind {kind!r} is already registered with base {known!r}")
        self._bases[kind] = base

    def base_of(self, kind: str) -> str | None:
        """The base that the kind is registered with; None when nobody registered it."""
        return self._bases.get(kind)

    def refuse_unknown(self, layers: Mapping[str, Spec]) -> None:
        """Raise `Refused`, naming layer and kind, for the first layer whose kind nobody registered."""
        for name, spec in layers.items():
            if spec.kind not in self._bases:
                raise Refused(f"layer {name}: kind {spec.kind!r} is not registered")


def third_party(kind: str, base: type[Spec]) -> type[Spec]:
    """A third party's kind of spec: the fields of ``base`` under a name of its own.

    Asked again it gives the same class, so that equal specs are equal.
    """
    if (kind, base) not in _THIRD_PARTIES:
        doc = f"A third party's kind with the fields of {base.__name__}."
        _THIRD_PARTIES[kind, base] = type(kind, (base,), {"kind": kind, "__doc__": doc})
    return _THIRD_PARTIES[kind, base]


_THIRD_PARTIES: dict[tuple[str, type[Spec]], type[Spec]] = {}


def is_uniform_type(specs: Sequence[Spec], registry: Registry) -> bool:
    """Whether layers of these specs may share one block table as a uniform_type.

    They may when block size and base agree, and with them all that decides which blocks a request
    keeps. An answer for any set of specs: true of none, false where a kind is not registered.

    Stricter than FACTS section 8 where uniform/same-blocks-kept and uniform/symmetric ask for it:
    retained tokens, R-SWA windows and mamba cache modes must agree too, and the answer is not the
    first layer's.
    """
    if not specs:
        return True
    first = _demand(specs[0], registry)
    return first is not None and all(_demand(spec, registry) == first for spec in specs)


def uniform_type(layers: Mapping[str, Spec], registry: Registry) -> UniformType | None:
    """One spec for all layers behind one block table; None when they are not uniform, or none."""
    specs = list(layers.values())
    if not specs or not is_uniform_type(specs, registry):
        return None
    return UniformType(block_size=specs[0].block_size, kv_cache_specs=tuple(layers.items()))


def _demand(spec: Spec, registry: Registry) -> tuple[object, ...] | None:
    """What decides which blocks a layer keeps; None for a kind that nobody registered."""
    if isinstance(spec, UniformType):
        demands = {_demand(layer, registry) for layer in spec.layers()}
        return demands.pop() if len(demands) == 1 else None
    base = registry.base_of(spec.kind)
    if base is None:
        return None
    shared = (base, spec.block_size)
    if isinstance(spec, SlidingWindow):
        return (*shared, spec.sliding_window, spec.extra_retained_tokens)
    if isinstance(spec, ChunkedLocalAttention):
        return (*shared, spec.attention_chunk_size)
    if isinstance(spec, ReferenceSlidingWindow):
        return (*shared, "rswa", spec.rswa_window)
    if isinstance(spec, Mamba):
        return (*shared, spec.mamba_cache_mode, spec.num_speculative_blocks)
    return shared
