"""What comes of comparing two implementations."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kvconform.conformance.questions import Arguments


@dataclass(frozen=True)
class Difference:
    """One operation and kind on which the two differ, of a whole model in one ``aspect``.

    ``case`` holds the draws of the smallest input found, ``arguments`` the question itself;
    ``left`` and ``right`` are the answers in words. ``direction`` says which way memory or capacity
    goes from left to right, in one of the words of `kvconform.conformance.answers`; it is empty
    where neither does. ``safety`` holds a verdict of each side for each safety law that asks this
    operation.
    """

    operation: str
    kind: str
    case: dict[str, Any]
    arguments: Arguments
    left: str
    right: str
    direction: str
    aspect: str = ""
    safety: tuple[tuple[str, str, str], ...] = ()


@dataclass(frozen=True)
class Same:
    """One operation and kind on which no difference was found.

    ``verdict`` is proved or held. ``domain`` is what a proof covers, and ``formula`` the third one
    that both were proved equal to; for what was only sampled ``why`` says what kept it from being
    proved, where that was tried.
    """

    operation: str
    kind: str
    examples: int
    verdict: str = "held"
    formula: str = ""
    domain: str = ""
    why: str = ""
    aspect: str = ""


@dataclass(frozen=True)
class Unasked:
    """One operation and kind that was not compared: unsupported, inconclusive or broken, and why."""

    operation: str
    kind: str
    verdict: str
    why: str


@dataclass
class Comparison:
    """What came of comparing: see `compare`."""

    same: list[Same] = field(default_factory=list)
    different: list[Difference] = field(default_factory=list)
    not_asked: list[Unasked] = field(default_factory=list)
    only_left: list[str] = field(default_factory=list)
    only_right: list[str] = field(default_factory=list)
    complete: bool = False
