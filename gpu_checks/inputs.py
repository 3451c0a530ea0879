"""Rows to put through a codec: everyday ones and the ends of every range, the same on each machine."""

from __future__ import annotations

import math
import zlib

import torch
from kvconform.gpu_checks.rotation import signs
from torch import Tensor

FAMILIES = ("normal", "heavy-tailed", "constant", "zero", "denormal", "largest", "outlier", "aligned")
"""Names of the families of finite rows. aligned: what a rotation gathers in a single element."""

HEAD_SIZES = (16, 24, 32, 40, 48, 64, 72, 80, 96, 112, 120, 128, 160, 192, 256, 288, 320, 448, 512, 576)
"""Head sizes of public models, and what lies between them."""
ODD_SIZES = (17, 18, 33, 65, 81, 100, 127, 129, 255, 575)
"""Sizes that some mode must refuse or pad for."""

Special = tuple[tuple[int, float], ...]
SPECIALS: dict[str, Special] = {
    "infinity": ((0, math.inf),),
    "minus infinity": ((3, -math.inf),),
    "nan": ((1, math.nan),),
    "all three": ((0, math.nan), (5, math.inf), (9, -math.inf)),
}
"""Rows that are not finite: which elements hold what."""


def rows(family: str, count: int, size: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """``count`` finite rows ``[count, size]`` of a family, on the CPU."""
    generator = torch.Generator().manual_seed(zlib.crc32(f"{family} {size} {seed}".encode()))
    normal = torch.randn(count, size, generator=generator, dtype=torch.float64)
    limits = torch.finfo(dtype)
    flips = torch.where(normal < 0, -1.0, 1.0)
    if family == "normal":
        made = normal * 10.0 ** torch.linspace(-3, 2, count, dtype=torch.float64).unsqueeze(-1)
    elif family == "heavy-tailed":
        made = (normal / torch.randn(count, size, generator=generator, dtype=torch.float64)) ** 3
    elif family == "constant":
        made = torch.full_like(normal, 0.3) * (-7.0) ** torch.arange(count).unsqueeze(-1)
    elif family == "zero":
        made = torch.zeros_like(normal) * flips
    elif family == "denormal":
        made = normal * limits.tiny / 4
    elif family == "largest":
        made = flips * limits.max
        made[0] = limits.max
    elif family == "outlier":
        made = normal
        made[:, size // 2] = limits.max / 3
    elif family == "aligned":
        made = torch.tensor(signs(size), dtype=torch.float64).expand(count, size)
        made = made * torch.linspace(1, limits.max, count, dtype=torch.float64).unsqueeze(-1)
    else:
        raise ValueError(f"no family {family!r}")
    return made.clamp(limits.min, limits.max).to(dtype)


def tied_rows(count: int, size: int, dtype: torch.dtype) -> Tensor:
    """Quarters from -6 to 6, 6 itself once in every 16: halfway between many a narrow format's values."""
    index = torch.arange(count * size)
    quarters = (index * 7 % 49 - 24) / 4
    return torch.where(index % 16 == 0, 6.0, quarters).reshape(count, size).to(dtype)


def finite_rows(count: int, size: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """``count`` rows of each family, one family below another."""
    return torch.cat([rows(family, count, size, dtype, seed) for family in FAMILIES])


def special_rows(size: int, dtype: torch.dtype) -> Tensor:
    """One normal row for each of `SPECIALS`, with its elements put in."""
    made = rows("normal", len(SPECIALS), size, dtype)
    for row, special in zip(made, SPECIALS.values(), strict=True):
        for index, value in special:
            row[index % size] = value
    return made
