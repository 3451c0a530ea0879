"""Integers and truth values that record what is computed with them.

They stand in for `int` and `bool` while code under test runs: arithmetic builds polynomials,
division is Python's floor division for every sign, and a condition asks the explorer which way to
go. What needs the number itself (`range`, an index, a C function) stops the exploration: a
symbolic value never pretends to be a particular one.

Text made of symbolic values is for messages only; code that compares such text is beyond this.
"""

from __future__ import annotations

import dis
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path as FilePath
from types import FrameType
from typing import Any, NoReturn, TypeGuard

from kvconform.solver.explore import Explorer, Stopped
from kvconform.solver.path import Constraint, Relation
from kvconform.solver.polynomials import ONE, Polynomial, add, constant, multiply, scale

HASH = 0x5EED
"""Hash of every symbolic integer: equal values must have equal hashes, whatever they turn out to be."""

HIGHEST_POWER = 16
"""Greatest exponent that is multiplied out."""

HIGHEST_TABLE = 64
"""Most plain integers among the keys of a table that a symbolic one is looked up in."""

EXACT = 1 << 53
"""Integers up to here are exact as floats, and so are they divided by a power of two."""

POWERS_OF_TWO = frozenset(1 << places for places in range(32))

_HERE = str(FilePath(__file__).parent)
_LOOKUPS = frozenset(dis.opmap[name] for name in ("CONTAINS_OP", "BINARY_SUBSCR", "DELETE_SUBSCR"))


class NeedsConcrete(Stopped):
    """Something was asked of a symbolic value that needs the number itself."""


def place() -> str:
    """The line of code outside this package that is running, as ``file:line``."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_HERE):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _keys_near(frame: FrameType) -> Iterator[object]:
    """The keys of the tables that the running line may be looking into, tuples taken apart."""
    near = [*frame.f_locals.values(), *frame.f_globals.values(), *frame.f_code.co_consts]
    for holder in frame.f_locals.values():
        if not issubclass(type(holder), Symbolic):
            near.extend(getattr(holder, "__dict__", {}).values())
    for table in near:
        if type(table) in (dict, set, frozenset):
            for key in table:
                yield from key if type(key) is tuple else (key,)


def fresh(explorer: Explorer, name: str, low: int | None = None, high: int | None = None) -> SymbolicInt:
    """A new unknown within the bounds, both included; None leaves a side open."""
    return SymbolicInt(explorer, explorer.path.draw(name, low, high))


def fresh_flag(explorer: Explorer, name: str) -> SymbolicBool:
    """A new truth value, decided only where something depends on it."""
    flag = explorer.path.draw(name, 0, 1)
    return SymbolicBool(explorer, Constraint(flag, "!="))


class Symbolic:
    """What symbolic values share: the explorer that decides them and the path they live on."""

    __slots__ = ("_explorer", "_path")

    def __init__(self, explorer: Explorer) -> None:
        self._explorer = explorer
        self._path = explorer.path

    def __copy__(self) -> Symbolic:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Symbolic:
        return self

    def __reduce__(self) -> NoReturn:
        self._need("pickling")

    def _check_alive(self) -> None:
        if self._path is not self._explorer.path:
            # Kept by a cache of the code under test, say: its unknowns mean something else now.
            raise self._explorer.halt(Stopped("a value of an earlier run was used again", place()))

    def _need(self, what: str) -> NoReturn:
        raise self._explorer.halt(NeedsConcrete(f"{what} needs a concrete number", place()))


class SymbolicInt(Symbolic):
    """An integer known only as a polynomial in unknowns."""

    __slots__ = ("polynomial",)

    def __init__(self, explorer: Explorer, polynomial: Polynomial) -> None:
        super().__init__(explorer)
        self.polynomial = polynomial

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        # So that `isinstance(value, int)` holds. C code looks at the real type and is not fooled.
        return int

    # Arithmetic

    def _operand(self, other: Any, what: str) -> Polynomial | None:
        self._check_alive()
        if type(other) is SymbolicInt:
            other._check_alive()
            return other.polynomial
        if isinstance(other, int):
            return constant(int(other))
        if isinstance(other, float):
            self._need(f"{what} with a float")
        return None

    def _new(self, polynomial: Polynomial) -> SymbolicInt:
        return SymbolicInt(self._explorer, polynomial)

    def __add__(self, other: object) -> SymbolicInt:
        right = self._operand(other, "addition")
        return NotImplemented if right is None else self._new(add(self.polynomial, right))

    __radd__ = __add__

    def __sub__(self, other: object) -> SymbolicInt:
        right = self._operand(other, "subtraction")
        return NotImplemented if right is None else self._new(add(self.polynomial, right, -1))

    def __rsub__(self, other: object) -> SymbolicInt:
        left = self._operand(other, "subtraction")
        return NotImplemented if left is None else self._new(add(left, self.polynomial, -1))

    def __mul__(self, other: object) -> SymbolicInt:
        right = self._operand(other, "multiplication")
        if right is None:
            return NotImplemented
        if not right.is_constant and not self.polynomial.is_constant:
            self._path.note_factor(self.polynomial)
            self._path.note_factor(right)
        return self._new(multiply(self.polynomial, right))

    __rmul__ = __mul__

    def _divide(self, dividend: Polynomial, divisor: Polynomial) -> SymbolicInt:
        explorer = self._explorer
        if not explorer.decide(Constraint(add(divisor, ONE, -1), ">=")):
            if explorer.decide(Constraint(divisor, "==")):
                raise ZeroDivisionError("integer division or modulo by zero")
            dividend, divisor = scale(dividend, -1), scale(divisor, -1)
        with explorer.guarded():
            return self._new(self._path.floor_quotient(dividend, divisor))

    def __floordiv__(self, other: object) -> SymbolicInt:
        right = self._operand(other, "division")
        return NotImplemented if right is None else self._divide(self.polynomial, right)

    def __rfloordiv__(self, other: object) -> SymbolicInt:
        left = self._operand(other, "division")
        return NotImplemented if left is None else self._divide(left, self.polynomial)

    def _remainder(self, dividend: Polynomial, divisor: Polynomial) -> SymbolicInt:
        quotient = self._divide(dividend, divisor).polynomial
        return self._new(add(dividend, multiply(quotient, divisor), -1))

    def __mod__(self, other: object) -> SymbolicInt:
        right = self._operand(other, "modulo")
        return NotImplemented if right is None else self._remainder(self.polynomial, right)

    def __rmod__(self, other: object) -> SymbolicInt:
        left = self._operand(other, "modulo")
        return NotImplemented if left is None else self._remainder(left, self.polynomial)

    def __divmod__(self, other: object) -> tuple[SymbolicInt, SymbolicInt]:
        right = self._operand(other, "division")
        if right is None:
            return NotImplemented
        return self._divide(self.polynomial, right), self._remainder(self.polynomial, right)

    def __rdivmod__(self, other: object) -> tuple[SymbolicInt, SymbolicInt]:
        left = self._operand(other, "division")
        if left is None:
            return NotImplemented  # type: ignore[no-any-return]
        return self._divide(left, self.polynomial), self._remainder(left, self.polynomial)

    def __truediv__(self, other: object) -> SymbolicRatio:
        divisor = self._operand(other, "true division")
        if divisor is None:
            return NotImplemented
        low, high = self._path.interval(self._path.reduce(self.polynomial))
        exact = low is not None and high is not None and low >= -EXACT and high <= EXACT
        if not exact or not divisor.is_constant or divisor.constant not in POWERS_OF_TWO:
            self._need("true division")
        return SymbolicRatio(self, divisor.constant)

    def __rtruediv__(self, other: object) -> NoReturn:
        self._need("true division")

    def __pow__(self, other: object, modulus: object = None) -> SymbolicInt:
        exponent = self._operand(other, "a power")
        if exponent is None:
            return NotImplemented
        if not exponent.is_constant or not 0 <= exponent.constant <= HIGHEST_POWER:
            self._need(f"a power other than 0 to {HIGHEST_POWER}")
        result = self._new(ONE)
        for _ in range(exponent.constant):
            result = result * self
        return result if modulus is None else result % modulus

    def __rpow__(self, other: object) -> NoReturn:
        self._need("an exponent")

    def __lshift__(self, other: object) -> SymbolicInt:
        return self * self._power_of_two(other)

    def __rshift__(self, other: object) -> SymbolicInt:
        return self // self._power_of_two(other)

    def _power_of_two(self, exponent: object) -> int:
        places = self._operand(exponent, "a shift")
        if places is None or not places.is_constant:
            self._need("a shift by an unknown")
        if places.constant < 0:
            raise ValueError("negative shift count")
        return 1 << places.constant

    def __and__(self, other: object) -> SymbolicInt:
        mask = self._operand(other, "a bit operation")
        if mask is None or not mask.is_constant or mask.constant < 0 or mask.constant & (mask.constant + 1):
            self._need("a bit mask that is not all ones")
        return self % (mask.constant + 1)

    __rand__ = __and__

    def __or__(self, other: object) -> NoReturn:
        self._need("a bit operation")

    __ror__ = __xor__ = __rxor__ = __rlshift__ = __rrshift__ = __or__

    def __invert__(self) -> SymbolicInt:
        return -self - 1

    def __neg__(self) -> SymbolicInt:
        self._check_alive()
        return self._new(scale(self.polynomial, -1))

    def __pos__(self) -> SymbolicInt:
        return self

    __trunc__ = __floor__ = __ceil__ = conjugate = __pos__

    def __round__(self, digits: object = None) -> SymbolicInt:
        if digits is not None:
            self._need("rounding to digits")
        return self

    def __abs__(self) -> SymbolicInt:
        return self if self >= 0 else -self

    @property
    def numerator(self) -> SymbolicInt:
        """The integer itself, as `int` has it."""
        return self

    real = numerator
    denominator = 1
    imag = 0

    # Comparison

    def _compare(self, polynomial: Polynomial, relation: Relation, negated: bool = False) -> SymbolicBool:
        return SymbolicBool(self._explorer, Constraint(polynomial, relation), negated)

    def _difference(self, other: object) -> Polynomial | None:
        right = self._operand(other, "comparison")
        return None if right is None else add(self.polynomial, right, -1)

    def __ge__(self, other: object) -> SymbolicBool | bool:
        if _is_infinite(other):
            return other < 0
        difference = self._difference(other)
        return NotImplemented if difference is None else self._compare(difference, ">=")

    def __lt__(self, other: object) -> SymbolicBool | bool:
        if _is_infinite(other):
            return other > 0
        difference = self._difference(other)
        return NotImplemented if difference is None else self._compare(difference, ">=", negated=True)

    def __le__(self, other: object) -> SymbolicBool | bool:
        if _is_infinite(other):
            return other > 0
        difference = self._difference(other)
        return NotImplemented if difference is None else self._compare(scale(difference, -1), ">=")

    def __gt__(self, other: object) -> SymbolicBool | bool:
        if _is_infinite(other):
            return other < 0
        difference = self._difference(other)
        if difference is None:
            return NotImplemented
        return self._compare(scale(difference, -1), ">=", negated=True)

    def __eq__(self, other: object) -> bool:
        if _is_infinite(other):
            return False
        difference = self._difference(other)
        if difference is None:
            return NotImplemented
        return self._compare(difference, "==")  # type: ignore[return-value]

    def __ne__(self, other: object) -> bool:
        if _is_infinite(other):
            return True
        difference = self._difference(other)
        if difference is None:
            return NotImplemented
        return self._compare(difference, "==", negated=True)  # type: ignore[return-value]

    def __hash__(self) -> int:
        frame = sys._getframe(1)
        if frame.f_code.co_code[frame.f_lasti] in _LOOKUPS:
            keys = list(_keys_near(frame))
            # A plain integer has its own hash: where this one equals it, it must have the same.
            numbers = list(dict.fromkeys(key for key in keys if type(key) is int))
            if len(numbers) > HIGHEST_TABLE:
                self._need("looking up a key in a large table")
            for number in numbers:
                if self == number:
                    if any(type(key) is SymbolicInt for key in keys):
                        self._need("looking up a key among plain and symbolic ones")
                    return hash(number)
        return HASH

    # The number itself

    def known(self) -> int | None:
        """The number, where this path leaves only one."""
        self._check_alive()
        low, high = self._path.interval(self._path.reduce(self.polynomial))
        return low if low == high else None

    def evaluate(self, values: Sequence[int]) -> int:
        """The number when unknown i is ``values[i]``."""
        return self.polynomial.evaluate(values)

    def __bool__(self) -> bool:
        self._check_alive()
        return not self._explorer.decide(Constraint(self.polynomial, "=="))

    def _value(self, what: str) -> int:
        value = self.known()
        if value is None:
            self._need(what)
        return value

    def __index__(self) -> int:
        return self._value("an index or a C function")

    def __int__(self) -> int:
        return self._value("int()")

    def __float__(self) -> float:
        return float(self._value("float()"))

    def __getattr__(self, name: str) -> Any:
        if hasattr(int, name):
            self._need(f"int.{name}")
        raise AttributeError(f"'int' object has no attribute {name!r}")

    def __str__(self) -> str:
        names = self._path.names
        return self.polynomial.show(lambda number: names[number])

    __repr__ = __str__

    def __format__(self, spec: str) -> str:
        if spec not in ("", "d"):
            return format(self._value(f"the format {spec!r}"), spec)
        return str(self)


class SymbolicRatio(Symbolic):
    """The exact float that dividing by a power of two gives; only rounding it is known."""

    __slots__ = ("_dividend", "_divisor")

    def __init__(self, dividend: SymbolicInt, divisor: int) -> None:
        super().__init__(dividend._explorer)
        self._dividend = dividend
        self._divisor = divisor

    def __floor__(self) -> SymbolicInt:
        return self._dividend // self._divisor

    def __ceil__(self) -> SymbolicInt:
        return -(-self._dividend // self._divisor)

    def __trunc__(self) -> SymbolicInt:
        return self.__floor__() if self._dividend >= 0 else self.__ceil__()

    def __getattr__(self, name: str) -> Any:
        if hasattr(float, name):
            self._need(f"float.{name}")
        raise AttributeError(f"'float' object has no attribute {name!r}")


def _unknown_ratio(operation: str) -> Any:
    def needed(self: SymbolicRatio, *_: object) -> NoReturn:
        self._need(f"a fraction in {operation}")

    return needed


for _operation in (
    *("eq", "ne", "lt", "le", "gt", "ge", "bool", "hash", "float", "int", "index", "abs", "neg", "round"),
    *("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "floordiv", "mod", "pow", "str"),
):
    setattr(SymbolicRatio, f"__{_operation}__", _unknown_ratio(f"__{_operation}__"))


class SymbolicBool(Symbolic):
    """The truth of a constraint, decided when something depends on it."""

    __slots__ = ("_constraint", "_negated")

    def __init__(self, explorer: Explorer, constraint: Constraint, negated: bool = False) -> None:
        super().__init__(explorer)
        self._constraint = constraint
        self._negated = negated

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return bool

    def __bool__(self) -> bool:
        self._check_alive()
        return self._explorer.decide(self._constraint) != self._negated

    def evaluate(self, values: Sequence[int]) -> bool:
        """The truth value when unknown i is ``values[i]``."""
        return self._constraint.holds(values) != self._negated

    def assume(self) -> None:
        """Give up the path unless this is true; true from here on."""
        self._check_alive()
        self._explorer.assume(self._constraint.negated() if self._negated else self._constraint)

    def __index__(self) -> int:
        return int(bool(self))

    __int__ = __index__

    def __hash__(self) -> int:
        return hash(bool(self))

    def __eq__(self, other: object) -> bool:
        return bool(bool(self) == other)

    def __ne__(self, other: object) -> bool:
        return bool(bool(self) != other)

    def __invert__(self) -> int:
        return ~int(self)

    def __str__(self) -> str:
        return f"<{'not ' if self._negated else ''}{self._constraint.relation}>"

    __repr__ = __str__

    def __format__(self, spec: str) -> str:
        return format(bool(self), spec) if spec else str(self)


def _as_bool(operation: str) -> Any:
    def decided(self: SymbolicBool, *others: object) -> Any:
        return getattr(bool(self), operation)(*(bool(o) if type(o) is SymbolicBool else o for o in others))

    return decided


for _operation in (
    *("add", "radd", "sub", "rsub", "mul", "rmul", "floordiv", "rfloordiv", "mod", "rmod", "neg", "pos"),
    *("and", "rand", "or", "ror", "xor", "rxor", "lt", "le", "gt", "ge"),
):
    setattr(SymbolicBool, f"__{_operation}__", _as_bool(f"__{_operation}__"))


def _is_infinite(value: object) -> TypeGuard[float]:
    return type(value) is float and math.isinf(value)
