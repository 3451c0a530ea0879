"""Watching what a law asks of an implementation, so that a failure can name it."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, cast

from kvconform.reference.interface import OPERATIONS, Implementation, Refused, Unsupported

QUESTION = "<question>"
"""The file name under which an adapter compiles what it asks."""


class Unanswered:
    """Stands for the answer of a call that has not returned."""


UNANSWERED = Unanswered()


@dataclass
class Call:
    """One question: the operation, its arguments by name, and the answer or what was raised."""

    operation: str
    arguments: dict[str, Any]
    answer: object = UNANSWERED

    def describe_arguments(self) -> str:
        """The arguments that are numbers or strings."""
        shown = (
            f"{name}={value!r}" for name, value in self.arguments.items() if isinstance(value, str | int)
        )
        return ", ".join(shown)

    def describe(self) -> str:
        """The answer in a few words."""
        if self.answer is UNANSWERED:
            return "no answer"
        if isinstance(self.answer, Refused):
            return f"refused: {self.answer}"
        if isinstance(self.answer, Unsupported):
            return f"unsupported: {self.answer}"
        if isinstance(self.answer, BaseException):
            return f"raised {type(self.answer).__name__}: {self.answer}"
        try:
            return _brief(self.answer).encode(errors="backslashreplace").decode()
        except Exception as error:
            # Printing it runs code under test, too.
            return f"a {type(self.answer).__name__} that cannot be printed: {type(error).__name__}"


def _brief(answer: object) -> str:
    """A spec without the fields that say nothing of their own; anything else as it prints."""
    if isinstance(answer, tuple | list):
        return f"({', '.join(map(_brief, answer))})"
    if not is_dataclass(answer) or isinstance(answer, type):
        return str(answer)
    shown = (
        f"{field.name}={_brief(getattr(answer, field.name))}"
        for field in fields(answer)
        if getattr(answer, field.name) not in (None, field.default)
    )
    return f"{type(answer).__name__}({', '.join(shown)})"


def watch(implementation: Implementation, before: Callable[[str], None]) -> Implementation:
    """The implementation, with `before` told the name of each operation about to be asked."""

    def wrap(operation: str, asked: Callable[..., Any]) -> Callable[..., Any]:
        def ask(*arguments: Any, **named: Any) -> Any:
            before(operation)
            return asked(*arguments, **named)

        return ask

    return cast(Implementation, _Proxy(implementation, wrap))


def record(implementation: Implementation, calls: list[Call]) -> Implementation:
    """The implementation, with each question and its answer appended to `calls`."""

    def wrap(operation: str, asked: Callable[..., Any]) -> Callable[..., Any]:
        def ask(*arguments: Any, **named: Any) -> Any:
            call = Call(operation, _by_name(operation, arguments, named))
            calls.append(call)
            try:
                call.answer = asked(*arguments, **named)
            except Exception as error:
                call.answer = error
                raise
            return call.answer

        return ask

    return cast(Implementation, _Proxy(implementation, wrap))


def is_crash(raised: BaseException | None, calls: Sequence[Call]) -> bool:
    """Whether the implementation raised it over the last question: not the law, nor an adapter."""
    if raised is None or not calls or calls[-1].answer is not raised:
        return False
    # A process that says it fell over is taken at its word; what else it may write is its adapter's.
    if hasattr(raised, "last_words"):
        from kvconform.conformance.process import Malformed

        return not isinstance(raised, Malformed)
    file = traceback.extract_tb(raised.__traceback__)[-1].filename
    return file != QUESTION and not Path(file).is_relative_to(Path(__file__).parent)


class _Proxy:
    """Hands out the implementation's own attributes, with its operations wrapped once each."""

    def __init__(
        self, implementation: Implementation, wrap: Callable[[str, Callable[..., Any]], Callable[..., Any]]
    ) -> None:
        self._implementation = implementation
        self._wrap = wrap

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._implementation, name)
        if name in OPERATIONS:
            attribute = self._wrap(name, attribute)
            setattr(self, name, attribute)
        return attribute


@cache
def _signature(operation: str) -> inspect.Signature:
    return inspect.signature(getattr(Implementation, operation))


def _by_name(operation: str, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> dict[str, Any]:
    bound = _signature(operation).bind(None, *arguments, **named).arguments
    return {name: value for name, value in bound.items() if name != "self"}
