"""The spec kinds of FACTS section 2, one frozen value per layer or group.

Token counts are in tokens, sizes in bytes, data types and quantisation modes are names.
A spec may hold nonsense: what is refused, and when, is said by the operation that reads it.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields
from typing import Any, ClassVar

DTYPE_BYTES = {
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int8": 1,
    "uint8": 1,
}
"""Bytes of one element (FACTS section 3)."""


@dataclass(frozen=True, kw_only=True)
class Spec:
    """What every kind has: ``block_size``, the tokens in one block (> 0)."""

    kind: ClassVar[str] = ""
    block_size: int


@dataclass(frozen=True, kw_only=True)
class AttentionSpec(Spec):
    """Fields of every attention kind.

    ``head_size_v`` None means ``head_size``. ``page_size_padded`` is the page asked for, in bytes.
    ``num_head_slots`` None means one slot per KV head; ``state_content_bytes`` None means dense
    K and V. ``indexes_kv_by_block_stride``: the backend reads padded pages through a stride.
    """

    num_kv_heads: int
    head_size: int
    dtype: str
    head_size_v: int | None = None
    kv_quant_mode: str = "NONE"
    page_size_padded: int | None = None
    indexes_kv_by_block_stride: bool = False
    num_head_slots: int | None = None
    state_content_bytes: int | None = None

    @property
    def value_head_size(self) -> int:
        """Elements of one V head: ``head_size_v``, or ``head_size`` where that is None."""
        return self.head_size if self.head_size_v is None else self.head_size_v


@dataclass(frozen=True, kw_only=True)
class FullAttention(AttentionSpec):
    """Keeps every token. A window or chunk is only recorded here and frees nothing."""

    kind: ClassVar[str] = "full_attention"
    sliding_window: int | None = None
    attention_chunk_size: int | None = None
    non_causal: bool = False


@dataclass(frozen=True, kw_only=True)
class SlidingWindow(AttentionSpec):
    """Keeps the last ``sliding_window`` tokens and ``extra_retained_tokens`` below them."""

    kind: ClassVar[str] = "sliding_window"
    sliding_window: int
    extra_retained_tokens: int = 0


@dataclass(frozen=True, kw_only=True)
class SlidingWindowMLA(SlidingWindow):
    """A sliding window over one latent per state: no separate V.

    ``alignment`` (bytes) makes the page the least multiple that covers it; ``compress_ratio``
    tokens share one stored state.
    """

    kind: ClassVar[str] = "sliding_window_mla"
    head_size_v: int | None = 0
    cache_dtype_str: str | None = None
    alignment: int | None = None
    compress_ratio: int = 1
    model_version: str | None = None


@dataclass(frozen=True, kw_only=True)
class ChunkedLocalAttention(AttentionSpec):
    """Keeps the tokens of the current chunk of ``attention_chunk_size`` tokens."""

    kind: ClassVar[str] = "chunked_local_attention"
    attention_chunk_size: int


@dataclass(frozen=True, kw_only=True)
class MLAAttention(FullAttention):
    """Keeps every token as one latent per state: no separate V. See `SlidingWindowMLA`."""

    kind: ClassVar[str] = "mla_attention"
    head_size_v: int | None = 0
    cache_dtype_str: str | None = None
    alignment: int | None = None
    compress_ratio: int = 1
    model_version: str | None = None
    non_causal_multi_token_decode: bool = False


@dataclass(frozen=True, kw_only=True)
class HiddenStateCache(MLAAttention):
    """A marker: an mla_attention in all sizes."""

    kind: ClassVar[str] = "hidden_state_cache"


@dataclass(frozen=True, kw_only=True)
class ReferenceSlidingWindow(FullAttention):
    """Keeps the prompt and the last ``rswa_window`` generated tokens."""

    kind: ClassVar[str] = "rswa"
    rswa_window: int


@dataclass(frozen=True, kw_only=True)
class SinkFullAttention(FullAttention):
    """Full attention with ``sink_len`` sink tokens kept outside any request's table."""

    kind: ClassVar[str] = "sink_full_attention"
    sink_len: int | None = None


@dataclass(frozen=True, kw_only=True)
class CrossAttention(AttentionSpec):
    """Caches encoder states."""

    kind: ClassVar[str] = "cross_attention"


@dataclass(frozen=True, kw_only=True)
class EncoderOnlyAttention(AttentionSpec):
    """Needs no KV cache."""

    kind: ClassVar[str] = "encoder_only_attention"


@dataclass(frozen=True, kw_only=True)
class Mamba(Spec):
    """Recurrent state: one array per (shape, dtype) pair, whatever the block size.

    ``mamba_cache_mode`` is none, align or all; ``num_speculative_blocks`` are added to each
    request's blocks.
    """

    kind: ClassVar[str] = "mamba"
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    page_size_padded: int | None = None
    mamba_type: str = "mamba2"
    mamba_cache_mode: str = "none"
    num_speculative_blocks: int = 0


@dataclass(frozen=True, kw_only=True)
class UniformType(Spec):
    """Several layers behind one block table: pairs of (layer name, spec) in layer order."""

    kind: ClassVar[str] = "uniform_type"
    kv_cache_specs: tuple[tuple[str, Spec], ...]

    def layers(self) -> tuple[Spec, ...]:
        """The layers' specs, in order."""
        return tuple(spec for _, spec in self.kv_cache_specs)


LATENT = (SlidingWindowMLA, MLAAttention)
"""Kinds that store one latent per state; `HiddenStateCache` is an `MLAAttention`."""

KINDS: dict[str, type[Spec]] = {
    spec_class.kind: spec_class
    for spec_class in (
        FullAttention,
        SlidingWindow,
        SlidingWindowMLA,
        ChunkedLocalAttention,
        MLAAttention,
        HiddenStateCache,
        ReferenceSlidingWindow,
        SinkFullAttention,
        CrossAttention,
        EncoderOnlyAttention,
        Mamba,
        UniformType,
    )
}
"""Every kind by its name."""

ATTENTION_KINDS = tuple(name for name, spec_class in KINDS.items() if issubclass(spec_class, AttentionSpec))
LATENT_KINDS = tuple(name for name, spec_class in KINDS.items() if issubclass(spec_class, LATENT))
FULL_KINDS = tuple(name for name, spec_class in KINDS.items() if issubclass(spec_class, FullAttention))
WINDOW_KINDS = tuple(name for name, spec_class in KINDS.items() if issubclass(spec_class, SlidingWindow))


def make(kind: str, **values: Any) -> Any:
    """A spec of the kind named, for callers that know its fields only by name."""
    return KINDS[kind](**values)


def field_names(kind: str) -> tuple[str, ...]:
    """The fields of a kind, in declaration order."""
    return tuple(field.name for field in fields(KINDS[kind]))


def defaults(kind: str) -> dict[str, Any]:
    """The fields of a kind that have a default, with it."""
    return {f.name: f.default for f in fields(KINDS[kind]) if f.default is not MISSING}
