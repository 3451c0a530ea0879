"""One float32 scale for each head of each token: int8, fp8 and rotated int4.

Every scale is at least the least normal float32, so no division is by zero and rows of zeros or
denormals need no case of their own. Of a latent the second scale stands unused.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from kvconform.gpu_checks.codec import Bound, Codec, RowScaled, extent, finite_or_zero, largest_magnitude
from kvconform.gpu_checks.floats import (
    E4M3,
    FLOAT32_LARGEST,
    FLOAT32_LEAST_NORMAL,
    Fp8,
    bytes_of,
    decode_fp8,
    divided,
    encode_fp8,
    to_float32,
    values_of,
)
from kvconform.gpu_checks.packing import pack_bits, unpack_bits
from kvconform.gpu_checks.rotation import rotate, unrotate
from kvconform.reference.interface import Refused
from torch import Tensor

INT8_LARGEST = 127
INT4_LARGEST = 15
_ZERO_POINT_BITS = 0xF


def row_scale(rows: Tensor, largest: float) -> Tensor:
    """The float32 scale ``[n, 1]`` that takes a row's greatest magnitude to ``largest``."""
    return to_float32(divided(largest_magnitude(rows), largest).clamp(min=FLOAT32_LEAST_NORMAL))


def nearest_code(steps: Tensor, least: int, greatest: int) -> Tensor:
    """The whole number nearest to each value, clamped to least..greatest."""
    return steps.round().clamp(least, greatest)


class SymmetricInt8(RowScaled):
    """Codes -127..127 times a scale of the row's greatest magnitude / 127.

    Bound: half a step. The scale s is a float32, so 127 s may fall short of the greatest magnitude
    m by m / 2^24, far less than half a step: every element lies within 127.5 s and its nearest
    code is in range. So |error| <= s / 2 with s <= max(m / 127, 2^-126) x (1 + 2^-23).
    """

    def lengths(self, size: int) -> tuple[int, ...]:
        return size, 4

    def encode(self, rows: Tensor) -> tuple[Tensor, ...]:
        values, finite = finite_or_zero(rows)
        scale = row_scale(values, INT8_LARGEST)
        codes = nearest_code(values / scale.to(torch.float64), -INT8_LARGEST, INT8_LARGEST)
        return bytes_of(codes.to(torch.int8)), bytes_of(scale.masked_fill(~finite, float("nan")))

    def decode(self, parts: tuple[Tensor, ...], size: int) -> Tensor:  # noqa: ARG002
        codes, scale = parts
        return values_of(codes, torch.int8) * values_of(scale, torch.float32)

    def bound(self, rows: Tensor) -> Bound:
        step = (largest_magnitude(rows.to(torch.float64)) / INT8_LARGEST).clamp(min=FLOAT32_LEAST_NORMAL)
        return Bound.of_elements((step / 2 * (1 + 2.0**-20)).expand(rows.shape))


@dataclass(frozen=True)
class RowScaledFp8(RowScaled):
    """8-bit floats times a scale of the row's greatest magnitude / the largest 8-bit float.

    Bound: that of the 8-bit float, max(|x| / 2^p, s x least step / 2), with the scale
    s <= max(m / largest, 2^-126) x (1 + 2^-23).
    """

    kind: Fp8

    def lengths(self, size: int) -> tuple[int, ...]:
        return size, 4

    def encode(self, rows: Tensor) -> tuple[Tensor, ...]:
        values, finite = finite_or_zero(rows)
        scale = row_scale(values, self.kind.largest)
        codes = encode_fp8(values / scale.to(torch.float64), self.kind)
        return codes, bytes_of(scale.masked_fill(~finite, float("nan")))

    def decode(self, parts: tuple[Tensor, ...], size: int) -> Tensor:  # noqa: ARG002
        codes, scale = parts
        return decode_fp8(codes, self.kind) * values_of(scale, torch.float32)

    def bound(self, rows: Tensor) -> Bound:
        values = rows.to(torch.float64).abs()
        scale = (largest_magnitude(values) / self.kind.largest).clamp(min=FLOAT32_LEAST_NORMAL)
        least = scale * self.kind.least_step / 2
        return Bound.of_elements(torch.maximum(values * 2.0**-self.kind.precision, least) * (1 + 2.0**-18))


class RotatedInt4(RowScaled):
    """Codes 0..15 of the rotated row, asymmetric; the zero point rides in the scale.

    The row's range, 0 included, is lo..hi. Scale s = (hi - lo) / 15 rounded up to a float32 whose
    low 4 mantissa bits are 0, which then hold the zero point z = round(-lo / s); a reader masks
    them off. In steps the row spans lo/s + z >= -1/2 to hi/s + z <= 15.5, so clamping to 0..15
    moves nothing by more than rounding may.

    Bound, in the rotated domain: |error| <= s / 2, with s <= (hi - lo) / 15 x (1 + 2^-18) and at
    least 2^-126. A rotated row can span more than 15 times the largest float32; then s saturates
    and hi - lo - 15 s is added. Rotating back keeps lengths, so a row of n is off by at most
    sqrt(n) x s / 2 in all.
    """

    def refuse(self, size: int) -> None:
        if size % 2 != 0:
            raise Refused(f"an odd head size would lose a nibble ({size})")

    def lengths(self, size: int) -> tuple[int, ...]:
        return size // 2, 4

    def encode(self, rows: Tensor) -> tuple[Tensor, ...]:
        values, finite = finite_or_zero(rows)
        rotated = rotate(values)
        low, high = _range_with_zero(rotated)
        scale = _scale_bits(divided(high - low, INT4_LARGEST))
        step = scale.view(torch.float32).to(torch.float64)
        zero_point = nearest_code(-low / step, 0, INT4_LARGEST)
        codes = (rotated / step).round().add(zero_point).clamp(0, INT4_LARGEST)
        carried = (scale | zero_point.to(torch.int32)).view(torch.float32)
        packed = pack_bits(codes.to(torch.uint8), 4)
        return packed, bytes_of(carried.masked_fill(~finite, float("nan")))

    def decode(self, parts: tuple[Tensor, ...], size: int) -> Tensor:
        packed, carried = parts
        bits = carried.clone(memory_format=torch.contiguous_format).view(torch.int32)
        zero_point = (bits & _ZERO_POINT_BITS).to(torch.float64)
        step = (bits & ~_ZERO_POINT_BITS).view(torch.float32).to(torch.float64)
        return unrotate((unpack_bits(packed, 4, size).to(torch.float64) - zero_point) * step)

    def bound(self, rows: Tensor) -> Bound:
        low, high = _range_with_zero(rotate(rows.to(torch.float64)))
        step = ((high - low) / INT4_LARGEST * (1 + 2.0**-18)).clamp(FLOAT32_LEAST_NORMAL, FLOAT32_LARGEST)
        beyond = (high - low - INT4_LARGEST * FLOAT32_LARGEST * (1 - 2.0**-19)).clamp(min=0)
        element = step / 2 * (1 + 2.0**-20) + beyond
        return Bound.of_elements(element.expand(rows.shape), rotated=True)


def _range_with_zero(rows: Tensor) -> tuple[Tensor, Tensor]:
    low, high = extent(rows)
    return low.clamp(max=0), high.clamp(min=0)


def _scale_bits(wanted: Tensor) -> Tensor:
    """Bits of the least float32 >= wanted whose low 4 mantissa bits are 0, saturating."""
    bits = to_float32(wanted.clamp(min=FLOAT32_LEAST_NORMAL)).view(torch.int32)
    # The conversion rounds to nearest, so one step up makes sure of a float32 that covers.
    raised = (bits.to(torch.int64) + 1 + _ZERO_POINT_BITS) & ~_ZERO_POINT_BITS
    exact = (bits & _ZERO_POINT_BITS) == 0
    covers = bits.view(torch.float32).to(torch.float64) >= wanted
    chosen = torch.where(exact & covers, bits.to(torch.int64), raised)
    largest = torch.tensor(FLOAT32_LARGEST, dtype=torch.float32).view(torch.int32).item()
    return chosen.clamp(max=int(largest) & ~_ZERO_POINT_BITS).to(torch.int32)


CODECS = (
    Codec("int8_per_token_head", "INT8_PER_TOKEN_HEAD", SymmetricInt8(), SymmetricInt8(), latents=True),
    Codec("fp8_per_token_head", "FP8_PER_TOKEN_HEAD", RowScaledFp8(E4M3), RowScaledFp8(E4M3), latents=True),
    Codec("int4_per_token_head", "INT4_PER_TOKEN_HEAD", RotatedInt4(), RotatedInt4(), latents=True),
)
