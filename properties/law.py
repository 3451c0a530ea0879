"""What a law is: one sentence, one function, four uses (sampled, proved, replayed, explained)."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvconform.properties.given import Given
    from kvconform.reference.interface import Implementation

SEVERITIES = ("safety", "agreement", "formula", "economy", "hygiene")
"""What a reader loses when a law breaks, worst first."""

GATING = ("safety", "agreement", "formula")
"""Severities that fail a run unless told otherwise."""

NO_KIND = "-"
"""Stands for the kind in laws that are about no kind of spec."""


class Violation(Exception):
    """A law does not hold: the message says got, wanted and which formula."""


@dataclass(frozen=True)
class Law:
    """One law of the catalogue.

    ``needs`` names what an implementation must have to be asked: operations by name, fields as
    ``kind-independent`` names with a leading dot (``.alignment``). ``proved`` is true when the law
    is pure integer arithmetic, so that it can be proved over the code as well as sampled.
    """

    id: str
    severity: str
    kinds: tuple[str, ...]
    needs: tuple[str, ...]
    proved: bool
    reports: tuple[str, ...]
    check: Callable[[Implementation, Given], None]

    @property
    def area(self) -> str:
        """The part of the id before the slash."""
        return self.id.partition("/")[0]

    @property
    def sentence(self) -> str:
        """The law itself: the first sentence of the function's docstring."""
        return self.explanation.partition("\n\n")[0].replace("\n", " ")

    @property
    def explanation(self) -> str:
        """The whole docstring: the law, then why it must hold."""
        return inspect.getdoc(self.check) or ""

    @property
    def location(self) -> str:
        """Where the law is written, as ``file:line``."""
        module = self.check.__module__.removeprefix("kvconform.").replace(".", "/")
        return f"{module}.py:{self.check.__code__.co_firstlineno}"

    def missing(self, implementation: Implementation, kind: str) -> str | None:
        """What the implementation lacks for this law and kind, or None when it can be asked."""
        if kind != NO_KIND and kind not in implementation.kinds():
            return f"kind {kind}"
        for need in self.needs:
            if need.startswith("."):
                if need[1:] not in implementation.fields(kind):
                    return f"field {kind}{need}"
            elif need not in implementation.operations():
                return f"operation {need}"
        return None


CATALOGUE: dict[str, Law] = {}
"""Every law by its id, in the order in which the areas declare them."""


def law(
    id: str,
    *,
    severity: str,
    kinds: tuple[str, ...] = (NO_KIND,),
    needs: tuple[str, ...],
    proved: bool = False,
    reports: tuple[str, ...] = (),
) -> Callable[[Callable[[Implementation, Given], None]], Law]:
    """Register a law. Raises ValueError for a second law of the same id or an unknown severity."""
    if severity not in SEVERITIES:
        raise ValueError(f"{id}: unknown severity {severity!r}")
    if id in CATALOGUE:
        raise ValueError(f"{id}: declared twice")

    def register(check: Callable[[Implementation, Given], None]) -> Law:
        CATALOGUE[id] = Law(id, severity, kinds, needs, proved, reports, check)
        return CATALOGUE[id]

    return register


OBSERVERS: list[Callable[[], None]] = []
"""Called whenever a law checks a condition: how an engine tells that a law is not vacuous."""


def ensure(condition: bool, message: str) -> None:
    """Raise `Violation` unless the condition holds; the message says got, wanted and formula."""
    for observe in OBSERVERS:
        observe()
    if not condition:
        raise Violation(message)


def ensure_equal(got: object, wanted: object, what: str, formula: str) -> None:
    """Raise `Violation` unless got equals wanted, saying which quantity and by which formula."""
    for observe in OBSERVERS:
        observe()
    if not got == wanted:
        raise Violation(f"{what}: got {got}, wanted {wanted} = {formula}")
