"""Cache sizes published elsewhere, and whether a number of bytes reproduces one."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal

UNITS = {
    "B": 1,
    "KB": 1000,
    "MB": 1000**2,
    "GB": 1000**3,
    "KiB": 1024,
    "MiB": 1024**2,
    "GiB": 1024**3,
}
"""Bytes of each unit that a figure may be stated in."""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """What someone published about a model's cache.

    ``printed`` is the figure as it stands in the ``source``; ``value`` and ``unit`` are what it
    means, since many print GB for GiB. It is the KV cache of one request of ``tokens`` tokens in
    ``cache_dtype``, all tokens kept, recurrent state left out; of ``parts`` only, where any are
    named, and of the first ``layers`` layers only, where a number is given.
    """

    printed: str
    value: Decimal
    unit: str
    tokens: int
    cache_dtype: str
    source: str
    parts: tuple[str, ...] = ()
    layers: int | None = None

    def is_reproduced_by(self, size: int) -> bool:
        """Whether so many bytes round to the figure, at the digits that it has."""
        stated = Decimal(size) / UNITS[self.unit]
        return stated.quantize(self.value, ROUND_HALF_UP) == self.value
