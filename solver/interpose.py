"""Standing between a law and the implementation under test."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any, cast

from kvconform.reference.interface import OPERATIONS, Implementation, Refused
from kvconform.solver.explore import Explorer
from kvconform.solver.polynomials import constant
from kvconform.solver.symbolic import SymbolicInt

Ask = Callable[..., Any]


def count_refusals(implementation: Implementation, observe: Callable[[], None]) -> Implementation:
    """The implementation, with ``observe`` called whenever it refuses."""

    def wrap(ask: Ask) -> Ask:
        def observed(*arguments: Any, **named: Any) -> Any:
            try:
                return ask(*arguments, **named)
            except Refused:
                observe()
                raise

        return observed

    return cast(Implementation, _Between(implementation, wrap))


def lift_numbers(implementation: Implementation, explorer: Explorer) -> Implementation:
    """The implementation, told every integer of a spec or deployment as a symbolic one.

    Code under test that puts fields in a set then meets no plain integer there, whose hash would
    differ from that of an equal symbolic one.
    """

    def wrap(ask: Ask) -> Ask:
        def lifted(*arguments: Any, **named: Any) -> Any:
            return ask(*lift(arguments, explorer), **lift(named, explorer))

        return lifted

    return cast(Implementation, _Between(implementation, wrap))


def lift(value: Any, explorer: Explorer) -> Any:
    """The value with every integer in lists, mappings, specs and deployments as a symbolic one."""
    if type(value) is int:
        return SymbolicInt(explorer, constant(value))
    if type(value) in (list, tuple):
        return type(value)(lift(item, explorer) for item in value)
    if isinstance(value, dict):
        return {key: lift(item, explorer) for key, item in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        before = {field.name: getattr(value, field.name) for field in fields(value)}
        lifted = {name: lift(old, explorer) for name, old in before.items() if type(old) in (int, tuple)}
        return replace(value, **lifted) if lifted else value
    return value


class _Between:
    """Hands out the implementation's own attributes, its operations wrapped."""

    def __init__(self, implementation: Implementation, wrap: Callable[[Ask], Ask]) -> None:
        self._implementation = implementation
        self._wrap = wrap

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._implementation, name)
        if name in OPERATIONS:
            attribute = self._wrap(attribute)
            setattr(self, name, attribute)
        return attribute
