"""The exit codes of every command."""

CONFORMS = 0
VIOLATED = 1
BAD_INPUT = 2
INCOMPLETE = 3
"""Inconclusive, or not all that was selected could be judged."""
BROKEN = 4
"""The implementation, its adapter or a law fell over."""
