"""Implementations wrong on purpose: one fault each, the laws that it breaks, and no other.

What an engine really gets wrong, on the smallest scale: a floor where a ceiling belongs, a padding
left stale, a field forgotten. They test the laws, and show what a violation looks like.
"""

from kvconform.conformance.miniatures import bound, merge, page, quant, resize
from kvconform.conformance.miniatures.registry import MINIATURES, Miniature, miniature

__all__ = ["MINIATURES", "Miniature", "bound", "merge", "miniature", "page", "quant", "resize"]
