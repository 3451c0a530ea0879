"""What the checks found, written down as it happens: a line of JSON for each thing, for other programs.

The first line, ``collected``, names the device and every check with its laws and kind. Then each
check is ``started`` and ``done``, so that of a run that is interrupted, or whose process a device
takes down, it is known how far it came. The last line, ``finished``, holds the counts.
"""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from kvconform.properties.law import NO_KIND, Violation

if TYPE_CHECKING:
    from kvconform.gpu_checks.plugin import Tally

PACKAGE = "kvconform.gpu_checks"
LONGEST = 600
"""Characters of a message that are kept."""

VIOLATIONS: tuple[type[BaseException], ...] = (Violation, AssertionError, pytest.fail.Exception)
"""What a check raises when what it checks does not hold; anything else, it fell over."""


def laws_of(item: pytest.Item) -> list[str]:
    """The ids of the laws that a check is of."""
    return [law for marker in item.iter_markers("law") for law in marker.args]


def kind_of(item: pytest.Item) -> str:
    """The name of the codec that a check is about, ``-`` where it is about none."""
    codec = getattr(item, "callspec", None) and item.callspec.params.get("codec")  # type: ignore[attr-defined]
    return codec.name if codec else NO_KIND


def name_of(item: pytest.Item) -> str:
    """The check as ``pytest --pyargs`` takes it."""
    return f"{PACKAGE}.{item.path.stem}::{item.name}"


class Recorder:
    """Writes a run down, as a plugin of pytest.

    ``device`` says what is known of the device. Only these ``laws`` are named, all where empty.
    """

    def __init__(self, path: Path, device: dict[str, str], laws: frozenset[str], tally: Tally) -> None:
        self._file = path.open("w", encoding="utf-8", buffering=1)
        self._device = device
        self._laws = laws
        self._tally = tally
        self._outcome: dict[str, str] = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """The device, and what is going to be checked."""
        checks = [
            {
                "check": name_of(item),
                "laws": [law for law in laws_of(item) if not self._laws or law in self._laws],
                "kind": kind_of(item),
            }
            for item in session.items
        ]
        self._write({"event": "collected", "device": self._device, "checks": checks})

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """A check from its start to its end; one that is interrupted has none."""
        self._write({"event": "started", "check": name_of(item)})
        tried = self._tally.examples
        self._outcome = {"outcome": "held", "message": ""}
        answer = yield
        examples = max(1, self._tally.examples - tried)
        self._write({"event": "done", "check": name_of(item), "examples": examples, **self._outcome})
        return answer

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
        """How each part of a check went; the first that did not go well counts."""
        if call.excinfo is not None and self._outcome["outcome"] == "held":
            self._outcome = _outcome(call.excinfo.value)
        return (yield)

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """The counts."""
        self._write({"event": "finished", "exit": int(exitstatus), "counts": self._tally.lines()})
        self._file.close()

    def _write(self, record: dict[str, Any]) -> None:
        self._file.write(json.dumps(record) + "\n")


def _outcome(error: BaseException) -> dict[str, str]:
    message = " ".join(str(error).split())[:LONGEST]
    if isinstance(error, pytest.skip.Exception):
        return {"outcome": "skipped", "message": message}
    if isinstance(error, VIOLATIONS):
        return {"outcome": "violated", "message": message}
    return {"outcome": "broken", "message": f"{type(error).__name__}: {message}"}
