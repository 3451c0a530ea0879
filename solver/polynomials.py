"""Integer polynomials in normal form: what symbolic arithmetic is made of.

Two expressions that are the same polynomial have the same normal form, so their equality needs no
solver, however many unknowns are multiplied. A quotient is an unknown of its own (see `explore`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import gcd
from typing import TypeAlias

Monomial: TypeAlias = tuple[int, ...]
"""Unknowns by their number, in ascending order, repeated for a power; empty for a constant."""

Interval: TypeAlias = tuple[int | None, int | None]
"""Least and greatest value; None where there is no bound."""


class Polynomial:
    """A sum of integer coefficients times monomials; immutable and hashable."""

    __slots__ = ("_hash", "_key", "terms")

    def __init__(self, terms: Mapping[Monomial, int]) -> None:
        self.terms = terms
        self._key: tuple[tuple[Monomial, int], ...] | None = None
        self._hash = 0

    @property
    def key(self) -> tuple[tuple[Monomial, int], ...]:
        """The terms in ascending order of monomials: equal for equal polynomials."""
        if self._key is None:
            self._key = tuple(sorted(self.terms.items()))
        return self._key

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Polynomial) and self.terms == other.terms

    def __hash__(self) -> int:
        if not self._hash:
            self._hash = hash(self.key) or 1
        return self._hash

    @property
    def constant(self) -> int:
        """The term without unknowns."""
        return self.terms.get((), 0)

    @property
    def is_constant(self) -> bool:
        """Whether there are no unknowns."""
        return not self.terms or (len(self.terms) == 1 and () in self.terms)

    def unknowns(self) -> set[int]:
        """The numbers of the unknowns that occur."""
        return {unknown for monomial in self.terms for unknown in monomial}

    def leading(self) -> tuple[Monomial, int]:
        """The greatest monomial and its coefficient; the polynomial must not be zero."""
        monomial = max(self.terms, key=_order)
        return monomial, self.terms[monomial]

    def evaluate(self, values: Sequence[int]) -> int:
        """The value when unknown i is ``values[i]``."""
        result = 0
        for monomial, coefficient in self.terms.items():
            term = coefficient
            for number in monomial:
                term *= values[number]
            result += term
        return result

    def show(self, name: Callable[[int], str]) -> str:
        """The polynomial for a person to read, constant last."""
        if not self.terms:
            return "0"
        parts = []
        for monomial, coefficient in sorted(
            self.terms.items(), key=lambda term: _order(term[0]), reverse=True
        ):
            factors = [name(unknown) for unknown in monomial]
            if abs(coefficient) != 1 or not factors:
                factors.insert(0, str(abs(coefficient)))
            parts.append(("- " if coefficient < 0 else "+ ") + "*".join(factors))
        first = parts[0].removeprefix("+ ").replace("- ", "-", 1)
        return " ".join([first, *parts[1:]])


def _order(monomial: Monomial) -> tuple[int, Monomial]:
    return (len(monomial), monomial)


ZERO = Polynomial({})
ONE = Polynomial({(): 1})


def constant(value: int) -> Polynomial:
    """The polynomial without unknowns."""
    return Polynomial({(): value} if value else {})


def unknown(number: int) -> Polynomial:
    """The polynomial that is one unknown."""
    return Polynomial({(number,): 1})


def add(left: Polynomial, right: Polynomial, times: int = 1) -> Polynomial:
    """left + times x right."""
    if not right.terms:
        return left
    terms = dict(left.terms)
    for monomial, coefficient in right.terms.items():
        value = terms.get(monomial, 0) + times * coefficient
        if value:
            terms[monomial] = value
        else:
            terms.pop(monomial, None)
    return Polynomial(terms)


def scale(polynomial: Polynomial, factor: int) -> Polynomial:
    """factor x polynomial."""
    if factor == 1:
        return polynomial
    if factor == 0:
        return ZERO
    return Polynomial({monomial: coefficient * factor for monomial, coefficient in polynomial.terms.items()})


def multiply(left: Polynomial, right: Polynomial) -> Polynomial:
    """left x right."""
    if left.is_constant:
        return scale(right, left.constant)
    if right.is_constant:
        return scale(left, right.constant)
    terms: dict[Monomial, int] = {}
    for one, first in left.terms.items():
        for two, second in right.terms.items():
            monomial = tuple(sorted(one + two)) if one and two else one or two
            value = terms.get(monomial, 0) + first * second
            if value:
                terms[monomial] = value
            else:
                terms.pop(monomial, None)
    return Polynomial(terms)


def divide(dividend: Polynomial, divisor: Polynomial) -> tuple[Polynomial, Polynomial]:
    """Quotient and remainder with dividend = quotient x divisor + remainder, as polynomials.

    No term of the remainder is divisible by the divisor's leading term. Raises ZeroDivisionError
    for a divisor of zero.
    """
    if not divisor.terms:
        raise ZeroDivisionError
    if len(divisor.terms) == 1:
        return _divide_by_term(dividend, *divisor.leading())
    head, coefficient = divisor.leading()
    quotient: dict[Monomial, int] = {}
    remainder: dict[Monomial, int] = {}
    rest = dividend
    while rest.terms:
        monomial, value = rest.leading()
        cofactor = _without(monomial, head)
        if cofactor is not None and value % coefficient == 0:
            quotient[cofactor] = value // coefficient
            rest = add(rest, multiply(Polynomial({cofactor: value // coefficient}), divisor), -1)
        else:
            remainder[monomial] = value
            rest = add(rest, Polynomial({monomial: value}), -1)
    return Polynomial(quotient), Polynomial(remainder)


def _divide_by_term(dividend: Polynomial, head: Monomial, coefficient: int) -> tuple[Polynomial, Polynomial]:
    quotient: dict[Monomial, int] = {}
    remainder: dict[Monomial, int] = {}
    for monomial, value in dividend.terms.items():
        cofactor = _without(monomial, head)
        if cofactor is not None and value % coefficient == 0:
            quotient[cofactor] = value // coefficient
        else:
            remainder[monomial] = value
    return Polynomial(quotient), Polynomial(remainder)


def _without(monomial: Monomial, factor: Monomial) -> Monomial | None:
    rest = list(monomial)
    for unknown_factor in factor:
        if unknown_factor not in rest:
            return None
        rest.remove(unknown_factor)
    return tuple(rest)


def substitute(polynomial: Polynomial, replacements: Mapping[int, Polynomial]) -> Polynomial:
    """The polynomial with some unknowns replaced."""
    result = ZERO
    for monomial, coefficient in polynomial.terms.items():
        term = Polynomial({tuple(u for u in monomial if u not in replacements): coefficient})
        for number in monomial:
            if number in replacements:
                term = multiply(term, replacements[number])
        result = add(result, term)
    return result


def common_monomial(polynomial: Polynomial) -> Monomial:
    """The greatest monomial that divides every term."""
    monomials = iter(polynomial.terms)
    common = list(next(monomials, ()))
    for monomial in monomials:
        if not common:
            break
        rest = list(monomial)
        kept = []
        for number in common:
            if number in rest:
                rest.remove(number)
                kept.append(number)
        common = kept
    return tuple(common)


def content(polynomial: Polynomial) -> int:
    """Greatest common divisor of the coefficients of the terms with unknowns; 0 if there are none."""
    result = 0
    for monomial, coefficient in polynomial.terms.items():
        if monomial:
            result = gcd(result, coefficient)
    return result


def interval(polynomial: Polynomial, bounds: Sequence[Interval]) -> Interval:
    """An interval that holds every value, unknown i lying in ``bounds[i]``."""
    low: int | None = 0
    high: int | None = 0
    for monomial, coefficient in polynomial.terms.items():
        term: Interval = (1, 1)
        for number in monomial:
            term = _times(term, bounds[number])
        least, most = _times(term, (coefficient, coefficient))
        low = None if low is None or least is None else low + least
        high = None if high is None or most is None else high + most
    return low, high


def _times(left: Interval, right: Interval) -> Interval:
    a, b = left
    c, d = right
    if a is not None and c is not None and a >= 0 and c >= 0:
        if b == 0 or d == 0:
            return a * c, 0
        return a * c, None if b is None or d is None else b * d
    if left == (0, 0) or right == (0, 0):
        return 0, 0
    if c == d and c is not None:
        scaled = (None if a is None else a * c, None if b is None else b * c)
        return scaled if c > 0 else (scaled[1], scaled[0])
    if c is not None and c >= 0:
        return _times_not_negative(left, (c, d))
    if a is not None and a >= 0:
        return _times_not_negative(right, (a, b))
    if a is None or b is None or c is None or d is None:
        # Unbounded factors of either sign are left to the solver.
        return None, None
    corners = (a * c, a * d, b * c, b * d)
    return min(corners), max(corners)


def _times_not_negative(left: Interval, right: tuple[int, int | None]) -> Interval:
    a, b = left
    c, d = right

    def furthest(end: int) -> int | None:
        return None if d is None else end * d

    low = None if a is None else a * c if a >= 0 else furthest(a)
    high = None if b is None else b * c if b <= 0 else furthest(b)
    return low, high


def divide_interval(dividend: Interval, divisor: Interval) -> Interval:
    """An interval that holds every floor quotient; the divisor's interval must lie above 0."""
    low, high = dividend
    least, most = divisor
    assert least is not None
    assert least > 0
    if low is None:
        lowest = None
    elif low < 0:
        lowest = low // least
    else:
        lowest = 0 if most is None else low // most
    if high is None:
        highest = None
    elif high >= 0:
        highest = high // least
    else:
        highest = -1 if most is None else high // most
    return lowest, highest
