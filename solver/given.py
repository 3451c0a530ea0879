"""What a law may ask for, answered with unknowns: every value within the bounds at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvconform.properties.given import Bounds, Given, Rejected
from kvconform.reference.arithmetic import cdiv
from kvconform.reference.interface import Implementation
from kvconform.solver.explore import Explorer
from kvconform.solver.interpose import lift
from kvconform.solver.symbolic import SymbolicBool, SymbolicInt, fresh, fresh_flag

FLAGS = (False, True)


@dataclass(frozen=True)
class Draw:
    """One input: its name, its value on this path, and what it may be, for a person to read."""

    name: str
    value: Any
    domain: str


class SymbolicGiven(Given):
    """Draws unknowns; choices are tried one after the other, flags only where they matter.

    ``draws`` lists the inputs in the order in which the law asked for them.
    """

    def __init__(self, implementation: Implementation, kind: str, explorer: Explorer) -> None:
        super().__init__(implementation, kind)
        self.draws: list[Draw] = []
        self._explorer = explorer

    def draw_integer(self, name: str, bounds: Bounds) -> int:
        at_least, at_most, multiple_of, _ = bounds
        step = ""
        if _concrete(multiple_of) == 1:
            value: int = self._between(name, at_least, at_most)
        else:
            low = cdiv(at_least, multiple_of)
            high = None if at_most is None else at_most // multiple_of
            value = self._between(name, low, high) * multiple_of
            step = f", a multiple of {_show(multiple_of)}"
        reach = "up" if at_most is None else f"to {_show(at_most)}"
        self.draws.append(Draw(name, value, f"from {_show(at_least)} {reach}{step}"))
        return value

    def _between(self, name: str, at_least: int, at_most: int | None) -> Any:
        low, high = _concrete(at_least), None if at_most is None else _concrete(at_most)
        if low is not None and (at_most is None or high is not None):
            if high is not None and high < low:
                raise Rejected
            return fresh(self._explorer, name, low, high)
        # Counted from its least value, so that bounds on the difference are plain numbers.
        span = None if at_most is None else _concrete(at_most - at_least)
        if span is not None and span < 0:
            raise Rejected
        value: Any = at_least + fresh(self._explorer, name, 0, span)
        if at_most is not None and span is None:
            self.assume(value <= at_most)
        return value

    def draw_optional(self, name: str, bounds: Bounds) -> int | None:
        if self._explorer.pick(2) == 0:
            self.draws.append(Draw(name, None, "none"))
            return None
        return self.draw_integer(name, bounds)

    def choice(self, name: str, options: Sequence[Any]) -> Any:
        if tuple(options) == FLAGS and all(type(option) is bool for option in options):
            flag: Any = fresh_flag(self._explorer, name)
            self.draws.append(Draw(name, flag, "false or true"))
            return flag
        value = options[self._explorer.pick(len(options))]
        self.draws.append(Draw(name, value, f"'{value}'" if "," in str(value) else str(value)))
        return value

    def assume(self, condition: Any) -> None:
        if type(condition) is SymbolicBool:
            condition.assume()
        elif not condition:
            self.reject()

    def flag(self, name: str) -> Any:
        return self.choice(name, FLAGS)

    def alike(self, value: Any) -> Any:
        return lift(value, self._explorer)

    def case(self, values: Sequence[int]) -> dict[str, Any]:
        """The draws when unknown i is ``values[i]``."""
        return {draw.name: _evaluate(draw.value, values) for draw in self.draws}


def _show(number: int) -> str:
    known = _concrete(number)
    if known is not None and abs(known) >= 1024 and abs(known) & (abs(known) - 1) == 0:
        return f"{'-' if known < 0 else ''}2^{abs(known).bit_length() - 1}"
    return str(number)


def _concrete(value: Any) -> int | None:
    """The number, or None where a path leaves more than one."""
    if type(value) is SymbolicInt:
        return value.known()
    return int(value)


def _evaluate(value: Any, values: Sequence[int]) -> Any:
    return value.evaluate(values) if type(value) in (SymbolicInt, SymbolicBool) else value
