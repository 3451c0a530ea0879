"""The four integer operations that every size formula is made of."""

from __future__ import annotations

from collections.abc import Iterable


def cdiv(dividend: int, divisor: int) -> int:
    """Least integer >= dividend / divisor, for a positive divisor."""
    return -(-dividend // divisor)


def round_up(value: int, multiple: int) -> int:
    """Least multiple of ``multiple`` (> 0) that is >= ``value``."""
    return cdiv(value, multiple) * multiple


def product(factors: Iterable[int]) -> int:
    """Product of the factors; 1 when there are none."""
    result = 1
    for factor in factors:
        result = result * factor
    return result


def total(terms: Iterable[int]) -> int:
    """Sum of the terms; 0 when there are none."""
    result = 0
    for term in terms:
        result = result + term
    return result
