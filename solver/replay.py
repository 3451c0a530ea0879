"""Running a law on one recorded case, and making a failing case smaller."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from kvconform.properties import law as laws
from kvconform.properties.given import Given, Rejected
from kvconform.properties.law import Law, Violation
from kvconform.properties.sampling import Fault, run_law
from kvconform.reference.interface import Implementation, Unsupported

Case = dict[str, Any]


class RecordedGiven(Given):
    """Draws what a case recorded under each name; what it lacks gets its simplest value.

    ``case`` holds afterwards what was really drawn and ``simplest`` the simplest value of each
    draw. A recorded value outside the bounds asked for rejects the run.
    """

    def __init__(self, implementation: Implementation, kind: str, recorded: Mapping[str, Any]) -> None:
        super().__init__(implementation, kind)
        self.case: Case = {}
        self.simplest: Case = {}
        self._recorded = recorded

    def integer(
        self,
        name: str,
        *,
        at_least: int = 0,
        at_most: int | None = None,
        multiple_of: int = 1,
        typical: Sequence[int] = (),  # noqa: ARG002
    ) -> int:
        simplest = -(-at_least // multiple_of) * multiple_of
        value: int = self._take(name, simplest)
        out_of_range = value < at_least or (at_most is not None and value > at_most)
        if out_of_range or value % multiple_of != 0:
            raise Rejected
        return value

    def optional(
        self,
        name: str,
        *,
        at_least: int = 0,
        at_most: int | None = None,
        multiple_of: int = 1,
        typical: Sequence[int] = (),
    ) -> int | None:
        if self._recorded.get(name) is None:
            self._take(name, None)
            return None
        value = self.integer(
            name, at_least=at_least, at_most=at_most, multiple_of=multiple_of, typical=typical
        )
        self.simplest[name] = None
        return value

    def choice(self, name: str, options: Sequence[Any]) -> Any:
        value = self._take(name, options[0])
        if value not in options:
            raise Rejected
        return value

    def _take(self, name: str, simplest: Any) -> Any:
        value = self._recorded.get(name, simplest)
        if value is None and simplest is not None and not isinstance(simplest, str):
            value = simplest
        self.case[name] = value
        self.simplest[name] = simplest
        return value


@dataclass(frozen=True)
class Replayed:
    """What a law said of one case.

    ``verdict`` is held, violated, broken, unsupported or rejected; ``ensured`` counts the
    conditions that were checked, ``case`` holds the draws and ``simplest`` what each might be.
    """

    verdict: str
    message: str = ""
    ensured: int = 0
    case: Case = field(default_factory=dict)
    simplest: Case = field(default_factory=dict)

    @property
    def failed(self) -> bool:
        """Whether the law does not hold on this case."""
        return self.verdict in ("violated", "broken")


def replay(law: Law, implementation: Implementation, kind: str, recorded: Mapping[str, Any]) -> Replayed:
    """Run the law on the recorded case."""
    inputs = RecordedGiven(implementation, kind, recorded)
    verdict, message = "held", ""
    with counting() as ensured:
        try:
            run_law(law, implementation, inputs)
        except Rejected:
            verdict = "rejected"
        except Unsupported as absent:
            verdict, message = "unsupported", str(absent)
        except Violation as violation:
            verdict, message = "violated", str(violation)
        except Fault as fault:
            verdict, message = "broken", str(fault)
    return Replayed(verdict, message, len(ensured), inputs.case, inputs.simplest)


@contextmanager
def counting() -> Iterator[list[None]]:
    """A list that grows by one whenever a law checks a condition."""
    reached: list[None] = []

    def observe() -> None:
        reached.append(None)

    laws.OBSERVERS.append(observe)
    try:
        yield reached
    finally:
        laws.OBSERVERS.remove(observe)


def shrink(law: Law, implementation: Implementation, kind: str, failed: Replayed, runs: int = 2000) -> Replayed:
    """The failing case with each draw as simple as it can be while the law still fails the same way.

    Draws are taken in order: each is set to its simplest value, or else brought as near to it as
    halving the distance gets, until no draw can be simplified further or ``runs`` are spent.
    """
    best = failed
    left = runs

    def attempt(name: str, value: Any) -> bool:
        nonlocal best, left
        left -= 1
        tried = replay(law, implementation, kind, {**best.case, name: value})
        smaller = tried.verdict == failed.verdict and _size(tried.case) < _size(best.case)
        if smaller:
            best = tried
        return smaller

    improved = True
    while improved and left > 0:
        improved = False
        for name in list(best.case):
            if name not in best.case or left <= 0:
                continue
            value, simplest = best.case[name], best.simplest[name]
            if value == simplest:
                continue
            if attempt(name, simplest):
                improved = True
                continue
            if not _is_number(value):
                continue
            floor = simplest if _is_number(simplest) else 0
            distance = value - floor
            while distance and left > 0:
                distance //= 2
                while left > 0 and _is_number(best.case.get(name)):
                    if not distance or not attempt(name, best.case[name] - distance):
                        break
                    improved = True
    return best


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _size(case: Mapping[str, Any]) -> tuple[int, int]:
    numbers = [abs(value) for value in case.values() if _is_number(value)]
    return sum(numbers) + len(case), len(case) - sum(value is None or value is False for value in case.values())
