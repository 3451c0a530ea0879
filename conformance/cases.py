"""Recorded cases: the draws of one run of a law, read back and run again as they were."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from kvconform.properties.given import Bounds, Given
from kvconform.reference.interface import Implementation

Drawn = int | str | bool | None


class BadCase(Exception):
    """A case cannot be read, or is none of the law it names; one line says why."""


class Case(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A law, the kind it is about and the value of every draw by its name."""

    law: str
    kind: str
    given: dict[str, Drawn]


class ReplayGiven(Given):
    """Answers every draw from a recorded case; call `finish` once the law has run.

    Raises BadCase for a draw that the case lacks or that lies outside what the law allows.
    """

    def __init__(self, implementation: Implementation, kind: str, case: Mapping[str, Drawn]) -> None:
        super().__init__(implementation, kind)
        self._case = case
        self._unused = set(case)

    def draw_integer(self, name: str, bounds: Bounds) -> int:
        at_least, at_most, multiple_of, _ = bounds
        value = self._take(name)
        if type(value) is not int:
            raise BadCase(f"{name}: wanted an integer, the case has {json.dumps(value)}")
        if value < at_least:
            raise BadCase(f"{name}: wanted at least {at_least}, the case has {value}")
        if at_most is not None and value > at_most:
            raise BadCase(f"{name}: wanted at most {at_most}, the case has {value}")
        if value % multiple_of:
            raise BadCase(f"{name}: wanted a multiple of {multiple_of}, the case has {value}")
        return value

    def draw_optional(self, name: str, bounds: Bounds) -> int | None:
        if name in self._case and self._case[name] is None:
            self._take(name)
            return None
        return self.draw_integer(name, bounds)

    def choice(self, name: str, options: Sequence[Any]) -> Any:
        value = self._take(name)
        for option in options:
            # True == 1, but a case that says one means one.
            if type(option) is type(value) and option == value:
                return option
        allowed = ", ".join(json.dumps(option) for option in options)
        raise BadCase(f"{name}: wanted one of {allowed}; the case has {json.dumps(value)}")

    def finish(self) -> None:
        """Raise BadCase if the case holds draws that the law did not ask for."""
        if self._unused:
            raise BadCase(f"{', '.join(sorted(self._unused))}: in the case, but not asked for by the law")

    def _take(self, name: str) -> Drawn:
        if name not in self._case:
            raise BadCase(f"{name}: missing from the case")
        self._unused.discard(name)
        return self._case[name]


def read_case(text: str) -> Case:
    """Read a case given as JSON, as the path of a file that holds it, or as ``-`` for stdin.

    Raises BadCase when it cannot be read or is no case.
    """
    if text.lstrip().startswith("{"):
        source, written = "the case", text
    elif text == "-":
        source, written = "the case on stdin", sys.stdin.read()
    else:
        source = text
        try:
            written = Path(text).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else "not a text file"
            raise BadCase(f"{text}: cannot be read as a case: {why}") from error
    try:
        return msgspec.json.decode(written, type=Case)
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise BadCase(f"{source}: {error}") from error


def reproduce_line(
    address: str, law: str, kind: str, given: Mapping[str, Drawn], options: Sequence[str] = ()
) -> str:
    """The command that runs the case again, to be pasted into a shell as it is.

    `options` are what goes with the address.
    """
    case = json.dumps({"law": law, "kind": kind, "given": dict(given)}, separators=(",", ":"))
    return shlex.join(["kvconform", "replay", address, *options, case])
