"""What is known on one path through the code under test: unknowns, constraints and a witness."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Literal

from kvconform.solver.polynomials import (
    Interval,
    Polynomial,
    add,
    common_monomial,
    constant,
    content,
    divide,
    divide_interval,
    interval,
    multiply,
    scale,
    substitute,
    unknown,
)

Relation = Literal[">=", "==", "!="]


@dataclass(frozen=True, slots=True)
class Constraint:
    """``polynomial relation 0``."""

    polynomial: Polynomial
    relation: Relation

    def negated(self) -> Constraint:
        """The constraint that holds exactly where this one does not."""
        if self.relation == ">=":
            return Constraint(add(scale(self.polynomial, -1), constant(-1)), ">=")
        return Constraint(self.polynomial, "!=" if self.relation == "==" else "==")

    def holds(self, values: Sequence[int]) -> bool:
        """Whether it holds when unknown i is ``values[i]``."""
        value = self.polynomial.evaluate(values)
        if self.relation == ">=":
            return value >= 0
        return (value == 0) == (self.relation == "==")


@dataclass(frozen=True, slots=True)
class Quotient:
    """How an unknown came to be: the floor of dividend / divisor, the divisor being positive."""

    dividend: Polynomial
    divisor: Polynomial


def _times_each(constraint: Constraint, multipliers: list[Polynomial]) -> tuple[Constraint, ...]:
    if constraint.relation == "!=":
        return ()
    return tuple(
        Constraint(multiply(constraint.polynomial, multiplier), constraint.relation)
        for multiplier in multipliers
    )


def _split(dividend: Polynomial, divisor: Polynomial) -> tuple[Polynomial, Polynomial, Polynomial]:
    """(whole, rest, divisor) such that the floor quotient is whole + floor(rest / divisor)."""
    whole, rest = divide(dividend, divisor)
    if divisor.is_constant:
        # Only the constant term is brought into range: other coefficients keep their sign.
        carried, left_over = divmod(rest.constant, divisor.constant)
        whole = add(whole, constant(carried))
        rest = add(rest, constant(left_over - rest.constant))
        shared = gcd(content(rest), divisor.constant)
        if shared > 1:
            # floor((s*m + c) / (s*d)) = floor((m + floor(c / s)) / d)
            rest = Polynomial({m: c // shared for m, c in rest.terms.items() if c // shared})
            divisor = constant(divisor.constant // shared)
    return whole, rest, divisor


def _prefers(one: Polynomial, other: Polynomial) -> bool:
    """Whether the first is the one to write of two: a positive leading term, else the lesser key."""
    signs = [max((term for term in each.key if term[0]), default=((), 0))[1] > 0 for each in (one, other)]
    return signs[0] if signs[0] != signs[1] else one.key < other.key


class Path:
    """The unknowns met so far, what was decided about them, and numbers that fit all of it.

    ``witness`` holds one value per unknown such that every constraint holds, or is None where the
    solver could not tell whether such values exist.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self.bounds: list[Interval] = []
        self.constraints: list[Constraint] = []
        self.lemmas: list[tuple[Constraint, ...]] = []
        self.witness: list[int] | None = []
        self.quotients: dict[int, Quotient] = {}
        self._quotient_of: dict[Quotient, int] = {}
        self._least: dict[Polynomial, int] = {}
        self._unequal: set[Polynomial] = set()
        self._replacements: dict[int, Polynomial] = {}
        self._factors: list[Polynomial] = []
        self._equalities: list[Polynomial] = []

    def draw(self, name: str, low: int | None, high: int | None) -> Polynomial:
        """A new unknown within the bounds, both included; None leaves a side open."""
        nearest = 0 if low is None else max(0, low)
        number = self._new(name, (low, high), nearest if high is None else min(nearest, high))
        symbol = unknown(number)
        if low is not None:
            self._record(Constraint(add(symbol, constant(-low)), ">="))
        if high is not None:
            self._record(Constraint(add(constant(high), symbol, -1), ">="))
        return symbol

    def _new(self, name: str, bounds: Interval, value: int) -> int:
        self.names.append(name)
        self.bounds.append(bounds)
        if self.witness is not None:
            self.witness.append(value)
        return len(self.names) - 1

    def reduce(self, polynomial: Polynomial) -> Polynomial:
        """The polynomial after the equalities decided on this path."""
        if self._replacements and not polynomial.unknowns().isdisjoint(self._replacements):
            return substitute(polynomial, self._replacements)
        return polynomial

    def interval(self, polynomial: Polynomial) -> Interval:
        """An interval that holds every value on this path."""
        return interval(polynomial, self.bounds)

    def _positive(self, polynomial: Polynomial) -> Interval:
        low, high = self.interval(polynomial)
        return max(low or 1, 1), high

    def note_factor(self, factor: Polynomial) -> None:
        """Remember a sum that something was multiplied by: it may be a common factor later."""
        if len(factor.terms) > 1 and factor not in self._factors:
            self._factors.append(factor)

    def floor_quotient(self, dividend: Polynomial, divisor: Polynomial) -> Polynomial:
        """floor(dividend / divisor), for a divisor that is above 0 on this path.

        What divides exactly is divided; the rest is a new unknown q with its two inequalities
        q x divisor <= rest < (q + 1) x divisor. The three ways to round up that code is written
        in, -(-n // d), -(n // -d) and (n + d - 1) // d, come out as one and the same unknown.
        """
        dividend, divisor = self.reduce(dividend), self.reduce(divisor)
        exact = self._exact_quotient(dividend, divisor)
        if exact is not None:
            return exact
        whole, rest, divisor = _split(dividend, divisor)
        if not rest.terms:
            return whole
        low, high = divide_interval(self.interval(rest), self._positive(divisor))
        if low is not None and low == high:
            return add(whole, constant(low))
        # floor(rest / d) = -floor((d - 1 - rest) / d): of the two ways to write it, always the same.
        opposite = add(add(divisor, rest, -1), constant(-1))
        other_whole, other_rest, other_divisor = _split(opposite, divisor)
        if other_divisor == divisor and _prefers(other_rest, rest):
            quotient = unknown(self._quotient(Quotient(other_rest, divisor)))
            return add(whole, add(other_whole, quotient), -1)
        return add(whole, unknown(self._quotient(Quotient(rest, divisor))))

    def _exact_quotient(self, dividend: Polynomial, divisor: Polynomial) -> Polynomial | None:
        """The quotient where the dividend is a multiple of the divisor, by the equalities known."""
        whole, rest = divide(dividend, divisor)
        if not rest.terms:
            return whole
        for equality in self._equalities:
            # What is 0 may be added; whatever is left of the dividend must divide.
            same = divide(dividend, equality)[1]
            if same != dividend:
                whole, rest = divide(same, divisor)
                if not rest.terms:
                    return whole
        return None

    def _quotient(self, quotient: Quotient) -> int:
        if quotient in self._quotient_of:
            return self._quotient_of[quotient]
        dividend, divisor = quotient.dividend, quotient.divisor
        bounds = divide_interval(self.interval(dividend), self._positive(divisor))
        value = 0
        if self.witness is not None:
            value = dividend.evaluate(self.witness) // divisor.evaluate(self.witness)
        number = self._new(f"q{len(self.quotients)}", bounds, value)
        self._quotient_of[quotient] = number
        below = add(dividend, multiply(unknown(number), divisor), -1)
        above = add(add(divisor, below, -1), constant(-1))
        inner = self._divisors(dividend)
        self._record(Constraint(below, ">="), inner)
        self._record(Constraint(above, ">="), inner)
        self.quotients[number] = quotient
        for side, end in zip((1, -1), bounds, strict=True):
            if end is not None:
                self._record(Constraint(scale(add(unknown(number), constant(-end)), side), ">="))
        return number

    def _divisors(self, polynomial: Polynomial) -> list[Polynomial]:
        found: list[Polynomial] = []
        for number in sorted(polynomial.unknowns()):
            quotient = self.quotients.get(number)
            if quotient and not quotient.divisor.is_constant and quotient.divisor not in found:
                found.append(quotient.divisor)
        return found

    def canonical(self, constraint: Constraint) -> Constraint | bool:
        """The constraint without common factors, or its truth value where that needs no solver."""
        polynomial = self.reduce(constraint.polynomial)
        while True:
            known = self._known(polynomial, constraint.relation)
            if known is not None:
                return known
            smaller = self._without_common_factor(polynomial)
            if smaller is polynomial:
                break
            polynomial = smaller
        divisor = content(polynomial)
        if constraint.relation == ">=":
            terms = {m: c // divisor for m, c in polynomial.terms.items()}
        elif polynomial.constant % divisor != 0:
            return constraint.relation == "!="
        else:
            if polynomial.leading()[1] < 0:
                divisor = -divisor
            terms = {m: c // divisor for m, c in polynomial.terms.items()}
        canonical = Polynomial({m: c for m, c in terms.items() if c})
        known = self._known(canonical, constraint.relation)
        return Constraint(canonical, constraint.relation) if known is None else known

    def _without_common_factor(self, polynomial: Polynomial) -> Polynomial:
        common = common_monomial(polynomial)
        positive = tuple(u for u in common if (self.bounds[u][0] or 0) > 0)
        if positive:
            return divide(polynomial, Polynomial({positive: 1}))[0]
        for factor in self._factors:
            if len(polynomial.terms) >= len(factor.terms) and (self.interval(factor)[0] or 0) > 0:
                quotient, remainder = divide(polynomial, factor)
                if not remainder.terms:
                    return quotient
        return polynomial

    def _known(self, polynomial: Polynomial, relation: Relation) -> bool | None:
        low, high = self.interval(polynomial)
        base = add(polynomial, constant(-polynomial.constant))
        offset = polynomial.constant
        if base.terms:
            least = self._least.get(base)
            if least is not None and (low is None or least + offset > low):
                low = least + offset
            most = self._least.get(scale(base, -1))
            if most is not None and (high is None or offset - most < high):
                high = offset - most
        if relation == ">=":
            if low is not None and low >= 0:
                return True
            if high is not None and high < 0:
                return False
            return None
        if (low is not None and low > 0) or (high is not None and high < 0):
            return relation == "!="
        if low == 0 and high == 0:
            return relation == "=="
        if polynomial in self._unequal:
            return relation == "!="
        return None

    def learn(self, constraint: Constraint) -> None:
        """Add a canonical constraint that holds on this path from here on."""
        self._record(constraint, self._divisors(constraint.polynomial))
        if constraint.relation == "==":
            if not self._replace(constraint.polynomial):
                self._equalities.append(constraint.polynomial)
            self._revisit_quotients(constraint.polynomial.unknowns())

    def lemmas_of(self, constraint: Constraint) -> tuple[Constraint, ...]:
        """What follows from the constraint and helps a solver that is weak on products.

        A bound on a quotient q says little to a solver that knows of q only in q x divisor; times
        the divisor, which is positive, it is a linear fact about the same products. And products
        have bounds of their own.
        """
        products = _times_each(constraint, self._divisors(constraint.polynomial))
        return (*products, *self._about_products(constraint, *products))

    def _about_products(self, *constraints: Constraint) -> list[Constraint]:
        lemmas = []
        for monomial in {m for c in constraints for m in c.polynomial.terms if len(m) > 1}:
            product = Polynomial({monomial: 1})
            low, high = self.interval(product)
            if low is not None:
                lemmas.append(Constraint(add(product, constant(-low)), ">="))
            if high is not None:
                lemmas.append(Constraint(add(constant(high), product, -1), ">="))
            for number in set(monomial):
                least = self.bounds[number][0]
                rest = divide(product, unknown(number))[0]
                if least is not None and least > 0 and (self.interval(rest)[0] or -1) >= 0:
                    lemmas.append(Constraint(add(product, rest, -least), ">="))
        return lemmas

    def _record(self, constraint: Constraint, multipliers: list[Polynomial] | None = None) -> None:
        self.constraints.append(constraint)
        polynomial, relation = constraint.polynomial, constraint.relation
        products = _times_each(constraint, multipliers or [])
        about = self._about_products(constraint, *products) if multipliers is not None else ()
        self.lemmas.append((*products, *about))
        if relation == "!=":
            self._unequal.add(polynomial)
            return
        self._bound(polynomial)
        if relation == "==":
            self._bound(scale(polynomial, -1))

    def _bound(self, polynomial: Polynomial) -> None:
        base = add(polynomial, constant(-polynomial.constant))
        least = -polynomial.constant
        if least > self._least.get(base, least - 1):
            self._least[base] = least
        if len(base.terms) == 1:
            (monomial, coefficient), *_ = base.terms.items()
            if len(monomial) == 1:
                low, high = self.bounds[monomial[0]]
                if coefficient > 0:
                    end = -(-least // coefficient)
                    low = end if low is None else max(low, end)
                else:
                    end = least // coefficient
                    high = end if high is None else min(high, end)
                self.bounds[monomial[0]] = (low, high)

    def _replace(self, polynomial: Polynomial) -> bool:
        """Use an equality to express one unknown by the others from here on, if one can be."""
        for monomial, coefficient in sorted(polynomial.terms.items(), reverse=True):
            if len(monomial) != 1 or abs(coefficient) != 1:
                continue
            number = monomial[0]
            if sum(number in other for other in polynomial.terms) != 1:
                continue
            rest = add(polynomial, Polynomial({monomial: coefficient}), -1)
            value = self.reduce(scale(rest, -coefficient))
            if number in value.unknowns() or number in self._replacements:
                continue
            single = {number: value}
            for other, before in self._replacements.items():
                self._replacements[other] = substitute(before, single)
            self._replacements[number] = value
            return True
        return False

    def _revisit_quotients(self, touched: set[int]) -> None:
        """What a quotient comes to be once its dividend is known to be a multiple of its divisor."""
        for number, quotient in list(self.quotients.items()):
            mine = quotient.dividend.unknowns() | quotient.divisor.unknowns()
            if number in self._replacements or mine.isdisjoint(touched):
                continue
            whole = self._exact_quotient(self.reduce(quotient.dividend), self.reduce(quotient.divisor))
            if whole is not None and number not in whole.unknowns():
                self.learn(Constraint(add(unknown(number), whole, -1), "=="))

    def neighbour(self, constraint: Constraint) -> list[int] | None:
        """Numbers that meet the path and the constraint, the witness with one unknown changed.

        Cheaper than asking the solver, and enough for most branches.
        """
        if self.witness is None:
            return None
        for number in sorted(self._origins(constraint.polynomial)):
            for value in self._candidates(number, constraint.polynomial):
                values = self.completed({number: value})
                if values is not None and constraint.holds(values) and self.fits(values):
                    return values
        return None

    def far_neighbour(self, constraint: Constraint) -> list[int] | None:
        """As `neighbour`, with two unknowns changed to small numbers."""
        if self.witness is None:
            return None
        drawn = [number for number in range(len(self.names)) if number not in self.quotients]
        for number in sorted(self._origins(constraint.polynomial)):
            for value in self._small(number):
                for other in drawn:
                    for beside in self._small(other) if other != number else ():
                        values = self.completed({number: value, other: beside})
                        if values is not None and constraint.holds(values) and self.fits(values):
                            return values
        return None

    def _small(self, number: int) -> list[int]:
        low, high = self.bounds[number]
        first = 0 if low is None else low
        return [value for value in range(first, first + 4) if high is None or value <= high]

    def _origins(self, polynomial: Polynomial) -> set[int]:
        """The drawn unknowns that a polynomial comes down to."""
        found: set[int] = set()
        waiting = list(polynomial.unknowns())
        seen: set[int] = set()
        while waiting:
            number = waiting.pop()
            if number in seen:
                continue
            seen.add(number)
            quotient = self.quotients.get(number)
            if quotient is None:
                found.add(number)
            else:
                waiting.extend(quotient.dividend.unknowns() | quotient.divisor.unknowns())
        return found

    def _candidates(self, number: int, polynomial: Polynomial) -> list[int]:
        assert self.witness is not None
        now = self.witness[number]
        low, high = self.bounds[number]
        wanted = [now + 1, now - 1]
        beside = self.completed({number: now + 1})
        if beside is not None:
            value = polynomial.evaluate(self.witness)
            slope = polynomial.evaluate(beside) - value
            if slope:
                # Where a straight line through both would meet 0.
                target = now - value // slope
                wanted += [target, target - 1, target + 1]
        first = 0 if low is None else low
        wanted += [first, *range(first + 1, first + 9), 16, 2 * now, 2 * now + 1]
        if high is not None:
            wanted.append(high)
        inside = (v for v in wanted if v != now and (low is None or v >= low) and (high is None or v <= high))
        return list(dict.fromkeys(inside))

    def completed(self, changes: Mapping[int, int]) -> list[int] | None:
        """The witness with some unknowns changed and all that is computed from them brought up to date."""
        assert self.witness is not None
        values = list(self.witness)
        for number, value in changes.items():
            values[number] = value
        for number in range(len(values)):
            quotient = self.quotients.get(number)
            if quotient is not None:
                divisor = quotient.divisor.evaluate(values)
                if divisor <= 0:
                    return None
                values[number] = quotient.dividend.evaluate(values) // divisor
            elif number in self._replacements and number not in changes:
                values[number] = self._replacements[number].evaluate(values)
        return values

    def fits(self, values: list[int]) -> bool:
        """Whether the values meet every constraint of this path."""
        return all(constraint.holds(values) for constraint in self.constraints)
