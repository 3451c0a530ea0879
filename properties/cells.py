"""The (KV head, state) cells whose stored bytes are compared: every mode, head size and element type.

A cell is a spec. The list is one for all who are asked: the codecs of `kvconform.gpu_checks`, the
reference's table, and an implementation under test.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from kvconform.properties.drawn import STORAGE_DTYPE
from kvconform.reference.modes import MODES
from kvconform.reference.specs import AttentionSpec, FullAttention, MLAAttention

HEAD_SIZES = range(16, 577)
"""Elements of one K head; those that a mode must refuse among them."""

UNLIKE = ((192, 128), (128, 192), (64, 0), (17, 48), (48, 17), (576, 16))
"""K and V heads of different sizes."""

PLAIN_DTYPES = ("float32", "float16", "bfloat16")
"""Element types of an unquantised cache."""

BEYOND = ("ULTRAQUANT_4BIT",)
"""Modes of newer releases that the reference's table lacks and a codec packs."""

UNASKABLE = dict.fromkeys(
    ("OCTAVE_K3V4", "OCTAVE_K3V3", "OCTAVE_K3V3_COMPACT"),
    "Octave's stored bytes follow from a model's rotary part, which no spec carries",
)
"""Modes that a codec packs and whose cells nothing can be asked of, and why."""

HEADS, BLOCK = 3, 64
"""KV heads of a layer that has K and V, and tokens in a block, where pages are compared."""


def cell(mode: str, key: int, value: int | None, dtype: str = "") -> AttentionSpec:
    """The spec of a layer that stores such cells.

    ``key`` and ``value`` are elements of a K and of a V head, None: a latent. ``dtype`` is the
    element type of an unquantised cache; quantised ones have their mode's.
    """
    element = dtype if mode == "NONE" else STORAGE_DTYPE.get(mode, "uint8")
    if value is None:
        return MLAAttention(
            block_size=BLOCK, num_kv_heads=1, head_size=key, dtype=element, kv_quant_mode=mode
        )
    return FullAttention(
        block_size=BLOCK,
        num_kv_heads=HEADS,
        head_size=key,
        head_size_v=value,
        dtype=element,
        kv_quant_mode=mode,
    )


_DS_MLA = MLAAttention(
    block_size=BLOCK,
    num_kv_heads=1,
    head_size=576,
    dtype="uint8",
    kv_quant_mode="FP8_PER_TENSOR",
    cache_dtype_str="fp8_ds_mla",
)

DS_MLA = {
    "fp8_ds_mla": _DS_MLA,
    "fp8_ds_mla_deepseek_v4": replace(_DS_MLA, head_size=512, model_version="deepseek_v4"),
}
"""The two layouts of a DeepSeek latent, by the name of the codec."""


def shapes() -> Iterator[tuple[int, int | None]]:
    """(K, V) elements of every cell of a mode; V None: a latent."""
    for size in HEAD_SIZES:
        yield size, size
        yield size, None
    yield from UNLIKE


def cells() -> Iterator[AttentionSpec]:
    """Every cell."""
    for mode in (*MODES, *BEYOND):
        for dtype in PLAIN_DTYPES if mode == "NONE" else ("",):
            for key, value in shapes():
                yield cell(mode, key, value, dtype)
    yield from DS_MLA.values()


def name_of(spec: AttentionSpec) -> str:
    """A name of its own for each cell."""
    layout = f"{spec.cache_dtype_str} {spec.model_version}" if isinstance(spec, MLAAttention) else "-"
    return f"{spec.kind} {layout} {spec.kv_quant_mode} {spec.dtype} {spec.head_size} {spec.head_size_v}"
