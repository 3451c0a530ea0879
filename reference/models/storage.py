"""A model's layer as a cache stores it: in a cache dtype, on one of several ranks."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from kvconform.reference.interface import Refused
from kvconform.reference.modes import CACHE_DTYPES, families, pack, quant_mode
from kvconform.reference.specs import LATENT, AttentionSpec

A = TypeVar("A", bound=AttentionSpec)

DS_MLA_BYTES = 656
"""One state of fp8_ds_mla: 512 fp8, four float32 scales and 64 bfloat16 (FACTS section 10)."""

DS_MLA_HEAD_SIZE = 512 + 64
"""The only latent that the 656-byte layout holds."""

DEEPSEEK_V4_BYTES = 584
DEEPSEEK_V4_ALIGNMENT = 576
"""One state of fp8_ds_mla in the deepseek_v4 layout, and what its pages are multiples of."""


def store(spec: A, cache_dtype: str) -> A:
    """The spec with its contents in a cache dtype, for a spec whose ``dtype`` is the model's own.

    Fills in the mode, the element type and, where the mode stores more than K and V elements, the
    bytes of a state and the head slots. Raises `Refused` for an unknown cache dtype and for one
    that has no layout for the layer.
    """
    mode = quant_mode(cache_dtype)
    stored = replace(spec, dtype=CACHE_DTYPES[cache_dtype].dtype or spec.dtype, kv_quant_mode=mode)
    if isinstance(stored, LATENT):
        stored = replace(stored, cache_dtype_str=cache_dtype)
    if is_ds_mla(cache_dtype):
        return _store_ds_mla(stored)
    # Of the modes, only fp8 per tensor stores K and V elements alone, which dense content says.
    return pack(stored) if families(mode) else stored


def keep(spec: A, cache_dtype: str) -> A:
    """The spec of a side cache, which has its own format whatever the cache dtype.

    Only its alignment follows: pages of the deepseek_v4 layout and of its side caches are
    multiples of the same number of bytes, since they share tensors.
    """
    quant_mode(cache_dtype)
    if isinstance(spec, LATENT) and spec.alignment is not None and is_ds_mla(cache_dtype):
        return replace(spec, alignment=DEEPSEEK_V4_ALIGNMENT)
    return spec


def is_ds_mla(cache_dtype: str) -> bool:
    """Whether the cache dtype is the packed one of DeepSeek's latents."""
    return CACHE_DTYPES[cache_dtype].decoding == "ds_mla"


def kv_heads_per_rank(num_kv_heads: int, ranks: int) -> int:
    """KV heads that one tensor parallel rank caches: its share, or one that ranks repeat."""
    if ranks >= 1 and num_kv_heads % ranks == 0:
        return num_kv_heads // ranks
    if ranks >= 1 and ranks % num_kv_heads == 0:
        return 1
    raise Refused(f"{num_kv_heads} KV heads can neither be shared nor repeated by {ranks} ranks")


def _store_ds_mla(spec: A) -> A:
    if not isinstance(spec, LATENT):
        raise Refused(f"fp8_ds_mla stores latents, not {spec.kind}")
    if spec.model_version == "deepseek_v4":
        return replace(spec, state_content_bytes=DEEPSEEK_V4_BYTES, alignment=DEEPSEEK_V4_ALIGNMENT)
    if spec.head_size != DS_MLA_HEAD_SIZE:
        raise Refused(f"fp8_ds_mla stores latents of {DS_MLA_HEAD_SIZE} elements, not {spec.head_size}")
    return replace(spec, state_content_bytes=DS_MLA_BYTES)
