"""Symbolic arithmetic against Python's own, on numbers of both signs and beyond 64 bits."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kvconform.reference.arithmetic import cdiv, product, round_up, total
from kvconform.reference.quantise import round_half_even
from kvconform.solver.explore import Budget, Explorer
from kvconform.solver.symbolic import SymbolicBool, SymbolicInt, fresh

INTEGERS = st.integers(-12, 12) | st.integers(-(1 << 80), 1 << 80) | st.integers(-300, 300)


class Following(Explorer):
    """Takes the one path that given numbers take, without asking the solver."""

    def _model(self, constraint: object) -> None:
        return None


def outcome(function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except (ZeroDivisionError, ValueError) as error:
        return type(error)


def follow(function: Callable[..., Any], numbers: tuple[int, ...]) -> Any:
    """What the function gives for unknowns, evaluated at the numbers."""
    explorer = Following(Budget())

    def run() -> Any:
        unknowns = [fresh(explorer, f"x{index}") for index in range(len(numbers))]
        explorer.path.witness = list(numbers)
        return outcome(function, *unknowns)

    (end,) = explorer.run(run)
    assert end.path.witness is not None
    assert end.path.fits(end.path.witness)
    return evaluate(end.result, end.path.witness)


def evaluate(result: Any, values: list[int]) -> Any:
    if type(result) in (SymbolicInt, SymbolicBool):
        return result.evaluate(values)
    if type(result) is tuple:
        return tuple(evaluate(item, values) for item in result)
    return result


BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "floor divide": operator.floordiv,
    "modulo": operator.mod,
    "divmod": divmod,
    "less": operator.lt,
    "less or equal": operator.le,
    "greater": operator.gt,
    "greater or equal": operator.ge,
    "equal": operator.eq,
    "not equal": operator.ne,
    "min": min,
    "max": max,
    "sum": lambda a, b: sum([a, b, a]),
    "math.prod": lambda a, b: math.prod([a, b, a]),
    "product": lambda a, b: product([a, b]),
    "total": lambda a, b: total([a, b]),
    "cdiv": cdiv,
    "the other cdiv": lambda a, b: -(a // -b),
    "add and divide": lambda a, b: (a + b - 1) // b,
    "round up": round_up,
    "round half even": lambda a, b: round_half_even(a, abs(b)),
    "divide twice": lambda a, b: a // b // 3 + b // 7 % 5,
    "divide a product": lambda a, b: (a * b * 6 + b) // b,
    "divide by a sum": lambda a, b: (a * (a + b) + 5) // (a + b),
    "sort": lambda a, b: tuple(sorted([a, b, 3])),
    "set": lambda a, b: len({a, b}),
    "dict": lambda a, b: {a: 1, b: 2}[a],
    "in": lambda a, b: a in (b, 3, -4),
}
UNARY: dict[str, Callable[[Any], Any]] = {
    "negate": operator.neg,
    "plus": operator.pos,
    "abs": abs,
    "invert": operator.invert,
    "truth": bool,
    "not": operator.not_,
    "square": lambda a: a**2,
    "cube modulo": lambda a: pow(a, 3, 7),
    "zeroth power": lambda a: a**0,
    "shift left": lambda a: a << 5,
    "shift right": lambda a: a >> 5,
    "mask": lambda a: a & 255,
    "round": round,
    "floor": math.floor,
    "divide by 8": lambda a: a // 8,
    "divide by -8": lambda a: a // -8,
    "modulo 8": lambda a: a % 8,
    "modulo -8": lambda a: a % -8,
    "divide a number": lambda a: 1000 // a,
    "number modulo": lambda a: 1000 % a,
    "divmod of a number": lambda a: divmod(-77, a),
    "less than a number": lambda a: a > 5,
    "number minus": lambda a: 5 - a,
    "compare with infinity": lambda a: (a < math.inf, a > math.inf, a == math.inf, a >= -math.inf),
    "count of truths": lambda a: (a > 0) + (a > 5) + sum([a == 7, a != 7]),
    "table": lambda a: (
        {1: 10, -2: 20, 3: 30}.get(a, 0) if False else {1: 10, -2: 20, 3: 30}[a] if a in {1, -2, 3} else 0
    ),
}


@pytest.mark.parametrize("name", BINARY)
@settings(max_examples=150, deadline=None)
@given(a=INTEGERS, b=INTEGERS)
def test_a_binary_operation_equals_pythons(name: str, a: int, b: int) -> None:
    assert follow(BINARY[name], (a, b)) == outcome(BINARY[name], a, b)


@pytest.mark.parametrize("name", UNARY)
@settings(max_examples=100, deadline=None)
@given(a=INTEGERS)
def test_a_unary_operation_equals_pythons(name: str, a: int) -> None:
    assert follow(UNARY[name], (a,)) == outcome(UNARY[name], a)


@settings(max_examples=100, deadline=None)
@given(a=st.integers(-(1 << 50), 1 << 50), places=st.integers(0, 20))
def test_rounding_an_exact_fraction_equals_pythons(a: int, places: int) -> None:
    def rounded(number: Any) -> tuple[Any, ...]:
        ratio = number / (1 << places)
        return math.ceil(ratio), math.floor(ratio), math.trunc(ratio)

    explorer = Following(Budget())

    def run() -> Any:
        number = fresh(explorer, "a", -(1 << 50), 1 << 50)
        explorer.path.witness = [a]
        return rounded(number)

    (end,) = explorer.run(run)
    assert end.path.witness is not None
    assert evaluate(end.result, end.path.witness) == rounded(a)


@pytest.mark.parametrize("name", BINARY)
def test_every_pair_of_numbers_takes_exactly_one_path(name: str) -> None:
    explorer = Explorer(Budget())
    function = BINARY[name]

    def run() -> Any:
        return outcome(function, fresh(explorer, "a", -4, 4), fresh(explorer, "b", -4, 4))

    met = {(a, b): 0 for a in range(-4, 5) for b in range(-4, 5)}
    for end in explorer.run(run):
        for pair in met:
            values = end.path.completed(dict(enumerate(pair)))
            if values is not None and end.path.fits(values):
                met[pair] += 1
                assert evaluate(end.result, values) == outcome(function, *pair), pair
    assert set(met.values()) == {1}


def test_the_three_ways_to_round_up_are_one_unknown() -> None:
    explorer = Explorer(Budget())

    def run() -> Any:
        n, d = fresh(explorer, "n"), fresh(explorer, "d", 1)
        return -(-n // d), -(n // -d), (n + d - 1) // d

    (end,) = explorer.run(run)
    first, second, third = end.result or ()
    assert first.polynomial == second.polynomial == third.polynomial
