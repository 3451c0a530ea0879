"""Known violations, listed in a TOML file that belongs to the implementation's repository.

Each entry is a table ``[[expected]]``: the law, the kinds, a part of the message, and what is known
about it. An exception that the implementation raises can be listed too, as a crash. What is listed
and still so does not fail a run; everything else that differs does.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated

import msgspec
from kvconform.conformance.report.document import Finding, Known, Report, Result, exit_code
from kvconform.conformance.selection import find_laws, near
from kvconform.properties.law import NO_KIND, Law
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

Text = Annotated[str, msgspec.Meta(min_length=1)]


class BadExpectations(Exception):
    """A list of expectations cannot be read; one line says why."""


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A violation that is known.

    `kind` is one kind or several, or a glob such as ``*``; a glob stands for those of the law's
    kinds on which it is violated, a name for a violation on that kind. `message` is a part of what
    the violation says. With `crash` it is an exception of the implementation's own instead of a
    wrong answer. `release` is a version specifier: for other releases the entry says nothing.
    `until` is the last day on which the violation is excused.
    """

    law: Text
    message: Text
    kind: Text | Annotated[tuple[Text, ...], msgspec.Meta(min_length=1)] = "*"
    crash: bool = False
    release: str = ""
    issue: str = ""
    owner: str = ""
    until: date | None = None
    reason: str = ""

    def patterns(self) -> tuple[str, ...]:
        """The kinds, names or globs."""
        return (self.kind,) if isinstance(self.kind, str) else self.kind

    def covers(self, law: str, kind: str) -> bool:
        """Whether the entry is about the law and kind."""
        return law == self.law and any(fnmatchcase(kind, pattern) for pattern in self.patterns())

    def matches(self, result: Result) -> bool:
        """Whether the violation, or the crash, is the one that it says."""
        return self.crash == result.crashed and self.message in result.message

    def describe_message(self) -> str:
        """What it wants the violation to say."""
        return f"a crash with {self.message!r}" if self.crash else repr(self.message)

    def is_expired(self, today: date) -> bool:
        """Whether its last day is over."""
        return self.until is not None and today > self.until

    def known(self) -> Known:
        """What a report shows of it."""
        return Known(self.issue, self.owner, self.until.isoformat() if self.until else "", self.reason)


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    expected: tuple[Entry, ...] = ()


class Expectations(msgspec.Struct, frozen=True):
    """The entries of one file, with the line of each."""

    path: str
    entries: tuple[Entry, ...] = ()
    lines: tuple[int, ...] = ()

    def where(self, index: int) -> str:
        """The entry's place as ``file:line``."""
        return f"{self.path}:{self.lines[index]}" if self.lines else f"{self.path}: entry {index + 1}"


class Judgement(msgspec.Struct, frozen=True):
    """Results held against a list: listed violations are `expected`; `findings` is what differs.

    `standing` has, for each entry, what became of each of its patterns: other (not this release),
    unasked, met, changed, holds, unmatched or unknown.
    """

    results: tuple[Result, ...]
    findings: tuple[Finding, ...]
    standing: tuple[dict[str, str], ...]


def read_expectations(path: str) -> Expectations:
    """Read a list. Raises BadExpectations when the file cannot be read or holds anything else."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise BadExpectations(f"{path}: the expectations cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BadExpectations(f"{path}: the expectations are not UTF-8 text") from error
    return parse_expectations(text, path)


def parse_expectations(text: str, path: str) -> Expectations:
    """Read a list from its text; `path` is what it is called. Raises BadExpectations."""
    try:
        entries = msgspec.toml.decode(text, type=_File).expected
    except msgspec.DecodeError as error:
        raise BadExpectations(f"{path}: {error}") from error
    for number, entry in enumerate(entries, 1):
        try:
            SpecifierSet(entry.release)
        except InvalidSpecifier as error:
            raise BadExpectations(
                f"{path}: entry {number}: release {entry.release!r} is no version specifier such as >=1.2"
            ) from error
    lines = [
        number
        for number, line in enumerate(text.splitlines(), 1)
        if re.match(r"\s*\[\[\s*expected\s*\]\]", line)
    ]
    # Tables may be written in other ways, too; then entries are numbered instead.
    return Expectations(path, entries, tuple(lines) if len(lines) == len(entries) else ())


def judge(
    listed: Expectations,
    results: Sequence[Result],
    *,
    version: str,
    today: date,
    fail_on: Sequence[str],
) -> Judgement:
    """Hold results against a list. `version` is the implementation's, to compare releases with.

    Entries about what was not asked are left alone. Violations of severities outside `fail_on`
    need no entry.
    """
    return _Judge(listed, results, version, today, fail_on).judge()


def hold_against(listed: Expectations, report: Report, today: date) -> tuple[Report, Judgement]:
    """The report as it stands against a list, its exit code too, and how that was judged."""
    judgement = judge(
        listed,
        report.results,
        version=report.implementation.version,
        today=today,
        fail_on=report.fail_on,
    )
    code = exit_code(
        judgement.results,
        fail_on=report.fail_on,
        complete=report.complete,
        findings=judgement.findings,
    )
    held = msgspec.structs.replace(
        report,
        results=judgement.results,
        expectations=listed.path,
        findings=judgement.findings,
        exit=code,
    )
    return held, judgement


class _Judge:
    def __init__(
        self,
        listed: Expectations,
        results: Sequence[Result],
        version: str,
        today: date,
        fail_on: Sequence[str],
    ) -> None:
        self._listed = listed
        # What another list once excused is a violation again.
        self._results = tuple(_as_found(result) for result in results)
        self._today = today
        self._fail_on = fail_on
        self._laws = {law.id: law for law in find_laws()}
        self._findings: list[Finding] = []
        self._applying = [
            index for index, entry in enumerate(listed.entries) if self._applies(index, entry, version)
        ]
        self._met: set[tuple[int, str]] = set()
        self._changed: set[tuple[int, str]] = set()
        self._expired: set[int] = set()

    def judge(self) -> Judgement:
        judged = tuple(self._judge_result(result) for result in self._results)
        standing = tuple(self._judge_entry(index) for index in range(len(self._listed.entries)))
        return Judgement(judged, tuple(self._findings), standing)

    def _applies(self, index: int, entry: Entry, version: str) -> bool:
        if not entry.release:
            return True
        try:
            return SpecifierSet(entry.release).contains(Version(version), prereleases=True)
        except InvalidVersion:
            message = f"release {entry.release} cannot be compared with version {version!r}"
            self._find("unknown", entry.law, "", message, index)
            return False

    def _judge_result(self, result: Result) -> Result:
        if not is_listable(result):
            return result
        entries = self._listed.entries
        covering = [index for index in self._applying if entries[index].covers(result.law, result.kind)]
        matching = [index for index in covering if entries[index].matches(result)]
        self._met.update((index, result.kind) for index in matching)
        for index in matching:
            if not entries[index].is_expired(self._today):
                return msgspec.structs.replace(result, verdict="expected", known=entries[index].known())
        if matching:
            for index in set(matching) - self._expired:
                self._expired.add(index)
                until = entries[index].until
                self._find("expired", result.law, result.kind, f"was excused until {until}", index)
        elif covering:
            self._changed.update((index, result.kind) for index in covering)
            message = f"wanted {entries[covering[0]].describe_message()} in {_line(result.message)!r}"
            self._find("changed", result.law, result.kind, message, covering[0])
        elif result.crashed:
            # It is broken, whatever the severity.
            self._find("crash", result.law, result.kind, _line(result.message))
        elif result.severity in self._fail_on:
            self._find("unlisted", result.law, result.kind, _line(result.message))
        return result

    def _judge_entry(self, index: int) -> dict[str, str]:
        entry = self._listed.entries[index]
        patterns = entry.patterns()
        law = self._laws.get(entry.law)
        if law is None:
            self._find("unknown", entry.law, "", f"no such law{near(entry.law, [*self._laws])}", index)
            return dict.fromkeys(patterns, "unknown")
        if index not in self._applying:
            # Where that cannot be told, the entry may well be about another release.
            return dict.fromkeys(patterns, "other")
        return {pattern: self._judge_pattern(index, law, pattern) for pattern in patterns}

    def _judge_pattern(self, index: int, law: Law, pattern: str) -> str:
        entry = self._listed.entries[index]
        kinds = [kind for kind in law.kinds if fnmatchcase(kind, pattern)]
        if not kinds:
            about = "no kind" if law.kinds == (NO_KIND,) else ", ".join(law.kinds)
            self._find("unknown", law.id, pattern, f"the law is not about it, but about {about}", index)
            return "unknown"
        asked = [one for one in self._results if one.law == law.id and one.kind in kinds]
        if any((index, one.kind) in self._met for one in asked):
            return "met"
        if any((index, one.kind) in self._changed for one in asked):
            return "changed"
        # A glob may stand for a kind that this run leaves out; what broke says nothing either way.
        violated = [one for one in asked if is_listable(one)]
        fallen = [one for one in asked if one.verdict in ("broken", "inconclusive") and one not in violated]
        if len(asked) < len(kinds) or fallen:
            return "unasked"
        held = [one for one in asked if one.verdict in ("held", "proved")]
        if violated:
            message = f"wanted {entry.describe_message()} in {_line(violated[0].message)!r}"
            self._find("unmatched", law.id, pattern, message, index)
            return "unmatched"
        if held:
            examples = sum(one.examples for one in held)
            how = "is proved" if held[0].verdict == "proved" else f"holds on {examples} examples"
            self._find("holds", law.id, pattern, f"{how}; take the entry off the list", index)
            return "holds"
        self._find("unmatched", law.id, pattern, f"unsupported: {_line(asked[0].message)}", index)
        return "unmatched"

    def _find(self, fault: str, law: str, kind: str, message: str, index: int | None = None) -> None:
        entry = "" if index is None else self._listed.where(index)
        self._findings.append(Finding(fault, law, "" if kind == "*" else kind, message, entry))


def is_listable(result: Result) -> bool:
    """Whether a list can excuse it: a wrong answer, or an exception of the implementation's own.

    Not an adapter or a process that broke: behind those nobody knows what the implementation says.
    """
    return result.verdict == "violated" or (result.verdict == "broken" and result.crashed)


def _as_found(result: Result) -> Result:
    if result.verdict != "expected":
        return result
    return msgspec.structs.replace(result, verdict="broken" if result.crashed else "violated", known=None)


def _line(text: str) -> str:
    return " ".join(text.split())
