"""z3, asked whether constraints can hold together. The only module that imports it."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import z3  # type: ignore[import-untyped]
from kvconform.solver.path import Constraint, Path
from kvconform.solver.polynomials import Monomial, Polynomial, add, constant, scale


class Unknown(Exception):
    """z3 gave up within its resource limit; says on what."""


class Oracle:
    """Answers whether a path can go on, with numbers where it can.

    ``rlimit`` bounds each question in z3's own resource units, which do not depend on the machine,
    so that the same question always has the same answer. A product of unknowns is first taken as
    an unknown of its own: what cannot hold even so cannot hold, and most of what is asked is
    decided there. Only then is z3 asked about the products themselves.
    """

    def __init__(self, rlimit: int) -> None:
        self.questions = 0
        self._rlimit = rlimit
        self._linear = _Follower(rlimit, products=False)
        self._exact = _Follower(rlimit, products=True)

    def model(self, path: Path, extra: Sequence[Constraint] = ()) -> list[int] | None:
        """Values that meet the path and the extra constraints, or None when there are none.

        Raises `Unknown` when z3 cannot tell.
        """
        self.questions += 1
        for ask in (self._linear.ask, self._search, self._exact.ask, self._ask_afresh):
            answer, values = ask(path, extra)
            if answer == z3.unsat:
                return None
            if values is not None and _meets(path, extra, values):
                return values
        raise Unknown(
            "z3 could not decide " + " and ".join(show(path, c) for c in extra or path.constraints[-1:])
        )

    def smallest(self, path: Path, numbers: Sequence[Polynomial]) -> list[int] | None:
        """Values that meet the path with the numbers as near to 0 as z3 gets them, or None."""
        self.questions += 1
        optimiser = z3.Optimize()
        optimiser.set("rlimit", self._rlimit // 10)
        terms = _Terms(products=True)
        for constraint in path.constraints:
            optimiser.add(terms.constraint(constraint))
        sizes = [terms.sum(number) for number in numbers]
        optimiser.minimize(z3.Sum([z3.IntVal(0), *(z3.If(size >= 0, size, -size) for size in sizes)]))
        if optimiser.check() != z3.sat:
            return None
        values = terms.values(optimiser.model(), path)
        return values if _meets(path, (), values) else None

    def _search(self, path: Path, extra: Sequence[Constraint]) -> tuple[Any, list[int] | None]:
        # Small numbers tried by hand are found sooner than by nonlinear reasoning.
        return z3.unknown, path.far_neighbour(extra[0]) if len(extra) == 1 else None

    def _ask_afresh(self, path: Path, extra: Sequence[Constraint]) -> tuple[Any, list[int] | None]:
        # Another procedure, for nonlinear integers, that cannot work incrementally.
        solver = z3.SolverFor("QF_NIA")
        solver.set("rlimit", self._rlimit)
        terms = _Terms(products=True)
        for constraint in (*path.constraints, *extra):
            solver.add(terms.constraint(constraint))
        answer = solver.check()
        return answer, terms.values(solver.model(), path) if answer == z3.sat else None


class _Follower:
    """An incremental solver that holds the constraints of the path being explored."""

    def __init__(self, rlimit: int, *, products: bool) -> None:
        self._rlimit = rlimit
        self._terms = _Terms(products=products)
        self._solver = z3.Solver()
        self._asserted: list[tuple[Constraint, ...]] = []
        self._levels: list[int] = []

    def ask(self, path: Path, extra: Sequence[Constraint]) -> tuple[Any, list[int] | None]:
        self._follow(path)
        self._solver.push()
        try:
            for constraint in extra:
                self._solver.add(self._with_lemmas(path, constraint))
            self._solver.set("rlimit", self._rlimit)
            answer = self._solver.check()
            return answer, self._terms.values(self._solver.model(), path) if answer == z3.sat else None
        finally:
            self._solver.pop()

    def _follow(self, path: Path) -> None:
        wanted = [(c, *lemmas) for c, lemmas in zip(path.constraints, path.lemmas, strict=True)]
        common = 0
        for old, new in zip(self._asserted, wanted, strict=False):
            if old != new:
                break
            common += 1
        while self._levels and self._levels[-1] > common:
            self._solver.pop()
            self._levels.pop()
        kept = self._levels[-1] if self._levels else 0
        del self._asserted[kept:]
        if kept == len(wanted):
            return
        self._solver.push()
        self._levels.append(len(wanted))
        for group in wanted[kept:]:
            self._asserted.append(group)
            for constraint in group:
                self._solver.add(self._terms.constraint(constraint))

    def _with_lemmas(self, path: Path, constraint: Constraint) -> Any:
        if constraint.relation != "!=":
            return z3.And(*(self._terms.constraint(c) for c in (constraint, *path.lemmas_of(constraint))))
        # Two sides, so that each has its lemmas too.
        above = Constraint(add(constraint.polynomial, constant(-1)), ">=")
        below = Constraint(add(scale(constraint.polynomial, -1), constant(-1)), ">=")
        return z3.Or(self._with_lemmas(path, above), self._with_lemmas(path, below))


class _Terms:
    """Polynomials as z3 terms; a product of unknowns as such, or as an unknown of its own."""

    def __init__(self, *, products: bool) -> None:
        self._products = products
        self._monomials: dict[Monomial, Any] = {}
        self._constraints: dict[Constraint, Any] = {}

    def constraint(self, constraint: Constraint) -> Any:
        if constraint not in self._constraints:
            total = self.sum(constraint.polynomial)
            compare = {">=": operator.ge, "==": operator.eq, "!=": operator.ne}[constraint.relation]
            self._constraints[constraint] = compare(total, 0)
        return self._constraints[constraint]

    def sum(self, polynomial: Polynomial) -> Any:
        terms = []
        for monomial, coefficient in polynomial.key:
            term = self._monomial(monomial)
            terms.append(term if coefficient == 1 else z3.IntVal(coefficient) * term)
        return z3.Sum(terms) if len(terms) > 1 else terms[0] if terms else z3.IntVal(0)

    def _monomial(self, monomial: Monomial) -> Any:
        if monomial not in self._monomials:
            if not monomial:
                term = z3.IntVal(1)
            elif len(monomial) == 1 or not self._products:
                term = z3.Int("*".join(f"u{number}" for number in monomial))
            else:
                term = self._monomial(monomial[:1]) * self._monomial(monomial[1:])
            self._monomials[monomial] = term
        return self._monomials[monomial]

    def values(self, model: Any, path: Path) -> list[int]:
        found = (
            model.eval(self._monomial((number,)), model_completion=True) for number in range(len(path.names))
        )
        return [value.as_long() for value in found]


def _meets(path: Path, extra: Sequence[Constraint], values: list[int]) -> bool:
    return path.fits(values) and all(constraint.holds(values) for constraint in extra)


def show(path: Path, constraint: Constraint) -> str:
    """The constraint for a person to read."""
    return f"{constraint.polynomial.show(lambda number: path.names[number])} {constraint.relation} 0"
