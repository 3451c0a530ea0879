"""The three Octave formats: Lloyd-Max codes of rotated blocks under scales that keep x . x' = |x|^2.

Source: "Octave KV: a 3-bit KV cache for ROCm" (design/rocm_octave.md in the documentation of vLLM
0.33), which gives blocks, bits, codebooks, the rule of the scale and the bytes of a slot. Signs of
the rotation and the order of bits inside a part are this project's own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import torch
from kvconform.gpu_checks.codec import Bound, Codec, Side, finite_or_zero, finite_rows
from kvconform.gpu_checks.codecs_turboquant import codebook
from kvconform.gpu_checks.floats import FLOAT16_LARGEST, bytes_of, norm_last, sum_last, to_float16, values_of
from kvconform.gpu_checks.packing import pack_bits, split, unpack_bits
from kvconform.gpu_checks.rotation import rotate, unrotate
from kvconform.reference.arithmetic import cdiv, total
from kvconform.reference.interface import Refused
from torch import Tensor

HEAD_SIZE = 256
"""The only head that the format is described for; its first block of 64 is the rotary part."""

STORED_BYTES = {"octave_k3v4": 248, "octave_k3v3": 216, "octave_k3v3_compact": 196}
"""Bytes of a slot, as the source's table has them."""

UNIT = 64
"""A code of level l under a scale s stands for l x s / 64."""
LARGEST_LEVEL = 127


@dataclass(frozen=True)
class Block:
    """``width`` elements that are rotated together and share a scale; ``bits`` of a code."""

    width: int
    bits: int


def levels(bits: int) -> tuple[int, ...]:
    """The codebook of a standard normal variable as int8, ascending.

    Centroids times the greatest whole number that keeps the largest within int8, rounded.
    """
    return tuple(round(centroid * levels_per_deviation(bits)) for centroid in codebook(bits))


def levels_per_deviation(bits: int) -> int:
    """How many levels one standard deviation is."""
    return math.floor(LARGEST_LEVEL / codebook(bits)[-1])


@dataclass(frozen=True)
class Blocks(Side):
    """A head as ``blocks`` beside one another, each rotated, coded and scaled by itself.

    A block of length N and w elements, rotated and times sqrt(w) / N, is z of length sqrt(w); each
    element is stored as the nearest level, in units of its centroid c. The scale is the one that
    makes the block's product with what is read its own squared length, so the error is at right
    angles to the block: with the angle a between z and c it is N tan(a). Scales are float16.

    Bound, of a block's length: sin(a) <= |z - c| / |z|, with each element of z - c at most half the
    gap that it lies in, the first centroid below that, and what lies beyond the last one; and as no
    level is 0 and signs agree, cos(a) is at least the first centroid over the last and sqrt(w).
    Rounding the scale adds 2^-11 of what is read, and 127 sqrt(w) / 64 x 2^-25; a scale that
    saturates leaves at most what is read less the smallest levels under the largest scale.
    Infinities and NaN: the scale is NaN, and so is the block.
    """

    blocks: tuple[Block, ...]

    def refuse(self, size: int) -> None:
        if size != HEAD_SIZE:
            raise Refused(f"Octave is described for heads of {HEAD_SIZE} only ({size})")

    def lengths(self, size: int) -> tuple[int, ...]:
        if size == 0:
            return ()
        codes = (cdiv(block.width * block.bits, 8) for block in self.blocks)
        return *codes, 2 * len(self.blocks)

    def encode(self, rows: Tensor) -> tuple[Tensor, ...]:
        coded = [self._encode(block, part) for block, part in self._cut(rows)]
        scales = torch.cat([scale for _, scale in coded], dim=-1)
        return *(codes for codes, _ in coded), bytes_of(scales)

    def decode(self, parts: tuple[Tensor, ...], size: int) -> Tensor:  # noqa: ARG002
        scales = values_of(parts[-1], torch.float16)
        read = []
        for index, (block, packed) in enumerate(zip(self.blocks, parts[:-1], strict=True)):
            codes = unpack_bits(packed, block.bits, block.width).long()
            chosen = _table(levels(block.bits), packed.device)[codes]
            read.append(unrotate(chosen) * (scales[..., index : index + 1] / UNIT))
        return torch.cat(read, dim=-1)

    def bound(self, rows: Tensor) -> Bound:
        squared = [self._bound(block, part.to(torch.float64)) ** 2 for block, part in self._cut(rows)]
        return Bound(None, torch.stack(squared).sum(dim=0).sqrt() * (1 + 2.0**-20))

    def reads_nan(self, rows: Tensor) -> Tensor:
        lost = [(~finite_rows(part)).expand(part.shape) for _, part in self._cut(rows)]
        return torch.cat(lost, dim=-1)

    def _cut(self, rows: Tensor) -> list[tuple[Block, Tensor]]:
        widths = tuple(block.width for block in self.blocks)
        assert total(widths) == rows.shape[-1]
        return list(zip(self.blocks, split(rows, widths), strict=True))

    def _encode(self, block: Block, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Packed codes of a block, and its float16 scale ``[n, 1]``."""
        values, finite = finite_or_zero(rows)
        norm = norm_last(values)
        unit = rotate(values / torch.where(norm > 0, norm, 1.0))
        table = levels(block.bits)
        edges = [(low + high) / 2 for low, high in pairwise(table)]
        deviations = unit * math.sqrt(block.width)
        codes = torch.bucketize(deviations * levels_per_deviation(block.bits), _table(edges, rows.device))
        chosen = _table(table, rows.device)[codes]
        along = sum_last(unit * chosen).unsqueeze(-1)
        scale = to_float16(UNIT * norm / torch.where(along > 0, along, 1.0))
        packed = pack_bits(codes.to(torch.uint8), block.bits)
        return packed, scale.masked_fill(~finite, float("nan"))

    def _bound(self, block: Block, rows: Tensor) -> Tensor:
        """The bound of each row of a block, ``[n]``."""
        norm = norm_last(rows)
        root = math.sqrt(block.width)
        table = [level / levels_per_deviation(block.bits) for level in levels(block.bits) if level > 0]
        first, last = table[0], table[-1]
        most = [first, *((high - low) / 2 for low, high in pairwise(table)), 0.0]
        coded = rotate(rows / torch.where(norm > 0, norm, 1.0)).abs() * root
        gap = torch.bucketize(coded, _table(table, rows.device))
        moved = norm_last(torch.maximum(coded - last, _table(most, rows.device)[gap]))
        sine = (moved / root).clamp(max=1)
        cosine = (1 - sine * sine).sqrt().clamp(min=first / (last * root))
        read = norm / cosine
        rounded = read * 2.0**-11 + LARGEST_LEVEL * root / UNIT * 2.0**-25
        held = first * levels_per_deviation(block.bits) * root * FLOAT16_LARGEST / UNIT
        bound = (read * read - norm * norm).clamp(min=0).sqrt() + rounded + (read - held).clamp(min=0)
        return bound.squeeze(-1)


def _table(values: tuple[int, ...] | list[float], device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, device=device)


def _octave(name: str, key: tuple[Block, ...], value_bits: int, multiple: int) -> Codec:
    value = Blocks((Block(HEAD_SIZE, value_bits),))
    return Codec(name, None, Blocks(key), value, equal=True, multiple=multiple)


_BLOCK_KEY = (Block(64, 4), Block(64, 3), Block(64, 3), Block(64, 3))

CODECS = (
    _octave("octave_k3v4", _BLOCK_KEY, value_bits=4, multiple=8),
    _octave("octave_k3v3", _BLOCK_KEY, value_bits=3, multiple=8),
    _octave("octave_k3v3_compact", (Block(HEAD_SIZE, 3),), value_bits=3, multiple=4),
)
