"""The four turboquant presets: Lloyd-Max coded keys or fp8 keys, and uniform values.

Sources: Zandieh et al. 2025 (arXiv 2504.19874) for rotation and Lloyd-Max codes; Max 1960 for the
codebook of a normal variable.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import torch
from kvconform.gpu_checks.codec import Bound, Codec, RowScaled, extent, finite_or_zero
from kvconform.gpu_checks.codecs_per_token_head import nearest_code
from kvconform.gpu_checks.codecs_plain import ScaledFp8
from kvconform.gpu_checks.floats import (
    E4M3,
    FLOAT16_LARGEST,
    FLOAT16_LEAST,
    bytes_of,
    divided,
    norm_last,
    to_float16,
    to_float16_down,
    to_float16_up,
    values_of,
)
from kvconform.gpu_checks.packing import pack_bits, unpack_bits
from kvconform.gpu_checks.rotation import rotate, unrotate
from kvconform.reference.arithmetic import cdiv
from torch import Tensor


@lru_cache(maxsize=8)
def codebook(bits: int) -> tuple[float, ...]:
    """The 2^bits centroids that lose least, in the mean square, of a standard normal variable.

    Lloyd's iteration to its fixed point: cells meet half way between centroids, and a centroid is
    the mean of its cell. Symmetric, ascending.
    """
    count = 1 << (bits - 1)
    positive = [(index + 0.5) * 4.0 / count for index in range(count)]
    for _ in range(5000):
        edges = [0.0, *_midpoints(positive), math.inf]
        moved = [_cell_mean(low, high) for low, high in pairwise(edges)]
        settled = max(abs(new - old) for new, old in zip(moved, positive, strict=True)) < 1e-13
        positive = moved
        if settled:
            break
    return tuple(-value for value in reversed(positive)) + tuple(positive)


def _midpoints(centroids: list[float]) -> list[float]:
    return [(low + high) / 2 for low, high in pairwise(centroids)]


def _cell_mean(low: float, high: float) -> float:
    density = [math.exp(-edge * edge / 2) / math.sqrt(2 * math.pi) for edge in (low, high)]
    mass = (math.erf(high / math.sqrt(2)) - math.erf(low / math.sqrt(2))) / 2
    return (density[0] - density[1]) / mass


@dataclass(frozen=True)
class LloydMaxKey(RowScaled):
    """Direction of the rotated key as Lloyd-Max codes, its length as a float16.

    A rotated key of length N in k dimensions, times sqrt(k) / N, is z of length sqrt(k) whose elements
    are near a standard normal, so each is stored as the nearest centroid c. Norm correction: what
    is read is scaled to the stored length again, as centroids alone would be too short; so a key's
    length is off by no more than its float16 rounding.

    Bound, of a row's length: coding moves an element by E, at most half the gap that it lies in,
    or |z| less the last centroid beyond that. Scaling c to length sqrt(k) = |z| moves it by
    | |z| - |c| | <= |z - c|, so the direction is off by at most 2 |E| N / sqrt(k). The float16
    length adds N / 2^11 + 2^-25, and N - 65504 where it saturates. Infinities and NaN: the length is
    NaN and so is the whole key.
    """

    bits: int

    def lengths(self, size: int) -> tuple[int, ...]:
        return cdiv(self.bits * size, 8), 2

    def encode(self, rows: Tensor) -> tuple[Tensor, ...]:
        values, finite = finite_or_zero(rows)
        norm = norm_last(values)
        codes = torch.bucketize(self._normalised(values, norm), self._edges(rows.device))
        stored = to_float16(norm).masked_fill(~finite, float("nan"))
        return pack_bits(codes.to(torch.uint8), self.bits), bytes_of(stored)

    def decode(self, parts: tuple[Tensor, ...], size: int) -> Tensor:
        packed, stored = parts
        centroids = self._centroids(packed.device)[unpack_bits(packed, self.bits, size).long()]
        return unrotate(centroids / norm_last(centroids) * values_of(stored, torch.float16))

    def bound(self, rows: Tensor) -> Bound:
        values = rows.to(torch.float64)
        norm = norm_last(values)
        coded = self._normalised(values, norm).abs()
        centroids = self._centroids(rows.device)
        half_gap = ((centroids[1:] - centroids[:-1]) / 2).max()
        # Gaps widen outwards, so the widest one bounds all; beyond the last centroid it is exact.
        moved = torch.maximum(coded - centroids[-1], half_gap)
        direction = 2 * norm_last(moved) * norm / math.sqrt(max(rows.shape[-1], 1))
        length = norm * 2.0**-11 + 2.0**-25 + (norm - FLOAT16_LARGEST).clamp(min=0)
        return Bound(None, ((direction + length) * (1 + 2.0**-20)).squeeze(-1))

    def _normalised(self, values: Tensor, norm: Tensor) -> Tensor:
        unit = values / torch.where(norm > 0, norm, 1.0)
        return rotate(unit) * math.sqrt(values.shape[-1])

    def _centroids(self, device: torch.device) -> Tensor:
        return torch.tensor(codebook(self.bits), dtype=torch.float64, device=device)

    def _edges(self, device: torch.device) -> Tensor:
        return torch.tensor(_midpoints(list(codebook(self.bits))), dtype=torch.float64, device=device)


@dataclass(frozen=True)
class UniformValue(RowScaled):
    """Codes 0..L (L = 2^bits - 1) between a float16 zero and as many float16 steps above it.

    The zero is the row's least value rounded down, and the step (greatest - zero) / L rounded up, so
    every element lies within the L steps and its nearest code is in range.

    Bound: half a step. The zero is below the least value lo by at most an ulp, |lo| / 2^10 or 2^-24,
    so step <= (hi - lo + |lo| / 2^10 + 2^-24) / L x (1 + 2^-10) + 2^-24. Zero and step saturate at
    65504; what then lies outside the L steps is added. Infinities and NaN: the step is NaN and so
    is the whole row.
    """

    bits: int

    def lengths(self, size: int) -> tuple[int, ...]:
        return cdiv(self.bits * size, 8), 2, 2

    def encode(self, rows: Tensor) -> tuple[Tensor, ...]:
        values, finite = finite_or_zero(rows)
        greatest_code = (1 << self.bits) - 1
        low, high = extent(values)
        zero = to_float16_down(low)
        start = zero.to(torch.float64)
        step = to_float16_up(divided(high - start, greatest_code).clamp(min=FLOAT16_LEAST))
        codes = nearest_code((values - start) / step.to(torch.float64), 0, greatest_code)
        packed = pack_bits(codes.to(torch.uint8), self.bits)
        return packed, bytes_of(step.masked_fill(~finite, float("nan"))), bytes_of(zero)

    def decode(self, parts: tuple[Tensor, ...], size: int) -> Tensor:
        packed, step, zero = parts
        codes = unpack_bits(packed, self.bits, size).to(torch.float64)
        return codes * values_of(step, torch.float16) + values_of(zero, torch.float16)

    def bound(self, rows: Tensor) -> Bound:
        values = rows.to(torch.float64)
        greatest_code = (1 << self.bits) - 1
        low, high = extent(values)
        start = low.clamp(-FLOAT16_LARGEST, FLOAT16_LARGEST)
        ulp = start.abs() * 2.0**-10 + FLOAT16_LEAST
        span = (high - start).clamp(min=0) + ulp
        step = (span / greatest_code * (1 + 2.0**-10) + FLOAT16_LEAST).clamp(max=FLOAT16_LARGEST)
        below = (-FLOAT16_LARGEST - values).clamp(min=0)
        above = (values - start + ulp - greatest_code * FLOAT16_LARGEST).clamp(min=0)
        return Bound.of_elements(step / 2 * (1 + 2.0**-20) + below + above)


def _preset(name: str, key: RowScaled | ScaledFp8, value_bits: int) -> Codec:
    return Codec(name.lower(), name, key, UniformValue(value_bits), multiple=2)


CODECS = (
    _preset("TURBOQUANT_K8V4", ScaledFp8(E4M3, calibrates=False), 4),
    _preset("TURBOQUANT_4BIT_NC", LloydMaxKey(4), 4),
    _preset("TURBOQUANT_K3V4_NC", LloydMaxKey(3), 4),
    _preset("TURBOQUANT_3BIT_NC", LloydMaxKey(3), 3),
)
