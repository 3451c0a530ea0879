"""4-bit floats (e2m1) under block scales: nvfp4, its 4-over-6 choice of scale, and UltraQuant."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from kvconform.gpu_checks.codec import Bound, Codec, Side, finite_or_zero, finite_rows, largest_magnitude
from kvconform.gpu_checks.codecs_plain import outer_scale
from kvconform.gpu_checks.floats import (
    E2M1_LARGEST,
    E4M3,
    decode_e2m1,
    decode_fp8,
    decode_ue8m0,
    divided,
    e2m1_error,
    encode_e2m1,
    encode_fp8,
    encode_ue8m0,
    sum_last,
)
from kvconform.gpu_checks.packing import in_groups, pack_bits, unpack_bits
from kvconform.gpu_checks.rotation import rotate, unrotate
from kvconform.reference.interface import Refused
from torch import Tensor

NVFP4_BLOCK = 16
ULTRAQUANT_GROUP = 32


@dataclass(frozen=True)
class BlockFp4(Side):
    """e2m1 codes with one e4m3 scale for each block of 16; ``scale`` (float32) lives outside.

    The block scale s is the e4m3 nearest to m / 6, m being the block's greatest magnitude over the
    outer scale; it is at least 2^-9, the least e4m3. 4-over-6 also tries m / 4, where the gap
    between codes is half as wide, and keeps whichever leaves the smaller squared error; a reader
    need not know (Cook et al. 2025, arXiv 2512.02010).

    Bound: s x half the gap between codes at |x| / s, which is 1/4, 1/2 or 1 up to 2, 4 and 6;
    rounding s down puts m at up to 6.4 s, still within 1 s of the last code. What lies beyond the
    largest scale saturates. For 4-over-6 it is the wider of both scales' bounds, and a block's
    squared error is never above that of the plain choice. A block with an infinity or NaN has a
    NaN scale and reads back as NaN.
    """

    four_over_six: bool = False
    scale: float = 1.0

    def refuse(self, size: int) -> None:
        if size % NVFP4_BLOCK != 0:
            raise Refused(f"nvfp4 needs heads of a multiple of {NVFP4_BLOCK} ({size})")

    def lengths(self, size: int) -> tuple[int, ...]:
        return size // 2, size // NVFP4_BLOCK

    def encode(self, rows: Tensor) -> tuple[Tensor, ...]:
        values, finite = finite_or_zero(in_groups(rows, NVFP4_BLOCK))
        values = divided(values, self.scale)
        stored = self._scale_bytes(values, E2M1_LARGEST)
        codes = encode_e2m1(values / decode_fp8(stored, E4M3))
        if self.four_over_six:
            other = self._scale_bytes(values, 4.0)
            other_codes = encode_e2m1(values / decode_fp8(other, E4M3))
            better = _squared_error(values, other_codes, other) < _squared_error(values, codes, stored)
            stored = torch.where(better, other, stored)
            codes = torch.where(better, other_codes, codes)
        stored = stored.masked_fill(~finite, E4M3.nan)
        return pack_bits(codes.flatten(-2), 4), stored.squeeze(-1)

    def decode(self, parts: tuple[Tensor, ...], size: int) -> Tensor:
        packed, stored = parts
        codes = in_groups(unpack_bits(packed, 4, size), NVFP4_BLOCK)
        steps = decode_fp8(stored, E4M3).unsqueeze(-1)
        return (decode_e2m1(codes) * steps).flatten(-2) * self.scale

    def bound(self, rows: Tensor) -> Bound:
        values = divided(in_groups(rows.to(torch.float64).abs(), NVFP4_BLOCK), self.scale)
        element = self._element_bound(values, E2M1_LARGEST)
        if self.four_over_six:
            element = torch.maximum(element, self._element_bound(values, 4.0))
        return Bound.of_elements(element.flatten(-2) * self.scale)

    def reads_nan(self, rows: Tensor) -> Tensor:
        grouped = in_groups(rows, NVFP4_BLOCK)
        return (~finite_rows(grouped)).expand(grouped.shape).flatten(-2)

    def calibrated(self, rows: Tensor) -> Side:
        finite = torch.where(rows.isfinite(), rows, 0).to(torch.float64)
        return replace(self, scale=outer_scale(finite, E4M3.largest * E2M1_LARGEST))

    def _scale_bytes(self, values: Tensor, largest_code: float) -> Tensor:
        wanted = divided(largest_magnitude(values), largest_code)
        return encode_fp8(wanted.clamp(min=E4M3.least_step), E4M3)

    def _element_bound(self, magnitudes: Tensor, largest_code: float) -> Tensor:
        step = decode_fp8(self._scale_bytes(magnitudes, largest_code), E4M3)
        return step * e2m1_error(magnitudes / step) * (1 + 2.0**-40)


def _squared_error(values: Tensor, codes: Tensor, stored: Tensor) -> Tensor:
    error = decode_e2m1(codes) * decode_fp8(stored, E4M3) - values
    return sum_last(error * error).unsqueeze(-1)


@dataclass(frozen=True)
class PowerScaledFp4(Side):
    """e2m1 codes with one power-of-two scale byte (ue8m0) for each group of 32 (UltraQuant).

    Keys are rotated first, values not. Public description: vllm#57057 (e2m1 codes, ue8m0 scales per
    group of 32, Hadamard-rotated keys), which says nothing of how a scale is chosen. Here it is the
    least power of two that covers m / 6, so nothing is clipped; a release that clips on purpose
    packs other codes into the same bytes.

    Bound, where keys are concerned in the rotated domain: s x half the gap between codes, with
    s < 2 m / 6 and at least 2^-127. Infinities and NaN: a NaN scale, for the whole row of a rotated
    key and for the group of a value.
    """

    rotated: bool

    def refuse(self, size: int) -> None:
        if size % ULTRAQUANT_GROUP != 0:
            raise Refused(f"UltraQuant needs heads of a multiple of {ULTRAQUANT_GROUP} ({size})")

    def lengths(self, size: int) -> tuple[int, ...]:
        return size // 2, size // ULTRAQUANT_GROUP

    def encode(self, rows: Tensor) -> tuple[Tensor, ...]:
        lost = self.reads_nan(rows)
        values = self._coded(torch.where(lost, 0.0, rows.to(torch.float64)))
        stored = self._scale_bytes(values)
        codes = encode_e2m1(values / decode_ue8m0(stored))
        lost_groups = in_groups(lost, ULTRAQUANT_GROUP).any(dim=-1, keepdim=True)
        stored = stored.masked_fill(lost_groups, 255)
        return pack_bits(codes.flatten(-2), 4), stored.squeeze(-1)

    def decode(self, parts: tuple[Tensor, ...], size: int) -> Tensor:
        packed, stored = parts
        codes = in_groups(unpack_bits(packed, 4, size), ULTRAQUANT_GROUP)
        values = (decode_e2m1(codes) * decode_ue8m0(stored).unsqueeze(-1)).flatten(-2)
        return unrotate(values) if self.rotated else values

    def bound(self, rows: Tensor) -> Bound:
        magnitudes = self._coded(rows.to(torch.float64)).abs()
        step = decode_ue8m0(self._scale_bytes(magnitudes))
        element = (step * e2m1_error(magnitudes / step) * (1 + 2.0**-40)).flatten(-2)
        return Bound.of_elements(element, rotated=self.rotated)

    def reads_nan(self, rows: Tensor) -> Tensor:
        if self.rotated:
            return (~finite_rows(rows)).expand(rows.shape)
        grouped = in_groups(rows, ULTRAQUANT_GROUP)
        return (~finite_rows(grouped)).expand(grouped.shape).flatten(-2)

    def _coded(self, rows: Tensor) -> Tensor:
        return in_groups(rotate(rows) if self.rotated else rows, ULTRAQUANT_GROUP)

    def _scale_bytes(self, groups: Tensor) -> Tensor:
        return encode_ue8m0(divided(largest_magnitude(groups), E2M1_LARGEST).clamp(min=2.0**-127))


CODECS = (
    Codec("nvfp4", "NVFP4", BlockFp4(), BlockFp4(), equal=True),
    Codec("nvfp4_4over6", "NVFP4", BlockFp4(four_over_six=True), BlockFp4(four_over_six=True), equal=True),
    Codec("ultraquant_4bit", None, PowerScaledFp4(rotated=True), PowerScaledFp4(rotated=False), equal=True),
)
