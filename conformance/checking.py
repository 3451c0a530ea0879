"""Laws as pytest's tests: what `kvconform.conformance.plugin` loads when it is asked for."""

from __future__ import annotations

import io
from collections.abc import Generator, Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from _pytest._code.code import ReprFileLocation, TerminalRepr
from _pytest._io import TerminalWriter
from kvconform.conformance.expectations import (
    BadExpectations,
    Expectations,
    judge,
    read_expectations,
)
from kvconform.conformance.implementations import AddressError, prepare
from kvconform.conformance.messages import Job
from kvconform.conformance.plugin import NAME
from kvconform.conformance.profiles import PROFILES
from kvconform.conformance.report.document import Finding, Result
from kvconform.conformance.report.words import describe_expected, name_pair
from kvconform.conformance.running import Bench, OpeningError
from kvconform.conformance.selection import SelectionError, find_pairs, find_severities
from kvconform.properties.law import Law

WIDTH = 100
"""Columns of what is told of a failure."""


FOUND = "kvconform"
"""The attribute of pytest's reports that holds what was found."""


UNLISTED = ("unlisted", "crash")
"""Faults that the failure itself tells already."""


class Told(TerminalRepr):
    """What is told of a failing law: the text of the terminal report, no traceback."""

    def __init__(self, text: str, message: str, location: tuple[str, int]) -> None:
        self.text = text
        self.reprcrash = ReprFileLocation(*location, message)

    def toterminal(self, tw: TerminalWriter) -> None:
        """Print the text as it is."""
        tw.line(self.text)


class Failure(Exception):
    """A law that fails its test: the text, and one line of it."""

    def __init__(self, text: str, message: str) -> None:
        super().__init__(message)
        self.text = text
        self.message = message


class Answer(msgspec.Struct, frozen=True):
    """What a test found, as it travels from pytest-xdist's workers."""

    result: Result
    version: str


class Checking:
    """One session that checks an implementation.

    Laws run in a worker process that this one keeps, so that neither an implementation that dies
    nor what it imports is felt here. Raises pytest.UsageError for options that mean nothing.
    """

    def __init__(self, config: pytest.Config) -> None:
        address = config.getoption("kv_implementation")
        profile = config.getoption("kv_profile")
        expect = config.getoption("kv_expect")
        if profile not in PROFILES:
            raise pytest.UsageError(f"--kv-profile: {profile!r} is none of {', '.join(PROFILES)}")
        self.today = datetime.now(UTC).date()
        self.seed = config.getoption("kv_seed")
        self.profile = PROFILES[profile]
        try:
            self.fail_on = find_severities(config.getoption("kv_fail_on"))
            self.listed = None if expect is None else read_expectations(expect)
            prepared = prepare(
                address, imports=config.getoption("kv_import"), python=config.getoption("kv_python")
            )
        except (SelectionError, BadExpectations, AddressError) as error:
            raise pytest.UsageError(f"kvconform: {error}") from error
        self.bench = Bench(
            Job(
                implementation=prepared,
                examples=self.profile.examples,
                seed=self.seed,
                seconds_per_run=self.profile.seconds_per_run,
            )
        )
        self.address = address
        self._answers: list[Answer] = []
        self._findings: tuple[Finding, ...] = ()

    def judge(self, answers: list[Answer], law: str | None = None) -> tuple[Result, list[Finding]]:
        """The last of the answers as it stands against the list, and where they all disagree with it.

        With a law only the entries about it count.
        """
        results = [answer.result for answer in answers]
        if self.listed is None:
            return results[-1], []
        listed = self.listed if law is None else _about(self.listed, law)
        judgement = judge(
            listed, results, version=answers[-1].version, today=self.today, fail_on=self.fail_on
        )
        return judgement.results[-1], list(judgement.findings)

    def pytest_report_header(self) -> str:
        """Say what is checked."""
        amount = f"profile {self.profile.name}, {self.profile.examples} examples, seed {self.seed}"
        against = f", against {self.listed.path}" if self.listed else ""
        return f"kvconform: {self.address}, {amount}{against}"

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Tell of a failure in the words of the terminal report, and send what was found along."""
        report = yield
        if isinstance(item, LawItem) and call.excinfo and isinstance(call.excinfo.value, Failure):
            report.longrepr = item.tell(call.excinfo.value)
        if isinstance(item, LawItem) and call.when == "setup" and item.answer is not None:
            # pytest-xdist hands on what it finds in a report, as long as it is text.
            vars(report)[FOUND] = msgspec.json.encode(item.answer).decode()
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep what was found, here or by a worker of pytest-xdist."""
        written = vars(report).get(FOUND)
        if written is not None:
            self._answers.append(msgspec.json.decode(written, type=Answer))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """End the worker, and find entries of the list that no single test can tell wrong."""
        self.bench.close()
        if not self._answers or hasattr(session.config, "workerinput"):
            return
        _, findings = self.judge(self._answers)
        told = {finding for answer in self._answers for finding in self.judge([answer], answer.result.law)[1]}
        self._findings = tuple(one for one in findings if one not in told or one.fault == "unknown")
        if self._findings and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print those entries."""
        if self._findings and self.listed is not None:
            terminalreporter.section(f"not as {self.listed.path} expects", red=True)
            for finding in self._findings:
                terminalreporter.line(finding.describe())


class Laws(pytest.File):
    """All laws."""

    def collect(self) -> Iterator[pytest.Item]:
        """A test for each law and kind."""
        for law, kind in find_pairs():
            name = name_pair(law.id, kind)
            # Given as text, as it comes back from pytest's cache of what failed last.
            yield LawItem.from_parent(self, name=name, nodeid=f"{self.nodeid}::{name}", law=law, kind=kind)


class LawItem(pytest.Item):
    """One law on one kind. What breaks is an error, what is violated a failure."""

    def __init__(self, *, law: Law, kind: str, **more: Any) -> None:
        super().__init__(**more)
        self.law = law
        self.kind = kind
        self.answer: Answer | None = None
        self._stderr = ""

    @property
    def checking(self) -> Checking:
        """The session's."""
        found = self.config.pluginmanager.get_plugin(NAME)
        assert isinstance(found, Checking)
        return found

    def setup(self) -> None:
        """Ask the law; one that breaks is no test of anything."""
        bench = self.checking.bench
        try:
            result, self._stderr = bench.ask(self.law, self.kind)
        except (AddressError, OpeningError) as error:
            pytest.exit(f"kvconform: {error}", returncode=pytest.ExitCode.USAGE_ERROR)
        assert bench.subject is not None
        self.answer = Answer(result, bench.subject.version)
        if result.verdict == "broken":
            judged, findings = self.checking.judge([self.answer], self.law.id)
            if judged.verdict == "broken":
                raise self._failure(result, [one for one in findings if one.fault != "unknown"])

    def runtest(self) -> None:
        """Tell what was found in pytest's words."""
        assert self.answer is not None
        result, findings = self.checking.judge([self.answer], self.law.id)
        findings = [finding for finding in findings if finding.fault != "unknown"]
        gates = result.severity in self.checking.fail_on
        if [finding for finding in findings if finding.fault not in UNLISTED]:
            raise self._failure(result, findings)
        if result.verdict == "unsupported":
            pytest.skip(f"unsupported: {result.message}")
        if result.verdict == "expected":
            pytest.xfail(f"expected: {describe_expected(result)}")
        if result.verdict in ("violated", "inconclusive"):
            if gates:
                raise self._failure(result, findings)
            pytest.xfail(f"{result.verdict}, reported only ({result.severity}): {result.message}")

    def reportinfo(self) -> tuple[str, int, str]:
        """Where the law is written."""
        code = self.law.check.__code__
        return code.co_filename, code.co_firstlineno - 1, self.name

    def tell(self, failure: Failure) -> Told:
        """The failure as pytest shows it."""
        path, line, _ = self.reportinfo()
        return Told(failure.text, failure.message, (path, line + 1))

    def _failure(self, result: Result, findings: list[Finding]) -> Failure:
        from kvconform.conformance.report.terminal import show_result
        from rich.console import Console

        written = io.StringIO()
        show_result(Console(file=written, width=WIDTH, highlight=False), result, self._stderr)
        lines = [line.rstrip() for line in written.getvalue().rstrip().splitlines()]
        differing = [finding.describe() for finding in findings if finding.fault not in UNLISTED]
        lines += differing
        message = differing[0] if differing else result.message
        return Failure("\n".join(lines), " ".join(message.split()))


def _about(listed: Expectations, law: str) -> Expectations:
    kept = [index for index, entry in enumerate(listed.entries) if entry.law == law]
    lines = tuple(listed.lines[index] for index in kept) if listed.lines else ()
    return Expectations(listed.path, tuple(listed.entries[index] for index in kept), lines)
