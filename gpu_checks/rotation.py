"""Randomised Hadamard rotation of a head of any size.

Signs drawn once for each head size, then a Walsh-Hadamard transform. A transform needs a power of
two, so a head is cut into the powers of two that it is the sum of, the largest first (576 = 512 + 64),
and each block is rotated by itself. Every step is orthogonal: lengths are kept, and unrotating an
error never makes it longer.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

_SEED = 0x6B76636F6E66


def blocks(size: int) -> tuple[int, ...]:
    """The powers of two that a head of ``size`` elements is cut into, largest first."""
    return tuple(1 << bit for bit in reversed(range(size.bit_length())) if size >> bit & 1)


@lru_cache(maxsize=2048)
def signs(size: int) -> tuple[int, ...]:
    """The +-1 that each element is multiplied by before the transform."""
    found = []
    for index in range(size):
        # SplitMix64, written out so that it needs no generator of any library or device.
        mixed = (_SEED + size * 0x10001 + (index + 1) * 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
        found.append(1 - 2 * ((mixed >> 63) & 1))
    return tuple(found)


def rotate(values: Tensor) -> Tensor:
    """Float64 ``[.., n]`` rotated: signs, then the transform of each block."""
    return _transform(values * _signs(values))


def unrotate(values: Tensor) -> Tensor:
    """What `rotate` undoes: the transform is its own inverse, and so are the signs."""
    return _transform(values) * _signs(values)


def _signs(values: Tensor) -> Tensor:
    return _signs_on(values.shape[-1], str(values.device))


@lru_cache(maxsize=2048)
def _signs_on(size: int, device: str) -> Tensor:
    return torch.tensor(signs(size), dtype=torch.float64, device=device)


def _transform(values: Tensor) -> Tensor:
    parts = []
    start = 0
    for width in blocks(values.shape[-1]):
        part = values[..., start : start + width]
        start += width
        half = 1
        while half < width:
            pairs = torch.unflatten(part, -1, (width // (2 * half), 2, half))
            low, high = pairs[..., 0, :], pairs[..., 1, :]
            part = torch.stack((low + high, low - high), dim=-2).flatten(-3)
            half *= 2
        parts.append(part * width**-0.5)
    return torch.cat(parts, dim=-1) if parts else values
