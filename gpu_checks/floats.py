"""Narrow floating-point formats as bytes, the same on every device.

Arithmetic is in float64 throughout: every float32, denormals included, is a normal float64, and its
elementary operations are correctly rounded on CPU and CUDA alike. Sums are folded in a fixed order,
because a device's own reduction may add in another.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

FLOAT32_LARGEST = torch.finfo(torch.float32).max
FLOAT32_LEAST_NORMAL = torch.finfo(torch.float32).tiny
BFLOAT16_LARGEST = torch.finfo(torch.bfloat16).max
FLOAT16_LARGEST = 65504.0
FLOAT16_LEAST = 2.0**-24
UE8M0_BIAS = 127
UE8M0_NAN = 255


@dataclass(frozen=True)
class Fp8:
    """An 8-bit float: ``largest`` finite value, ``precision`` in significant bits, least step.

    ``nan`` is the byte that stands for NaN here (formats have several).
    """

    dtype: torch.dtype
    largest: float
    precision: int
    least_step: float
    nan: int


E4M3 = Fp8(torch.float8_e4m3fn, 448.0, 4, 2.0**-9, 0x7F)
E5M2 = Fp8(torch.float8_e5m2, 57344.0, 3, 2.0**-16, 0x7F)

E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Magnitudes of the eight positive e2m1 codes; bit 3 is the sign."""
E2M1_LARGEST = 6.0

# Where a magnitude passes from one e2m1 code to the next; a tie goes to the even code.
_E2M1_EDGES = (
    (0.25, False),
    (0.75, True),
    (1.25, False),
    (1.75, True),
    (2.5, False),
    (3.5, True),
    (5.0, False),
)


def bytes_of(values: Tensor) -> Tensor:
    """The bytes of ``values`` ``[.., n]`` as uint8 ``[.., n x itemsize]``, in memory order."""
    return values.contiguous().view(torch.uint8) if values.shape[-1] else values.to(torch.uint8)


def values_of(stored: Tensor, dtype: torch.dtype) -> Tensor:
    """The values of ``dtype`` in bytes ``[.., n x itemsize]``, widened to float64 ``[.., n]``."""
    if stored.shape[-1] == 0:
        return stored.to(torch.float64)
    # A copy, because a slice of a row need not be aligned for the type.
    return stored.clone(memory_format=torch.contiguous_format).view(dtype).to(torch.float32).to(torch.float64)


def encode_fp8(values: Tensor, kind: Fp8) -> Tensor:
    """Bytes of the nearest 8-bit floats; beyond the largest finite one saturates, NaN stays NaN."""
    clamped = values.clamp(-kind.largest, kind.largest).to(torch.float32)
    return clamped.to(kind.dtype).view(torch.uint8).masked_fill(values.isnan(), kind.nan)


def decode_fp8(stored: Tensor, kind: Fp8) -> Tensor:
    """The float64 values of 8-bit floats."""
    return values_of(stored, kind.dtype)


def fp8_error(magnitudes: Tensor, kind: Fp8) -> Tensor:
    """Most that `encode_fp8` moves a value of this magnitude (float64, >= 0).

    With p significant bits a normal value moves by at most 2^-p of itself and a denormal by half a
    least step; what lies beyond the largest value is lost. The factor covers the passage through
    float32.
    """
    relative = magnitudes.clamp(max=kind.largest) * 2.0**-kind.precision
    rounding = relative.clamp(min=kind.least_step / 2)
    return rounding * (1 + 2.0**-18) + (magnitudes - kind.largest).clamp(min=0)


def encode_e2m1(values: Tensor) -> Tensor:
    """Codes 0..15 of the nearest e2m1 values (uint8); beyond +-6 saturates. NaN is not for it."""
    magnitudes = values.abs()
    codes = torch.zeros_like(values, dtype=torch.uint8)
    for edge, up_at_tie in _E2M1_EDGES:
        codes += (magnitudes >= edge) if up_at_tie else (magnitudes > edge)
    return codes | (torch.signbit(values).to(torch.uint8) << 3)


def decode_e2m1(codes: Tensor) -> Tensor:
    """The float64 values of e2m1 codes."""
    table = torch.tensor(
        E2M1_VALUES + tuple(-value for value in E2M1_VALUES), dtype=torch.float64, device=codes.device
    )
    return table[codes.long()]


def e2m1_error(magnitudes: Tensor) -> Tensor:
    """Most that `encode_e2m1` moves a value of this magnitude: half the gap that it lies in.

    Gaps are 0.5 up to 2, 1 up to 4 and 2 up to 6; what lies beyond 6 is lost.
    """
    half_gap = torch.full_like(magnitudes, 0.25)
    half_gap = torch.where(magnitudes > 2, 0.5, half_gap)
    half_gap = torch.where(magnitudes > 4, 1.0, half_gap)
    return torch.where(magnitudes > E2M1_LARGEST, magnitudes - E2M1_LARGEST, half_gap)


def encode_ue8m0(values: Tensor) -> Tensor:
    """Bytes of the least powers of two >= the values (> 0); NaN for NaN and infinities.

    The byte is the exponent with bias 127; powers outside 2^-127..2^127 saturate.
    """
    fraction, exponent = torch.frexp(torch.where(values.isfinite(), values, 1.0))
    exponent = exponent.to(torch.int64) - (fraction == 0.5).to(torch.int64)
    stored = (exponent + UE8M0_BIAS).clamp(0, UE8M0_NAN - 1)
    return stored.masked_fill(~values.isfinite(), UE8M0_NAN).to(torch.uint8)


def decode_ue8m0(stored: Tensor) -> Tensor:
    """The float64 powers of two that the bytes stand for."""
    # Built from their bits: pow is not exact on every device.
    powers = ((stored.to(torch.int64) - UE8M0_BIAS + 1023) << 52).view(torch.float64)
    return powers.masked_fill(stored == UE8M0_NAN, float("nan"))


def to_float16(values: Tensor) -> Tensor:
    """Nearest float16, saturating; NaN stays NaN."""
    return _canonical(values.clamp(-FLOAT16_LARGEST, FLOAT16_LARGEST).to(torch.float32).to(torch.float16))


def to_float16_up(values: Tensor) -> Tensor:
    """Least float16 >= each value; saturates at the largest finite."""
    nearest = to_float16(values)
    return _stepped(nearest, nearest.to(torch.float64) < values.clamp(-FLOAT16_LARGEST, FLOAT16_LARGEST), 1)


def to_float16_down(values: Tensor) -> Tensor:
    """Greatest float16 <= each value; saturates at the least finite."""
    nearest = to_float16(values)
    return _stepped(nearest, nearest.to(torch.float64) > values.clamp(-FLOAT16_LARGEST, FLOAT16_LARGEST), -1)


def _stepped(values: Tensor, where: Tensor, direction: int) -> Tensor:
    """The neighbouring float16 in a direction, where asked for."""
    bits = values.view(torch.int16).to(torch.int32) & 0xFFFF
    # Sign and magnitude to a number line on which neighbours differ by one, and back.
    line = torch.where(bits >= 0x8000, 0x8000 - bits, bits) + direction * where.to(torch.int32)
    back = torch.where(line < 0, 0x8000 - line, line)
    return torch.where(back >= 0x8000, back - 0x10000, back).to(torch.int16).view(torch.float16)


def to_float32(values: Tensor) -> Tensor:
    """Nearest float32, saturating; NaN stays NaN, with one bit pattern."""
    return _canonical(values.clamp(-FLOAT32_LARGEST, FLOAT32_LARGEST).to(torch.float32))


def to_bfloat16(values: Tensor) -> Tensor:
    """Nearest bfloat16; finite values saturate, infinities and NaN stay."""
    finite = values.clamp(-BFLOAT16_LARGEST, BFLOAT16_LARGEST)
    kept = torch.where(values.isinf(), values, finite)
    return _canonical(kept.to(torch.float32).to(torch.bfloat16))


def bfloat16_error(magnitudes: Tensor) -> Tensor:
    """Most that `to_bfloat16` moves a finite value of this magnitude: 8 significant bits."""
    rounding = (magnitudes.clamp(max=BFLOAT16_LARGEST) * 2.0**-8).clamp(min=2.0**-134)
    return rounding * (1 + 2.0**-12) + (magnitudes - BFLOAT16_LARGEST).clamp(min=0)


def _canonical(values: Tensor) -> Tensor:
    # Devices differ in the payload of the NaN that a conversion gives.
    return values.masked_fill(values.isnan(), float("nan"))


def divided(values: Tensor, number: float) -> Tensor:
    """Values over a number, correctly rounded.

    By a tensor on their own device: CUDA multiplies by the reciprocal of a number of the host,
    which is off by an ulp where a quotient should be exact.
    """
    return values / torch.full((), number, dtype=values.dtype, device=values.device)


def sum_last(values: Tensor) -> Tensor:
    """Sum over the last dimension, folded in halves, so that every device adds in one order."""
    while values.shape[-1] > 1:
        half = values.shape[-1] // 2
        folded = values[..., :half] + values[..., half : 2 * half]
        rest = values[..., 2 * half :]
        values = torch.cat((folded, rest), dim=-1) if rest.shape[-1] else folded
    return values[..., 0] if values.shape[-1] else values.sum(dim=-1)


def norm_last(values: Tensor) -> Tensor:
    """Euclidean length over the last dimension, ``[.., 1]``; float32 magnitudes do not overflow it."""
    return sum_last(values * values).sqrt().unsqueeze(-1)
