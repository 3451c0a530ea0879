"""Proving a law over the code under test, or finding the smallest inputs that break it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import prod

from kvconform.properties.law import Law, Violation
from kvconform.properties.sampling import Fault, run_law
from kvconform.reference.interface import Implementation, Unsupported
from kvconform.solver.explore import Budget, End, Explorer, Stopped
from kvconform.solver.given import SymbolicGiven
from kvconform.solver.interpose import lift_numbers
from kvconform.solver.oracle import Unknown
from kvconform.solver.replay import Case, Replayed, replay, shrink
from kvconform.solver.symbolic import SymbolicInt

PROVED, VIOLATED, BROKEN = "proved", "violated", "broken"
INCONCLUSIVE, UNSUPPORTED = "inconclusive", "unsupported"

DEFAULT_BUDGET = Budget()


@dataclass(frozen=True)
class Proof:
    """What proving one law over one implementation for one kind came to.

    ``verdict`` is proved, violated, broken, inconclusive or unsupported. ``domain`` names every
    input with all it may be; ``message`` says what was violated or why there is no answer, with
    ``where`` in the code under test; ``case`` holds the draws of a counterexample; ``paths`` counts
    the runs of the law, ``ensured`` the conditions it checked and ``questions`` those put to z3.
    """

    verdict: str
    domain: str = ""
    message: str = ""
    where: str = ""
    case: Case = field(default_factory=dict)
    paths: int = 0
    ensured: int = 0
    questions: int = 0


@dataclass(frozen=True)
class _Run:
    """What one path came to: held, violated, broken or unsupported, and why."""

    given: SymbolicGiven
    verdict: str
    message: str = ""


def prove(law: Law, implementation: Implementation, kind: str, *, budget: Budget = DEFAULT_BUDGET) -> Proof:
    """Run the law on unknowns along every path through it and through the code under test.

    Proved means: no input within the domain breaks the law. Where the choices of a law make more
    paths than the budget allows, the domain is narrowed to inputs in which only so many choices
    differ from their first option, and says so. A violation is reported only if the law fails on
    its numbers in a concrete run too.
    """
    missing = law.missing(implementation, kind)
    if missing is not None:
        return Proof(UNSUPPORTED, message=missing)
    best: Proof | None = None
    before = 0
    stages = () if budget.deviations is None else range(budget.deviations + 1)
    for deviations in (*stages, None):
        attempt = _Attempt(law, implementation, kind, budget, deviations)
        proof = attempt.run()
        if attempt.out_of_paths and best is not None:
            return best
        best = proof
        if not attempt.explorer.narrowed or (proof.verdict != PROVED and not attempt.vacuous):
            return best
        # One choice more that differs is tried only where it looks like fitting the budget.
        growth = proof.paths * proof.paths // (2 * before) if before else 0
        before = proof.paths
        if growth > budget.paths and attempt.estimate > budget.paths:
            return best
    return proof


class _Attempt:
    """One exploration of a law."""

    def __init__(
        self, law: Law, implementation: Implementation, kind: str, budget: Budget, deviations: int | None
    ) -> None:
        self.explorer = Explorer(budget, deviations=deviations)
        self.out_of_paths = False
        self.vacuous = False
        self.estimate = 1
        self._law = law
        self._implementation = implementation
        self._kind = kind
        self._budget = budget
        self._deviations = deviations
        self._lifted = lift_numbers(implementation, self.explorer)
        self._domain: dict[str, list[str]] = {}
        self._ensured = 0
        self._held = 0
        self._lacking: list[str] = []
        self._undecided = ""

    def run(self) -> Proof:
        """The proof, or why there is none."""
        try:
            for end in self.explorer.run(self._once):
                self.estimate = max(self.estimate, prod(self.explorer.options()))
                if end.result is None:
                    continue
                failure = self._judge(end, end.result)
                if failure is not None:
                    return failure
        except Stopped as stop:
            self.out_of_paths = self.explorer.paths == self._budget.paths and self.explorer.stop is None
            return self._proof(INCONCLUSIVE, stop.why, where=stop.where)
        if self._undecided:
            return self._proof(INCONCLUSIVE, self._undecided)
        if self._held == 0 and self._lacking:
            return self._proof(UNSUPPORTED, self._lacking[0])
        if self._ensured == 0:
            self.vacuous = True
            return self._proof(INCONCLUSIVE, "vacuous: no input reaches a condition of the law")
        return self._proof(PROVED)

    def _once(self) -> _Run:
        given = SymbolicGiven(self._lifted, self._kind, self.explorer)
        try:
            run_law(self._law, self._lifted, given)
        except Unsupported as absent:
            return _Run(given, UNSUPPORTED, str(absent))
        except Violation as violation:
            return _Run(given, VIOLATED, str(violation))
        except Fault as fault:
            return _Run(given, BROKEN, str(fault))
        return _Run(given, "held")

    def _judge(self, end: End[_Run], run: _Run) -> Proof | None:
        """Check the path with concrete numbers; a proof that ends the exploration, or None."""
        for draw in run.given.draws:
            known = self._domain.setdefault(draw.name, [])
            if draw.domain not in known:
                known.append(draw.domain)
        if run.verdict == UNSUPPORTED:
            if run.message not in self._lacking:
                self._lacking.append(run.message)
            return None
        witness = end.path.witness
        if run.verdict == "held":
            self._held += 1
            if witness is None:
                return None
            replayed = replay(self._law, self._implementation, self._kind, run.given.case(witness))
            self._ensured += replayed.ensured
            if replayed.failed:
                return self._refuted(replayed)
            if replayed.verdict != "held":
                return self._proof(
                    INCONCLUSIVE, f"the same input is {replayed.verdict} when run on plain numbers"
                )
            return None
        if witness is None:
            try:
                witness = self.explorer.oracle.model(end.path)
            except Unknown as unknown:
                self._undecided = self._undecided or f"{unknown}, on a path where: {run.message}"
                return None
            if witness is None:
                return None
        numbers = [draw.value.polynomial for draw in run.given.draws if type(draw.value) is SymbolicInt]
        smallest = self.explorer.oracle.smallest(end.path, numbers)
        for values in (smallest, witness):
            if values is not None:
                replayed = replay(self._law, self._implementation, self._kind, run.given.case(values))
                if replayed.failed:
                    return self._refuted(replayed)
        return self._proof(INCONCLUSIVE, f"does not happen on plain numbers: {run.message}")

    def _refuted(self, replayed: Replayed) -> Proof:
        smallest = shrink(self._law, self._implementation, self._kind, replayed)
        return replace(self._proof(smallest.verdict, smallest.message), case=smallest.case)

    def _proof(self, verdict: str, message: str = "", where: str = "") -> Proof:
        return Proof(
            verdict,
            domain=self._describe_domain(),
            message=message,
            where=where,
            paths=self.explorer.paths,
            ensured=self._ensured,
            questions=self.explorer.oracle.questions,
        )

    def _describe_domain(self) -> str:
        parts = [f"{name}: {_either(options)}" for name, options in self._domain.items()]
        if self.explorer.narrowed:
            differ = "1 choice differs" if self._deviations == 1 else f"{self._deviations} choices differ"
            parts.append(f"at most {differ} from the first option listed")
        if self._lacking:
            parts.append(f"apart from what the implementation does not have ({', '.join(self._lacking)})")
        return "; ".join(parts)


def _either(options: list[str]) -> str:
    return options[0] if len(options) == 1 else ", ".join(options[:-1]) + " or " + options[-1]
