"""Implementations wrong on purpose: one fault each, the laws that it breaks, and no other.

What an engine really gets wrong, on the smallest scale: a floor where a ceiling belongs, a padding
left stale, a field forgotten. They test the laws, and show what a violation looks like.
"""

from kvconform.conformance.miniatures import (
    bound,
    grouping,
    hold,
    layout,
    memory,
    merge,
    page,
    quant,
    resize,
    uniform,
    views,
    zeroing,
)
from kvconform.conformance.miniatures.registry import MINIATURES, Miniature, miniature

__all__ = [
    "MINIATURES",
    "Miniature",
    "bound",
    "grouping",
    "hold",
    "layout",
    "memory",
    "merge",
    "miniature",
    "page",
    "quant",
    "resize",
    "uniform",
    "views",
    "zeroing",
]
