"""Running a law on one recorded case, and making a failing case smaller."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

from kvconform.properties import law as laws
from kvconform.properties.given import Bounds, Given, Rejected
from kvconform.properties.law import Law, Violation
from kvconform.properties.sampling import Fault, run_law
from kvconform.reference.interface import Implementation, Unsupported
from kvconform.solver.interpose import count_refusals

Case = dict[str, Any]

SMALL_CASE = 60
"""Sum of the numbers of a case from which on smaller ones are looked for at random."""

SCATTERED = 1500
"""How many random cases are tried at a time."""


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

    def draw_integer(self, name: str, bounds: Bounds) -> int:
        at_least, at_most, multiple_of, _ = bounds
        # The one nearest to 0.
        simplest = max(0, -(-at_least // multiple_of) * multiple_of)
        if at_most is not None and simplest > at_most:
            simplest = at_most // multiple_of * multiple_of
        value: int = self._take(name, simplest)
        out_of_range = value < at_least or (at_most is not None and value > at_most)
        if out_of_range or value % multiple_of != 0:
            raise Rejected
        return value

    def draw_optional(self, name: str, bounds: Bounds) -> int | None:
        if self._recorded.get(name) is None:
            self._take(name, None)
            return None
        value = self.draw_integer(name, bounds)
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
    conditions that were checked and the refusals that were met; ``case`` holds the draws and
    ``simplest`` the simplest value of each.
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
        observed = count_refusals(implementation, lambda: ensured.append(None))
        inputs.implementation = observed
        try:
            run_law(law, observed, inputs)
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


def shrink(
    law: Law, implementation: Implementation, kind: str, failed: Replayed, runs: int = 4000
) -> Replayed:
    """The failing case with its draws as simple as they can be while the law still fails the same way.

    One draw after the other is set to its simplest value, or else as near to it as halving the
    distance gets; where numbers are still large after that, small ones are scattered over all draws
    at once; then two draws at a time. Gives up after so many ``runs`` of the law.
    """
    search = _Search(law, implementation, kind, failed, runs)
    while search.simplify_one() or search.scatter() or search.simplify_two():
        pass
    return search.best


class _Search:
    def __init__(
        self, law: Law, implementation: Implementation, kind: str, failed: Replayed, runs: int
    ) -> None:
        self.best = failed
        self._law = law
        self._implementation = implementation
        self._kind = kind
        self._left = runs
        self._tried: set[tuple[tuple[str, Any], ...]] = set()

    def _attempt(self, changes: Case) -> bool:
        """Whether the case with these draws changed fails the same way and is smaller."""
        case = {**self.best.case, **changes}
        key = tuple((name, (type(value), value)) for name, value in case.items())
        if self._left <= 0 or key in self._tried:
            return False
        self._tried.add(key)
        self._left -= 1
        replayed = replay(self._law, self._implementation, self._kind, case)
        smaller = replayed.verdict == self.best.verdict and _size(replayed) < _size(self.best)
        if smaller:
            self.best = replayed
        return smaller

    def simplify_one(self) -> bool:
        """Simplify draws one by one; whether any could be."""
        improved = False
        for name in list(self.best.case):
            if name not in self.best.case or self.best.case[name] == self.best.simplest[name]:
                continue
            if self._attempt({name: self.best.simplest[name]}):
                improved = True
                continue
            distance = self._distance(name)
            while distance:
                distance = int(distance / 2)
                while distance and self._attempt({name: self.best.case[name] - distance}):
                    improved = True
        return improved

    def simplify_two(self) -> bool:
        """Simplify one draw with another changed along; whether that could be."""
        for name in list(self.best.case):
            for near in self._nearer(name):
                for other in list(self.best.case):
                    if other != name and self._is_number(other):
                        now, low = self.best.case[other], self.best.simplest[other] or 0
                        for value in dict.fromkeys((now - 1, now + 1, low, low + 1, low + 2)):
                            if self._attempt({name: near, other: value}):
                                return True
        return False

    def scatter(self) -> bool:
        """Find a smaller case among random small ones; whether there was any."""
        numbers = [name for name in self.best.case if self._is_number(name)]
        if _size(self.best)[0] <= SMALL_CASE:
            return False
        random = Random(0)
        for attempt in range(SCATTERED):
            reach = (3, 6, 12, 24, 48)[attempt % 5]
            changes = {name: (self.best.simplest[name] or 0) + random.randrange(reach) for name in numbers}
            if self._attempt(changes):
                return True
        return False

    def _nearer(self, name: str) -> list[Any]:
        if self.best.case[name] == self.best.simplest[name]:
            return []
        distance = self._distance(name)
        if not distance:
            return [self.best.simplest[name]]
        value = self.best.case[name]
        step = 1 if distance > 0 else -1
        return list(
            dict.fromkeys(
                (value - distance, value - distance + step, value - int(distance / 2), value - step)
            )
        )

    def _distance(self, name: str) -> int:
        if not self._is_number(name):
            return 0
        distance: int = self.best.case[name] - (self.best.simplest[name] or 0)
        return distance

    def _is_number(self, name: str) -> bool:
        value = self.best.case[name]
        return isinstance(value, int) and not isinstance(value, bool)


def _size(replayed: Replayed) -> tuple[int, int]:
    """How far the numbers are from 0, and how many draws are not their simplest."""
    numbers = [abs(v) for v in replayed.case.values() if isinstance(v, int) and not isinstance(v, bool)]
    unlike = sum(value != replayed.simplest[name] for name, value in replayed.case.items())
    return sum(numbers), unlike + len(replayed.case)
