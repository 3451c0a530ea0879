"""Uniform quantisation, exactly: a value becomes the nearest of evenly spaced levels.

Values, the low end and the step are whole numbers of one unit. Any rational numbers have such a
unit, so what holds here holds for them; floating point adds its own rounding on top.
"""

from __future__ import annotations


def round_half_even(dividend: int, divisor: int) -> int:
    """The integer nearest to dividend / divisor, the even one of two; for a positive divisor."""
    doubled = 2 * dividend + divisor
    nearest = doubled // (2 * divisor)
    is_tie = doubled % (2 * divisor) == 0
    return nearest - 1 if is_tie and nearest % 2 == 1 else nearest


def quantise(value: int, low: int, step: int, levels: int) -> int:
    """The code, 0 to ``levels`` - 1, of the level nearest to the value; level 0 is at ``low``."""
    return max(0, min(levels - 1, round_half_even(value - low, step)))


def dequantise(code: int, low: int, step: int) -> int:
    """The value of a code's level."""
    return low + code * step
