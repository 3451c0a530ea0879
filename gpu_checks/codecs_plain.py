"""Elements stored as they are, or as 8-bit floats under a scale kept outside the cache."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from kvconform.gpu_checks.codec import Bound, Codec, Side, largest_magnitude
from kvconform.gpu_checks.floats import (
    E4M3,
    E5M2,
    FLOAT32_LEAST_NORMAL,
    Fp8,
    bytes_of,
    decode_fp8,
    divided,
    encode_fp8,
    fp8_error,
    values_of,
)
from torch import Tensor


@dataclass(frozen=True)
class Plain(Side):
    """The elements' own bytes. Bound: 0, with infinities and every bit of a NaN kept."""

    dtype: torch.dtype

    def lengths(self, size: int) -> tuple[int, ...]:
        return (size * self.dtype.itemsize,)

    def encode(self, rows: Tensor) -> tuple[Tensor, ...]:
        return (bytes_of(rows),)

    def decode(self, parts: tuple[Tensor, ...], size: int) -> Tensor:  # noqa: ARG002
        return values_of(parts[0], self.dtype)

    def bound(self, rows: Tensor) -> Bound:
        return Bound.of_elements(torch.zeros_like(rows, dtype=torch.float64))


@dataclass(frozen=True)
class ScaledFp8(Side):
    """8-bit floats of x / scale; the float32 ``scale`` lives outside the cache.

    Bound: with p significant bits and least step d, scale x max(|x / scale| / 2^p, d / 2); what lies
    beyond the largest finite value, infinities among it, saturates to it with its sign. NaN stays
    NaN, element by element. ``calibrates`` off: the layout has no room for another scale than 1.
    """

    kind: Fp8
    scale: float = 1.0
    calibrates: bool = True

    def lengths(self, size: int) -> tuple[int, ...]:
        return (size,)

    def encode(self, rows: Tensor) -> tuple[Tensor, ...]:
        return (encode_fp8(divided(rows.to(torch.float64), self.scale), self.kind),)

    def decode(self, parts: tuple[Tensor, ...], size: int) -> Tensor:  # noqa: ARG002
        return decode_fp8(parts[0], self.kind) * self.scale

    def bound(self, rows: Tensor) -> Bound:
        return Bound.of_elements(self.scale * fp8_error(rows.to(torch.float64).abs() / self.scale, self.kind))

    def calibrated(self, rows: Tensor) -> Side:
        if not self.calibrates or rows.numel() == 0:
            return self
        finite = torch.where(rows.isfinite(), rows, 0).to(torch.float64)
        return replace(self, scale=outer_scale(finite, self.kind.largest))


def outer_scale(rows: Tensor, largest: float) -> float:
    """The float32 scale that takes the greatest magnitude of all rows to ``largest``."""
    wanted = divided(largest_magnitude(rows.flatten()), largest)
    return float(wanted.clamp(min=FLOAT32_LEAST_NORMAL).to(torch.float32).item())


def _plain(dtype: torch.dtype) -> Codec:
    name = str(dtype).removeprefix("torch.")
    side = Plain(dtype)
    return Codec(f"none_{name}", "NONE", side, side, latents=True, dtypes=(dtype,))


CODECS = (
    _plain(torch.float32),
    _plain(torch.float16),
    _plain(torch.bfloat16),
    Codec("fp8_e4m3", "FP8_PER_TENSOR", ScaledFp8(E4M3), ScaledFp8(E4M3), latents=True),
    Codec("fp8_e5m2", "FP8_PER_TENSOR", ScaledFp8(E5M2), ScaledFp8(E5M2), latents=True),
)
