"""An engine without a fault that notes what it is asked: where a faulty one would answer otherwise.

Most faults change few answers. A law that a miniature would give no other answer than an engine
without a fault runs alike on both, so it need not be run again for the miniature.
"""

from __future__ import annotations

from functools import cache
from types import FunctionType
from typing import Any

from kvconform.conformance.miniatures import miniature
from kvconform.conformance.miniatures.engine import Engine

Question = tuple[str, Any, Any]
"""An operation's name and what it was handed, by position and by name; hashable."""

MORE_THAN_ANSWERS = ("register_kv_cache_spec", "merge_side_effects")
"""Operations after which an equal answer does not show that nothing differs."""


class Listening(Engine):
    """Without a fault, noting every question that is put to it, by a law or by itself."""

    def __init__(self) -> None:
        self.asked: dict[Question, None] = {}
        super().__init__()

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if name.startswith("__") or not isinstance(getattr(type(self), name, None), FunctionType):
            return value
        asked = self.asked

        def ask(*values: Any, **named: Any) -> Any:
            asked[name, hashable(values), hashable(named)] = None
            return value(*values, **named)

        return ask


def hashable(value: Any) -> Any:
    """A value with its mappings and lists as what can be hashed; `handed` makes them again."""
    if isinstance(value, dict):
        return (dict, *((name, hashable(each)) for name, each in value.items()))
    if isinstance(value, list | tuple):
        return (type(value), *(hashable(each) for each in value))
    return value


def handed(value: Any) -> Any:
    """The value that was made hashable, its mappings and lists new ones."""
    if not isinstance(value, tuple):
        return value
    made, *parts = value
    if made is dict:
        return {name: handed(each) for name, each in parts}
    return made(handed(each) for each in parts)


def answer(engine: Engine, question: Question) -> Any:
    """What an engine says to a question, be it by raising, and what becomes of what it was handed."""
    name, values, named = question
    values, named = handed(values), handed(named)
    try:
        said = getattr(engine, name)(*values, **named)
    except Exception as error:
        said = (type(error), str(error))
    return said, values, named


@cache
def right_answer(question: Question) -> Any:
    return answer(Engine(), question)


@cache
def made(name: str) -> Any:
    return miniature(name)


@cache
def overridden(name: str) -> frozenset[str]:
    """The operations and steps that a miniature has of its own."""
    classes = type(made(name)).__mro__
    own = {attribute for each in classes[: classes.index(Engine)] for attribute in vars(each)}
    return frozenset(attribute for attribute in own if callable(getattr(made(name), attribute, None)))


@cache
def answers_alike(name: str, question: Question) -> bool:
    return bool(answer(made(name), question) == right_answer(question))


def may_differ(name: str, asked: frozenset[Question]) -> bool:
    """Whether the miniature may fail where an engine without a fault was asked these questions."""
    own = overridden(name)
    theirs = [question for question in asked if question[0] in own]
    if theirs and any(question[0] in MORE_THAN_ANSWERS for question in asked):
        return True
    return not all(answers_alike(name, question) for question in theirs)
