"""What every form of a report says alike."""

from __future__ import annotations

import importlib
import re
import shlex
import textwrap
from collections.abc import Mapping, Sequence

from kvconform.conformance.exits import BROKEN, CONFORMS, INCOMPLETE, VIOLATED
from kvconform.conformance.report.document import VERDICTS, Asked, Report, Result, Subject
from kvconform.properties.law import CATALOGUE, NO_KIND, Law
from kvconform.properties.laws.device import DEVICE_LAWS, DeviceLaw
from kvconform.reference.revisions import describe

FAILURES = ("broken", "violated", "inconclusive")
"""Verdicts that are shown whole."""

ON_DEVICE = "device"
"""The engine of a run on real memory."""

SHORT_CASE = 10
"""Draws up to which a case is shown whole; a longer one without what is absent, false or zero."""


NOT_TEXT = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def clean(text: str) -> str:
    """The text without characters that neither XML nor HTML can hold."""
    return NOT_TEXT.sub("\N{REPLACEMENT CHARACTER}", text)


def describe_exit(report: Report) -> str:
    """What the exit code of a run means."""
    if report.exit == VIOLATED and report.findings:
        unlisted = [finding for finding in report.findings if finding.fault == "unlisted"]
        if len(unlisted) < len(report.findings):
            return "not as its list of expectations says"
    return {
        CONFORMS: "conforms",
        VIOLATED: "does not conform",
        INCOMPLETE: "inconclusive" if report.complete else "incomplete",
        BROKEN: "broken: the implementation, its adapter or a law fell over",
    }[report.exit]


def describe_amount(report: Report) -> str:
    """How much was run, and how it ended."""
    counted = f"{len(report.results)} of {report.selected} pairs"
    done = f"{counted} of law and kind accounted for"
    if report.shard is not None:
        done = f"shard {report.shard.number} of {report.shard.of}: {counted} accounted for"
    amount = f"profile {report.profile}, {report.examples} examples, seed {report.seed}"
    if report.engines == (ON_DEVICE,):
        amount = f"{report.examples} examples"
    if report.implementation.revisions:
        amount += f"; formulas of {describe(report.implementation.revisions)}"
    if report.questions:
        amount += f"; {report.questions:,} questions asked"
    return f"{done}; {amount}; exit {report.exit}"


def describe_pace(report: Report, seconds: float) -> str:
    """How fast another process was asked; empty where none was."""
    if not report.questions or not seconds:
        return ""
    return f"{report.questions:,} questions in {seconds:.1f} s: {report.questions / seconds:,.0f} a second"


def describe_subject(subject: Subject) -> str:
    """The address of an implementation, and what it calls itself where that says more."""
    more = [part for part in (subject.name, subject.version) if part and part not in subject.address]
    return f"{subject.address} ({' '.join(more)})" if more else subject.address


def find_sentence(law: str) -> str:
    """The law itself; empty for one that this version does not have."""
    found = find_law(law)
    return "" if found is None else found.sentence


def find_law(id: str) -> Law | DeviceLaw | None:
    """The law of that id; None for one that this version does not have, as an old report may."""
    # Laws register themselves when their module is imported.
    importlib.import_module("kvconform.properties.laws")
    return CATALOGUE.get(id) or DEVICE_LAWS.get(id)


def find_failures(report: Report) -> list[Result]:
    """The results to be shown whole: worst first, what fails the run before what is reported."""
    failures = [result for result in report.results if result.verdict in FAILURES]
    failures.sort(key=lambda one: (VERDICTS.index(one.verdict), one.severity not in report.fail_on))
    return failures


def rerun_line(report: Report, results: Sequence[Result]) -> str:
    """The command that asks only these results of one law, and so shows them in full one by one."""
    kinds = ",".join(result.kind for result in results)
    if report.engines == (ON_DEVICE,):
        device = report.implementation.address.removeprefix("device ")
        command = ["kvconform", "device", "--device", device, *report.implementation.options]
        return shlex.join([*command, "--laws", results[0].law])
    selected = ["--laws", results[0].law, "--kinds", kinds, "--seed", str(report.seed)]
    amount = ["--profile", report.profile, "--examples", str(report.examples)]
    subject = [report.implementation.address, *report.implementation.options]
    return shlex.join(["kvconform", "run", *subject, *selected, *amount])


def name_pair(law: str, kind: str) -> str:
    """A law and kind as ``law[kind]``."""
    return law if kind in ("", NO_KIND) else f"{law}[{kind}]"


def describe_case(case: Mapping[str, object]) -> list[str]:
    """One line per thing drawn: ``spec.block_size`` and its like stand together behind ``spec``."""
    shown = {
        name: value
        for name, value in case.items()
        if len(case) <= SHORT_CASE or value not in (None, False, 0, "none", "nothing")
    }
    things: dict[str, list[str]] = {}
    for name, value in shown.items():
        thing, _, field = name.rpartition(".")
        # The empty string would not be seen.
        things.setdefault(thing, []).append(f"{field}={value if value != '' else repr(value)}")
    lines = []
    for thing, fields in things.items():
        text = " ".join(fields)
        lines += textwrap.wrap(f"{thing}: {text}" if thing else text, 90, subsequent_indent="  ")
    return lines


def describe_asked(asked: Asked) -> str:
    """A question as it might be written in a program."""
    return f"{asked.operation}({asked.arguments})" if asked.arguments else asked.operation


def describe_result(result: Result) -> str:
    """A result as plain text: message, case, what was asked and the lines that reproduce it."""
    sections = {
        "case": describe_case(result.case),
        "asked": [f"{describe_asked(one)}  {one.location}  -> {one.answer}" for one in result.asked],
        "reproduce": [result.reproduce] if result.reproduce else [],
        "without kvconform": result.script.splitlines(),
    }
    lines = [result.message]
    for title, told in sections.items():
        if told:
            lines += [f"{title}:", *(f"  {line}" for line in told)]
    return "\n".join(lines)


def describe_expected(result: Result) -> str:
    """What is known of an expected violation; of a crash what it says, too."""
    known = result.known.describe() if result.known else ""
    if not result.crashed:
        return known
    crash = f"crashes: {' '.join(result.message.split())}"
    return f"{crash}; {known}" if known else crash


def describe_known(report: Report) -> list[tuple[str, list[str], str]]:
    """Known violations as law, kinds and what is known, those known by the same words together."""
    grouped: dict[tuple[str, str], list[str]] = {}
    for result in report.results:
        if result.verdict == "expected" and result.known is not None:
            grouped.setdefault((result.law, describe_expected(result)), []).append(result.kind)
    return [(law, kinds, known) for (law, known), kinds in grouped.items()]
