"""What earlier releases computed otherwise: each module holds one change, and says until when.

An implementation declares the revisions whose formulas it follows (`Implementation.revisions`); one
that declares none is measured against the base. Only formulas are revised: whether they suffice is
for the laws of the other severities to say, whichever revision is declared.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from kvconform.reference.revisions.formulas import Formulas
from kvconform.reference.revisions.no_speculative_states import NoSpeculativeStates
from kvconform.reference.revisions.per_batch_budget import PerBatchBudget
from kvconform.reference.revisions.scales_per_token import ScalesPerToken

REVISIONS: dict[str, type[Formulas]] = {
    revision.name: revision for revision in (PerBatchBudget, ScalesPerToken, NoSpeculativeStates)
}
"""Every revision by the name under which it is declared, latest change first."""

__all__ = ["REVISIONS", "Formulas", "describe", "following"]


@cache
def following(names: tuple[str, ...]) -> Formulas:
    """The formulas of an implementation that declares these revisions, the base's for the rest.

    Raises ValueError for a name that is none.
    """
    unknown = [name for name in names if name not in REVISIONS]
    if unknown:
        raise ValueError(f"no revision is called {unknown[0]!r}; there are {', '.join(REVISIONS)}")
    if not names:
        return Formulas()
    # Each overrides and hands on, so that several may be followed together.
    together: type[Formulas] = type("Together", tuple(REVISIONS[name] for name in dict.fromkeys(names)), {})
    return together()


def describe(names: Sequence[str]) -> str:
    """The revisions in words: ``base``, or what it is measured against instead."""
    if not names:
        return Formulas.name
    return "base but " + ", ".join(f"{name} (until {REVISIONS[name].until})" for name in names)
