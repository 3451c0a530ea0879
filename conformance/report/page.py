"""A report as one page that needs nothing else: no network, no other file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import jinja2
from kvconform.conformance.exits import CONFORMS, INCOMPLETE
from kvconform.conformance.report.document import VERDICTS, Asked, Report, Result
from kvconform.conformance.report.words import (
    clean,
    describe_amount,
    describe_asked,
    describe_case,
    describe_exit,
    describe_subject,
    find_failures,
    find_law,
    find_sentence,
)
from kvconform.properties.law import NO_KIND, SEVERITIES


@dataclass(frozen=True)
class Shown:
    """One result as the page shows it."""

    result: Result
    anchor: str
    kind: str
    case: Sequence[str]
    asked: Sequence[tuple[str, Asked]]
    stderr: str


@dataclass(frozen=True)
class Group:
    """The results of one law, which is told once; `gates` says whether it fails a run."""

    law: str
    severity: str
    gates: bool
    anchor: str
    sentence: str
    why: Sequence[str]
    results: Sequence[Shown]


def encode_page(report: Report) -> bytes:
    """The report as HTML."""
    severities = [name for name in SEVERITIES if any(one.severity == name for one in report.results)]
    subject = describe_subject(report.implementation)
    known = [result for result in report.results if result.verdict == "expected"]
    return render(
        "page.html",
        title=f"{subject}: {describe_exit(report)}",
        report=report,
        subject=subject,
        ending=describe_exit(report),
        tone={CONFORMS: "held", INCOMPLETE: "inconclusive"}.get(report.exit, "violated"),
        amount=describe_amount(report),
        severities=severities,
        reported_only=any(severity not in report.fail_on for severity in severities),
        summary=_summary(report, severities),
        failures=group_by_law(find_failures(report), report),
        known=group_by_law(known, report),
        tables=_tables(report),
    )


def group_by_law(results: Iterable[Result], report: Report, prefix: str = "") -> list[Group]:
    """Neighbouring results of one law together. Anchors begin with the prefix."""
    groups = []
    for (law, severity), members in groupby(results, key=lambda one: (one.law, one.severity)):
        sentence = find_sentence(law)
        known = find_law(law)
        shown = [_show(result, report, prefix) for result in members]
        groups.append(
            Group(
                law=law,
                severity=severity,
                gates=severity in report.fail_on,
                anchor=f"{prefix}{law}.{shown[0].result.verdict}",
                sentence=sentence,
                why=[] if known is None else known.explanation.split("\n\n")[1:],
                results=shown,
            )
        )
    return groups


def render(template: str, **values: Any) -> bytes:
    """A page from a template of this folder."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    text = environment.get_template(template).render(verdicts=VERDICTS, **values)
    return clean(text).encode()


def _show(result: Result, report: Report, prefix: str) -> Shown:
    return Shown(
        result=result,
        anchor=f"{prefix}{result.law}.{result.kind}",
        kind="" if result.kind == NO_KIND else result.kind,
        case=describe_case(result.case),
        asked=[(describe_asked(one), one) for one in result.asked],
        stderr=report.stderr.get(f"{result.law} {result.kind}", "").strip(),
    )


def _summary(report: Report, severities: Sequence[str]) -> list[Mapping[str, Any]]:
    rows: list[Mapping[str, Any]] = []
    for verdict in VERDICTS:
        of_verdict = [result.severity for result in report.results if result.verdict == verdict]
        if of_verdict:
            counts = [of_verdict.count(severity) for severity in severities]
            rows.append({"verdict": verdict, "counts": counts, "all": len(of_verdict)})
    return rows


def _tables(report: Report) -> list[tuple[str, str, Sequence[str], list[Sequence[str]]]]:
    """What is only listed: title, verdict, columns and rows."""
    tables: list[tuple[str, str, Sequence[str], list[Sequence[str]]]] = []
    lacking: dict[str, list[str]] = {}
    for result in report.results:
        if result.verdict == "unsupported":
            lacking.setdefault(result.message, []).append(result.law)
    if lacking:
        rows = [
            (missing, ", ".join(dict.fromkeys(laws)), str(len(laws))) for missing, laws in lacking.items()
        ]
        tables.append(("Not asked", "unsupported", ("missing", "laws", "pairs"), list(rows)))
    for verdict in ("held", "proved"):
        of_law: dict[str, list[Result]] = {}
        for result in report.results:
            if result.verdict == verdict:
                of_law.setdefault(result.law, []).append(result)
        listed = [
            (
                law,
                ", ".join(one.kind for one in held if one.kind != NO_KIND),
                str(sum(one.examples for one in held)),
            )
            for law, held in of_law.items()
        ]
        if listed:
            tables.append((verdict.capitalize(), verdict, ("law", "kinds", "examples"), list(listed)))
    return tables
