"""The JSON report: what other programs read (DESIGN: `format` 1)."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from pathlib import Path

import msgspec
from kvconform.conformance.cases import Drawn
from kvconform.conformance.exits import BROKEN, CONFORMS, INCOMPLETE, VIOLATED
from kvconform.properties.law import NO_KIND

FORMAT = 1

VERDICTS = ("broken", "violated", "inconclusive", "expected", "unsupported", "held", "proved")
"""Every verdict, worst first."""

FAULTS = {
    "unlisted": "unlisted violation",
    "crash": "unlisted crash",
    "changed": "changed message",
    "holds": "listed law holds",
    "expired": "expired entry",
    "unmatched": "unmatched entry",
    "unknown": "unknown entry",
}
"""What can be wrong between a run and its list of expectations, in words."""


class Asked(msgspec.Struct, frozen=True):
    """One question of a failing run: the operation, where it is defined, what came back.

    `arguments` are those that a line has room for: numbers and names, no specs.
    """

    operation: str
    location: str
    answer: str
    arguments: str = ""


class Known(msgspec.Struct, frozen=True):
    """What a list of expectations says of a violation that it expects."""

    issue: str = ""
    owner: str = ""
    until: str = ""
    reason: str = ""

    def describe(self) -> str:
        """All of it in one line."""
        until = f"until {self.until}" if self.until else ""
        return "; ".join(part for part in (self.reason, self.issue, self.owner, until) if part)


class Finding(msgspec.Struct, frozen=True):
    """Where a run and its list of expectations disagree; each fails the run.

    `fault` is one of `FAULTS`; `entry` is the ``file:line`` of the entry, where there is one.
    """

    fault: str
    law: str
    kind: str
    message: str
    entry: str = ""

    def describe(self) -> str:
        """The disagreement in one line."""
        about = self.law if self.kind in ("", NO_KIND) else f"{self.law} {self.kind}"
        line = f"{FAULTS[self.fault]}: {about}: {self.message}"
        return f"{self.entry}: {line}" if self.entry else line


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about one law and one kind.

    `message` says got and wanted, what is missing, or what went wrong; `case` holds the draws of
    the failing run; `domain` is the range of inputs that a proof covers; `script` shows the case
    without kvconform where the implementation can write that; `known` is what is known of an
    expected violation. `crashed` says that the implementation itself raised an exception over a
    question, and over the same one again.
    """

    law: str
    kind: str
    severity: str
    verdict: str
    engines: tuple[str, ...] = ()
    examples: int = 0
    domain: str = ""
    message: str = ""
    case: dict[str, Drawn] = {}
    reproduce: str = ""
    asked: tuple[Asked, ...] = ()
    script: str = ""
    known: Known | None = None
    crashed: bool = False


class Subject(msgspec.Struct, frozen=True):
    """The implementation that was run.

    `options` are what went with its address, `revisions` the earlier formulas that it declares.
    """

    address: str
    name: str
    version: str
    options: tuple[str, ...] = ()
    revisions: tuple[str, ...] = ()


class Shard(msgspec.Struct, frozen=True):
    """One of several parts of a run: the `number`th, from 1, of so many."""

    number: int
    of: int


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """One run.

    `laws` and `kinds` are what was selected, empty for every kind, and `shard` the part of it
    that was run; `selected` counts the pairs of law and kind that were to be judged, and
    `complete` says that each has its result. `stderr` holds what was printed during broken laws,
    by ``law kind``. `questions` counts what was asked of another process: 0 where the code runs in
    kvconform's own. `expectations` is the list that the run was held against, if any, and
    `findings` are where they disagree.
    """

    format: int = FORMAT
    kvconform: str
    implementation: Subject
    seed: int
    profile: str
    examples: int
    fail_on: tuple[str, ...]
    laws: str = "*"
    kinds: str = ""
    engines: tuple[str, ...] = ("sample",)
    shard: Shard | None = None
    selected: int
    results: tuple[Result, ...]
    questions: int = 0
    stderr: dict[str, str] = {}
    expectations: str = ""
    findings: tuple[Finding, ...] = ()
    complete: bool
    exit: int


def exit_code(
    results: tuple[Result, ...],
    *,
    fail_on: tuple[str, ...],
    complete: bool,
    findings: tuple[Finding, ...] = (),
) -> int:
    """The exit code of a run.

    4 if anything broke, else 1 if a law of a severity in `fail_on` is violated or the run
    disagrees with its list of expectations, else 3 if the run is incomplete or such a law
    inconclusive, else 0.
    """
    gating = {result.verdict for result in results if result.severity in fail_on}
    if any(result.verdict == "broken" for result in results):
        return BROKEN
    if "violated" in gating or findings:
        return VIOLATED
    if "inconclusive" in gating or not complete:
        return INCOMPLETE
    return CONFORMS


def encode(report: Report) -> bytes:
    """The report as indented JSON with a final newline."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n"


class BadReport(Exception):
    """A file is no report of this format; one line says why."""


def read_report(path: str) -> Report:
    """The report in a JSON file. Raises BadReport when it cannot be read or is none."""
    try:
        report = msgspec.json.decode(Path(path).read_bytes(), type=Report)
    except OSError as error:
        raise BadReport(f"{path}: cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadReport(f"{path}: not a report of kvconform run: {error}") from error
    if report.format != FORMAT:
        raise BadReport(f"{path}: format {report.format}, this version reads format {FORMAT}")
    return report


class Destination:
    """A file that a report will be written to, whole or not at all.

    Made before a run, so that a run is not begun whose report could not be kept: raises OSError
    when the path cannot be written. What is not a regular file (a pipe, /dev/null) is written
    straight into.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(os.path.realpath(path))
        self._mode = _mode_of(self.path)
        self._special = path.exists() and not path.is_file()
        if self._special:
            if path.is_dir():
                raise IsADirectoryError(21, os.strerror(21), str(path))
            self.path = path
            return
        if self.path.exists() and not os.access(self.path, os.W_OK):
            raise PermissionError(13, os.strerror(13), str(path))
        handle, self._scratch = self._reserve()
        os.close(handle)

    def write(self, content: bytes) -> None:
        """Put the content in place. Raises OSError, and leaves the old file, if it cannot."""
        if self._special:
            self.path.write_bytes(content)
            return
        try:
            scratch = Path(self._scratch)
            scratch.write_bytes(content)
            scratch.chmod(self._mode)
            scratch.replace(self.path)
        finally:
            self.release()

    def release(self) -> None:
        """Remove what is not in place yet."""
        if not self._special:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._scratch)

    def _reserve(self) -> tuple[int, str]:
        return tempfile.mkstemp(prefix=f".{self.path.name}.", dir=self.path.parent)


def _mode_of(path: Path) -> int:
    """The permissions of the file, or those that a new one gets."""
    try:
        return stat.S_IMODE(path.stat().st_mode)
    except OSError:
        mask = os.umask(0)
        os.umask(mask)
        return 0o666 & ~mask
