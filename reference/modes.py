"""Quantisation modes and the bytes they store (FACTS section 10)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

from kvconform.reference.arithmetic import cdiv, round_up
from kvconform.reference.interface import Refused
from kvconform.reference.specs import DTYPE_BYTES, LATENT, AttentionSpec

A = TypeVar("A", bound=AttentionSpec)

MODES = {
    "NONE": 0,
    "FP8_PER_TENSOR": 1,
    "INT8_PER_TOKEN_HEAD": 2,
    "FP8_PER_TOKEN_HEAD": 3,
    "INT4_PER_TOKEN_HEAD": 4,
    "NVFP4": 5,
    "TURBOQUANT_K8V4": 6,
    "TURBOQUANT_4BIT_NC": 7,
    "TURBOQUANT_K3V4_NC": 8,
    "TURBOQUANT_3BIT_NC": 9,
}
"""Mode names and their values in the base revision. Names are the identity."""

FAMILIES = {
    "per_token_head": ("INT8_PER_TOKEN_HEAD", "FP8_PER_TOKEN_HEAD", "INT4_PER_TOKEN_HEAD"),
    "nvfp4": ("NVFP4",),
    "turboquant": (
        "TURBOQUANT_K8V4",
        "TURBOQUANT_4BIT_NC",
        "TURBOQUANT_K3V4_NC",
        "TURBOQUANT_3BIT_NC",
    ),
}

SCALE_BYTES = 4
"""One float32 scale."""


@dataclass(frozen=True)
class CacheFormat:
    """What one cache dtype string means.

    ``mode`` names the quantisation mode, ``dtype`` the element type of the cache (None: the
    model's own), and ``decoding`` the reader that the stored bytes need beyond both; strings with
    the same three are the same format.
    """

    mode: str
    dtype: str | None
    decoding: str = ""


CACHE_DTYPES = {
    "auto": CacheFormat("NONE", None),
    "float16": CacheFormat("NONE", "float16"),
    "bfloat16": CacheFormat("NONE", "bfloat16"),
    "fp8": CacheFormat("FP8_PER_TENSOR", "float8_e4m3fn", "e4m3"),
    "fp8_e4m3": CacheFormat("FP8_PER_TENSOR", "float8_e4m3fn", "e4m3"),
    "fp8_e5m2": CacheFormat("FP8_PER_TENSOR", "float8_e5m2", "e5m2"),
    "fp8_inc": CacheFormat("FP8_PER_TENSOR", "float8_e4m3fn", "e4m3"),
    "fp8_ds_mla": CacheFormat("FP8_PER_TENSOR", "uint8", "ds_mla"),
    "turboquant_k8v4": CacheFormat("TURBOQUANT_K8V4", "uint8"),
    "turboquant_4bit_nc": CacheFormat("TURBOQUANT_4BIT_NC", "uint8"),
    "turboquant_k3v4_nc": CacheFormat("TURBOQUANT_K3V4_NC", "uint8"),
    "turboquant_3bit_nc": CacheFormat("TURBOQUANT_3BIT_NC", "uint8"),
    "int4_per_token_head": CacheFormat("INT4_PER_TOKEN_HEAD", "uint8"),
    "int8_per_token_head": CacheFormat("INT8_PER_TOKEN_HEAD", "int8"),
    "fp8_per_token_head": CacheFormat("FP8_PER_TOKEN_HEAD", "float8_e4m3fn"),
    "nvfp4": CacheFormat("NVFP4", "uint8"),
    "nvfp4_4over6": CacheFormat("NVFP4", "uint8"),
}
"""Accepted cache dtype strings of the base revision (FACTS section 10).

Shipped releases store every fp8 cache as uint8, so that e4m3 and e5m2 bytes have one description
(law quant/formats-injective); here the element type tells them apart. nvfp4_4over6 chooses its
scales otherwise but is read like nvfp4.
"""

_TURBOQUANT_BITS = {
    "TURBOQUANT_4BIT_NC": (4, 4),
    "TURBOQUANT_K3V4_NC": (3, 4),
    "TURBOQUANT_3BIT_NC": (3, 3),
}


def families(mode: str) -> tuple[str, ...]:
    """The families that a mode belongs to."""
    return tuple(name for name, members in FAMILIES.items() if mode in members)


def quant_mode(cache_dtype: str) -> str:
    """The mode that a cache dtype string means.

    Raises `Refused` for an unknown string: taking it as unquantised would misread the cache.
    """
    if cache_dtype not in CACHE_DTYPES:
        raise Refused(f"unknown cache dtype {cache_dtype!r}")
    return CACHE_DTYPES[cache_dtype].mode


def stored_bytes(spec: AttentionSpec) -> int:
    """Bytes stored for one state of one KV head in the spec's mode, K and V together.

    Source: the table of FACTS section 10. Raises `Refused` for a head size that the mode cannot
    pack without losing elements, and for a mode that has no latent (MLA) layout.
    """
    k = spec.head_size
    v = spec.value_head_size
    mode = spec.kv_quant_mode
    if isinstance(spec, LATENT):
        return _stored_latent_bytes(spec.dtype, mode, k + v)
    if mode == "NONE":
        return (k + v) * DTYPE_BYTES[spec.dtype]
    if mode == "FP8_PER_TENSOR":
        return k + v
    if mode in ("INT8_PER_TOKEN_HEAD", "FP8_PER_TOKEN_HEAD"):
        return k + v + 2 * SCALE_BYTES
    if mode == "INT4_PER_TOKEN_HEAD":
        if k % 2 != 0 or v % 2 != 0:
            raise Refused(f"an odd head size would lose a nibble (K {k}, V {v})")
        return k // 2 + v // 2 + 2 * SCALE_BYTES
    if mode == "NVFP4":
        if k != v or k % 16 != 0:
            raise Refused(f"nvfp4 needs equal K and V heads of a multiple of 16 (K {k}, V {v})")
        return 2 * (k // 2 + k // 16)
    if mode == "TURBOQUANT_K8V4":
        return round_up(k + cdiv(4 * v, 8) + 4, 2)
    if mode in _TURBOQUANT_BITS:
        key_bits, value_bits = _TURBOQUANT_BITS[mode]
        return round_up(cdiv(key_bits * k, 8) + 2 + cdiv(value_bits * v, 8) + 4, 2)
    raise Refused(f"unknown quantisation mode {mode!r}")


def pack(spec: A) -> A:
    """The spec with the head slots and content that its mode packs, as a backend publishes them.

    Unquantised specs, and those whose content is published already, stay as they are. Raises
    `Refused` where `stored_bytes` does.
    """
    if spec.kv_quant_mode == "NONE" or spec.state_content_bytes is not None:
        return spec
    stored = stored_bytes(spec)
    if spec.kv_quant_mode in FAMILIES["nvfp4"]:
        return replace(spec, num_head_slots=packed_head_slots(spec), state_content_bytes=stored // 2)
    return replace(spec, state_content_bytes=stored)


def packed_head_slots(spec: AttentionSpec) -> int:
    """Head slots of a page that its mode packs: nvfp4 keeps K and V in slots of their own."""
    return spec.num_kv_heads * (2 if spec.kv_quant_mode in FAMILIES["nvfp4"] else 1)


def _stored_latent_bytes(dtype: str, mode: str, latent: int) -> int:
    if mode == "NONE":
        return latent * DTYPE_BYTES[dtype]
    if mode == "FP8_PER_TENSOR":
        return latent
    if mode in ("INT8_PER_TOKEN_HEAD", "FP8_PER_TOKEN_HEAD"):
        return latent + 2 * SCALE_BYTES
    if mode == "INT4_PER_TOKEN_HEAD":
        if latent % 2 != 0:
            raise Refused(f"an odd latent would lose a nibble ({latent})")
        return latent // 2 + 2 * SCALE_BYTES
    raise Refused(f"mode {mode} has no layout for a latent")


def element_bits(spec: AttentionSpec) -> int:
    """Bits of the K and V elements of one (KV head, state), without any scale or rounding."""
    k = spec.head_size
    v = spec.value_head_size
    mode = spec.kv_quant_mode
    if mode == "NONE":
        return (k + v) * 8 * DTYPE_BYTES[spec.dtype]
    if mode in ("FP8_PER_TENSOR", "INT8_PER_TOKEN_HEAD", "FP8_PER_TOKEN_HEAD"):
        return (k + v) * 8
    if mode in ("INT4_PER_TOKEN_HEAD", "NVFP4"):
        return (k + v) * 4
    if mode == "TURBOQUANT_K8V4":
        return k * 8 + v * 4
    if mode in _TURBOQUANT_BITS:
        key_bits, value_bits = _TURBOQUANT_BITS[mode]
        return k * key_bits + v * value_bits
    raise Refused(f"unknown quantisation mode {mode!r}")


def scale_bits(spec: AttentionSpec) -> int:
    """Bits of the scales, norms and zero points that one (KV head, state) must store.

    Per token-head: one float32 for K and one for V, the 4-bit zero point riding in it. nvfp4: one
    byte per 16 elements. turboquant: float16 scale and zero of V, and of K its float16 norm where
    the keys are not fp8.
    """
    mode = spec.kv_quant_mode
    if mode in FAMILIES["per_token_head"]:
        sides = 1 if spec.value_head_size == 0 else 2
        return sides * 8 * SCALE_BYTES
    if mode == "NVFP4":
        return (cdiv(spec.head_size, 16) + cdiv(spec.value_head_size, 16)) * 8
    if mode == "TURBOQUANT_K8V4":
        return 32
    if mode in _TURBOQUANT_BITS:
        return 16 + 32
    return 0


def payload_bits(spec: AttentionSpec) -> int:
    """Least bits that any layout of the mode must hold for one (KV head, state)."""
    return element_bits(spec) + scale_bits(spec)
