"""A report as Markdown, for the summary of a CI job: what fails first, at most as long as is read."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kvconform.conformance.report.document import VERDICTS, Report, Result
from kvconform.conformance.report.words import (
    clean,
    describe_amount,
    describe_case,
    describe_exit,
    describe_known,
    describe_subject,
    find_failures,
    find_sentence,
    name_pair,
)
from kvconform.properties.law import SEVERITIES

LONGEST = 900_000
"""Bytes of a summary: GitHub shows none of one above 1 MiB."""


def encode_markdown(report: Report) -> bytes:
    """The report as GitHub's Markdown."""
    blocks = [
        f"# {_inline(describe_subject(report.implementation))}: {describe_exit(report)}",
        f"{describe_amount(report)}; kvconform {report.kvconform}",
        "\n".join(_summary(report)),
    ]
    if report.findings:
        blocks.append(f"## Not as {_inline(report.expectations)} expects")
        blocks.append("\n".join(f"- {_inline(finding.describe())}" for finding in report.findings))
    failures = find_failures(report)
    if failures:
        blocks.append("## What failed")
        blocks.extend(_failure(result, report) for result in failures)
    known = describe_known(report)
    if known:
        blocks.append("## Known violations")
        rows = (f"| {_cell(law)} | {_cell(', '.join(kinds))} | {_cell(why)} |" for law, kinds, why in known)
        blocks.append("\n".join(("| law | kinds | known |", "|---|---|---|", *rows)))
    return clean(_fit(blocks)).encode()


def _fit(blocks: list[str]) -> str:
    """As many of the blocks as a summary has room for."""
    text = ""
    for number, block in enumerate(blocks):
        if len(text.encode()) + len(block.encode()) > LONGEST:
            return f"{text}... and {len(blocks) - number} more parts, for which there is no room here.\n"
        text += f"{block}\n\n"
    return text.rstrip("\n") + "\n"


def _summary(report: Report) -> Iterator[str]:
    met = [severity for severity in SEVERITIES if any(one.severity == severity for one in report.results)]
    columns = [severity if severity in report.fail_on else f"{severity} (reported)" for severity in met]
    yield f"| verdict | {' | '.join([*columns, 'all'])} |"
    yield f"|---|{'---:|' * (len(met) + 1)}"
    for verdict in VERDICTS:
        of_verdict = [result.severity for result in report.results if result.verdict == verdict]
        if of_verdict:
            counts = [str(of_verdict.count(severity) or "") for severity in met]
            yield f"| {verdict} | {' | '.join([*counts, str(len(of_verdict))])} |"


def _failure(result: Result, report: Report) -> str:
    title = f"<b>{result.verdict}</b> {_html(name_pair(result.law, result.kind))} ({result.severity})"
    lines = [f"<details><summary>{title}: {_html(' '.join(result.message.split()))}</summary>", ""]
    lines += [f"*{_inline(find_sentence(result.law))}*", ""] if find_sentence(result.law) else []
    told = describe_case(result.case)
    if told:
        lines += ["Case:", "", _fence("\n".join(told)), ""]
    if result.reproduce:
        lines += ["Reproduce:", "", _fence(result.reproduce, "sh"), ""]
    if result.script:
        lines += ["Without kvconform:", "", _fence(result.script.rstrip("\n"), "python"), ""]
    stderr = report.stderr.get(f"{result.law} {result.kind}", "").strip()
    if stderr:
        lines += ["Standard error:", "", _fence(stderr), ""]
    return "\n".join([*lines, "</details>"])


def _fence(text: str, language: str = "") -> str:
    # Longer than any run of backticks within.
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    ticks = "`" * max(3, longest + 1)
    return f"{ticks}{language}\n{text}\n{ticks}"


def _html(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _inline(text: str) -> str:
    """The text in one line, with nothing in it that Markdown takes for its own."""
    return re.sub(r"([\\`*_{}\[\]<>#|~])", r"\\\1", " ".join(text.split()))


def _cell(text: str) -> str:
    return _inline(text)
