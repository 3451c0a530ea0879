"""Symbolic integers, path exploration and verdicts of proof."""
