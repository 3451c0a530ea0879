"""Running a function once per path, each branch on an unknown decided by the solver."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from kvconform.properties.given import Rejected
from kvconform.solver.oracle import Oracle, Unknown
from kvconform.solver.path import Constraint, Path

Result = TypeVar("Result")


class Stopped(BaseException):
    """The exploration cannot go on; says why, and where in the code under test.

    Not an `Exception`, so that no handler in code under test can swallow it.
    """

    def __init__(self, why: str, where: str = "") -> None:
        super().__init__(why, where)
        self.why = why
        self.where = where


@dataclass(frozen=True)
class Budget:
    """How far to go before giving up; nothing in it depends on the speed of the machine.

    ``paths`` to run, ``branches`` on one path, ``questions`` to z3, and ``rlimit`` for each in
    z3's own resource units. ``deviations`` is how many choices of one run may differ from their
    first option where there are too many paths to try all of them; None tries all of them or fails.
    """

    paths: int = 1000
    branches: int = 400
    questions: int = 3000
    rlimit: int = 3_000_000
    deviations: int | None = 2


@dataclass
class Node:
    """One branch point: the value taken, and those still to take with numbers that lead there."""

    question: Constraint | int
    value: int
    alternatives: list[tuple[int, list[int] | None]] = field(default_factory=list)
    witness: list[int] | None = None


@dataclass(frozen=True)
class End(Generic[Result]):
    """How one path ended: with the function's result, or None where no input goes along it."""

    path: Path
    result: Result | None


class Explorer:
    """Decides branches so that every path through a function is run exactly once.

    A side of a branch is left out only when z3 proves that no input takes it. Where z3 cannot
    tell, the side is run, its path having no ``witness``.
    """

    def __init__(self, budget: Budget, *, deviations: int | None = None) -> None:
        self.path = Path()
        self.paths = 0
        self.narrowed = False
        self.stop: Stopped | None = None
        self.oracle = Oracle(budget.rlimit)
        self._budget = budget
        self._deviations = deviations
        self._trail: list[Node] = []
        self._step = 0

    def run(self, function: Callable[[], Result]) -> Iterator[End[Result]]:
        """Run the function along every path, one per item.

        ``narrowed`` tells afterwards whether choices were left out for the sake of ``deviations``.
        Raises `Stopped` when the budget is spent or the function cannot be run symbolically.
        """
        while True:
            if self.paths == self._budget.paths:
                raise Stopped(f"more than {self._budget.paths} paths")
            self.paths += 1
            self.path = Path()
            self._step = 0
            if self._trail:
                self.path.witness = None
            result: Result | None = None
            with suppress(Rejected):
                result = function()
            if self.stop is not None:
                # Code under test may have caught it.
                raise self.stop
            end = End(self.path, result)
            # Values of this path are of no use to what runs from here on, a concrete run say.
            self.path = Path()
            yield end
            if not self._backtrack():
                return

    def options(self) -> list[int]:
        """How many options each choice of the last run had, taken or not."""
        return [node.question for node in self._trail if isinstance(node.question, int)]

    def halt(self, stop: Stopped) -> Stopped:
        """Note the stop, to be raised at the end of the run even where code under test caught it."""
        self.stop = stop
        return stop

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Turn a failure of the prover itself into a stop, lest code under test take it for its own."""
        try:
            yield
        except Exception as error:
            raise self.halt(Stopped(f"the prover failed: {type(error).__name__}: {error}")) from error

    def decide(self, constraint: Constraint) -> bool:
        """Whether the constraint holds on this path; both answers where both are possible."""
        with self.guarded():
            return self._decide(constraint)

    def _decide(self, constraint: Constraint) -> bool:
        canonical = self.path.canonical(constraint)
        if isinstance(canonical, bool):
            return canonical
        node = self._replayed(canonical) or self._grown(self._branch(canonical))
        self.path.learn(canonical if node.value else canonical.negated())
        return bool(node.value)

    def assume(self, constraint: Constraint) -> None:
        """Give up the path where the constraint cannot hold; it holds from here on."""
        with self.guarded():
            self._assume(constraint)

    def _assume(self, constraint: Constraint) -> None:
        canonical = self.path.canonical(constraint)
        if canonical is True:
            return
        if canonical is False:
            raise Rejected
        if self._replayed(canonical) is None:
            if self.path.witness is None or not canonical.holds(self.path.witness):
                model = self._model(canonical)
                if model is None:
                    raise Rejected
                self.path.witness = model or None
            self._grown(Node(canonical, 1))
        self.path.learn(canonical)

    def pick(self, options: int) -> int:
        """An index below ``options``; every one of them on some path, 0 first."""
        if options == 1:
            return 0
        node = self._replayed(options)
        if node is None:
            witness = self.path.witness
            alternatives = [
                (index, None if witness is None else list(witness)) for index in range(1, options)
            ]
            if self._deviations is not None and self._deviated() >= self._deviations:
                alternatives = []
                self.narrowed = True
            node = self._grown(Node(options, 0, alternatives))
        return node.value

    def _deviated(self) -> int:
        return sum(isinstance(node.question, int) and node.value != 0 for node in self._trail)

    def _replayed(self, question: Constraint | int) -> Node | None:
        if self._step == len(self._trail):
            return None
        node = self._trail[self._step]
        self._step += 1
        if node.question != question:
            raise self.halt(Stopped("the code under test does not do the same twice for the same input"))
        if self._step == len(self._trail) and node.witness is not None:
            self.path.witness = list(node.witness)
        return node

    def _grown(self, node: Node) -> Node:
        if len(self._trail) == self._budget.branches:
            raise self.halt(Stopped(f"more than {self._budget.branches} branches on one path"))
        self._trail.append(node)
        self._step += 1
        return node

    def _branch(self, question: Constraint) -> Node:
        witness = self.path.witness
        if witness is not None:
            value = question.holds(witness)
            model = self._model(question.negated() if value else question)
            return Node(question, value, [] if model is None else [(not value, model or None)])
        sides = []
        for value, side in ((True, question), (False, question.negated())):
            model = self._model(side)
            if model is not None:
                sides.append((value, model or None))
        if not sides:
            raise Rejected
        first, self.path.witness = sides[0]
        return Node(question, first, list(sides[1:]))

    def _model(self, constraint: Constraint) -> list[int] | None:
        """Numbers that meet it; None when there are none; empty when z3 cannot tell."""
        near = self.path.neighbour(constraint)
        if near is not None:
            return near
        if self.oracle.questions >= self._budget.questions:
            raise self.halt(Stopped(f"more than {self._budget.questions} questions to z3"))
        try:
            return self.oracle.model(self.path, (constraint,))
        except Unknown:
            return []

    def _backtrack(self) -> bool:
        while self._trail:
            node = self._trail[-1]
            if node.alternatives:
                node.value, node.witness = node.alternatives.pop(0)
                return True
            self._trail.pop()
        return False
