"""One spec that stands for all layers of a group (FACTS section 7)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kvconform.reference.interface import Refused
from kvconform.reference.specs import FullAttention, MLAAttention, Spec, field_names

_FULL = ("sliding_window", "attention_chunk_size", "non_causal")
_LATENT = (*_FULL, "non_causal_multi_token_decode")

RECONCILED: dict[str, tuple[str, ...]] = {
    "full_attention": _FULL,
    "rswa": _FULL,
    "sink_full_attention": _FULL,
    "mla_attention": _LATENT,
    "hidden_state_cache": _LATENT,
}
"""Fields in which the members of a merge may differ, by kind; every other must be equal."""


def merge(specs: Sequence[Spec]) -> Spec:
    """One spec for all layers of a group, or `Refused` with the first difference.

    All members are of one kind and equal in every field but those of `RECONCILED`: a window or
    chunk that only some record is the group's, two different ones are refused, and so is a window
    beside a chunk; a non-causal member makes the group non-causal.

    Where shipped releases forget fields (FACTS section 7, findings: ``sink_len``, and for
    sliding_window_mla the heads, head sizes, dtype, mode, padding and alignment), this follows the
    law merge/keeps-every-field: a difference is refused and what is equal is kept.
    """
    if not specs:
        raise Refused("nothing to merge")
    first = specs[0]
    kind = first.kind
    free = RECONCILED.get(kind, ())
    for other in specs[1:]:
        if other.kind != kind:
            raise Refused(f"a {other.kind} layer cannot be merged with a {kind} layer")
        for name in field_names(kind):
            if name not in free and getattr(other, name) != getattr(first, name):
                raise Refused(f"layers of one group differ in {name}")
    if not isinstance(first, FullAttention):
        return replace(first)
    full = [spec for spec in specs if isinstance(spec, FullAttention)]
    window = _agreed("sliding_window", [layer.sliding_window for layer in full])
    chunk = _agreed("attention_chunk_size", [layer.attention_chunk_size for layer in full])
    if window is not None and chunk is not None:
        raise Refused("a group records a window and a chunk at once")
    merged = replace(
        first,
        sliding_window=window,
        attention_chunk_size=chunk,
        non_causal=any(layer.non_causal for layer in full),
    )
    if not isinstance(merged, MLAAttention):
        return merged
    latent = [spec for spec in specs if isinstance(spec, MLAAttention)]
    flag = any(layer.non_causal_multi_token_decode for layer in latent)
    return replace(merged, non_causal_multi_token_decode=flag)


def _agreed(name: str, values: list[int | None]) -> int | None:
    agreed: int | None = None
    for value in values:
        if value is not None:
            if agreed is not None and value != agreed:
                raise Refused(f"layers of one group have different {name}: {agreed} and {value}")
            agreed = value
    return agreed
