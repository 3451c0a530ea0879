"""A run as a person reads it: every violation whole, then what held and what could not be asked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from kvconform.conformance.report.document import VERDICTS, Asked, Report, Result
from kvconform.conformance.report.words import (
    describe_amount,
    describe_asked,
    describe_case,
    describe_exit,
    describe_known,
    describe_pace,
    describe_subject,
    find_failures,
    find_law,
    find_sentence,
    rerun_line,
)
from kvconform.properties.law import NO_KIND, SEVERITIES
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

STYLES = {
    "broken": "bold magenta",
    "violated": "bold red",
    "inconclusive": "yellow",
    "expected": "yellow",
    "unsupported": "dim",
    "held": "green",
    "proved": "bold green",
}

LAST_ASKED = 6
"""Questions of a failing run that are shown: the last ones led to the verdict."""

INDENT = (0, 0, 0, 2)


def show_report(console: Console, report: Report, seconds: float = 0.0) -> None:
    """Print a run that took so long: what is measured goes to a terminal only, never into a file."""
    failures = find_failures(report)
    for (verdict, _), group in groupby(failures, key=lambda result: (result.verdict, result.law)):
        first, *others = group
        show_result(console, first, report.stderr.get(f"{first.law} {first.kind}", ""))
        if others:
            console.print(Padding(Text(f"{verdict} on {len(others)} more:", style="bold"), INDENT))
            console.print(Padding(_others(others), INDENT))
            _show_paste(console, "in full", rerun_line(report, others))
            console.print()
    _show_expected(console, report)
    _show_unsupported(console, report.results)
    _show_held(console, report.results)
    _show_findings(console, report)
    _show_summary(console, report)
    pace = describe_pace(report, seconds)
    if pace and console.is_terminal:
        console.print(Text(pace))


def show_result(console: Console, result: Result, stderr: str = "") -> None:
    """Print one result with its case, what was asked and the lines that reproduce it."""
    title = Text.assemble(
        (result.verdict.upper(), STYLES[result.verdict]),
        ("  " + result.law, "bold"),
        f"  ({result.severity})",
        "" if result.kind == NO_KIND else f"  {result.kind}",
    )
    console.print(Rule(title, align="left", characters="-", style="dim"))
    console.print(Padding(Text(find_sentence(result.law), style="italic"), INDENT))
    if result.message:
        console.print(Padding(Text(result.message, style="bold"), INDENT))
    if result.case:
        _show_section(console, "case", map(Text, describe_case(result.case)))
    if result.asked:
        _show_section(console, "asked", _asked_lines(result.asked))
    if result.reproduce:
        _show_paste(console, "reproduce", result.reproduce)
    if result.script:
        _show_paste(console, "without kvconform", result.script)
    if stderr.strip():
        _show_section(console, "standard error", [Text(line) for line in stderr.strip().splitlines()[-12:]])
    console.print()


def _show_section(console: Console, title: str, lines: Iterable[RenderableType]) -> None:
    console.print(Padding(Text(f"{title}:", style="bold"), INDENT))
    console.print(Padding(Group(*lines), (0, 0, 0, 4)))


def _show_paste(console: Console, title: str, text: str) -> None:
    """Lines that are pasted elsewhere: neither wrapped nor indented."""
    console.print(Padding(Text(f"{title}:", style="bold"), INDENT))
    console.print(Text(text.rstrip("\n")), soft_wrap=True)


def _asked_lines(asked: Sequence[Asked]) -> Iterator[RenderableType]:
    """Each question, where it is answered, and the answer: behind it or, if long, below."""
    if len(asked) > LAST_ASKED:
        yield Text(f"... {len(asked) - LAST_ASKED} before")
    for one in asked[-LAST_ASKED:]:
        question = Text(describe_asked(one))
        question.append("  ").append(one.location, "cyan")
        answer = f"-> {one.answer}"
        if len(question) + len(answer) < 80:
            yield question.append("  ").append(answer)
        else:
            yield question
            yield Padding(Text(answer), (0, 0, 0, 3))


def _others(results: Sequence[Result]) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column()
    for result in results:
        table.add_row(result.kind, Text(result.message))
    return table


def _show_expected(console: Console, report: Report) -> None:
    known = describe_known(report)
    if not known:
        return
    crashing = any(result.crashed for result in report.results if result.verdict == "expected")
    title = f"expected: violated{' or crashing' if crashing else ''}, and known to be"
    table = Table(box=None, title=title, title_justify="left", pad_edge=False)
    table.add_column("law", no_wrap=True)
    table.add_column("kinds")
    table.add_column("known")
    for law, kinds, why in known:
        table.add_row(law, _listed(law, kinds), Text(why))
    console.print(table)
    console.print()


def _show_findings(console: Console, report: Report) -> None:
    if not report.findings:
        return
    console.print(Text(f"not as {report.expectations} expects:", style="bold red"))
    for finding in report.findings:
        console.print(Text(finding.describe()), soft_wrap=True)
    console.print()


def _show_unsupported(console: Console, results: Sequence[Result]) -> None:
    lacking: dict[str, list[str]] = {}
    for result in results:
        if result.verdict == "unsupported":
            lacking.setdefault(result.message, []).append(result.law)
    if not lacking:
        return
    table = Table(box=None, title="unsupported: not asked", title_justify="left", pad_edge=False)
    table.add_column("missing", no_wrap=True)
    table.add_column("pairs", justify="right")
    table.add_column("laws")
    for missing, laws in lacking.items():
        table.add_row(missing, str(len(laws)), ", ".join(_by_area(dict.fromkeys(laws))))
    console.print(table)
    console.print()


def _by_area(ids: Iterable[str]) -> Iterator[str]:
    """``page/a, page/b`` as ``page (2)``, an id that is alone in its area as it is."""
    for area, members in groupby(ids, key=lambda id: id.partition("/")[0]):
        named = list(members)
        yield named[0] if len(named) == 1 else f"{area} ({len(named)})"


def _show_held(console: Console, results: Sequence[Result]) -> None:
    held: dict[str, list[Result]] = {}
    for result in results:
        if result.verdict in ("held", "proved"):
            held.setdefault(result.law, []).append(result)
    if not held:
        return
    table = Table(box=None, title="held", title_justify="left", pad_edge=False)
    table.add_column("law", no_wrap=True)
    table.add_column("kinds")
    table.add_column("examples", justify="right")
    for id, of_law in held.items():
        kinds = [result.kind for result in of_law]
        table.add_row(id, _listed(id, kinds), str(sum(result.examples for result in of_law)))
    console.print(table)
    console.print()


def _listed(id: str, kinds: Sequence[str]) -> str:
    """The kinds in few words, of all that the law is about."""
    law = find_law(id)
    about = () if law is None else law.kinds
    if list(kinds) == [NO_KIND]:
        return ""
    if not set(kinds) <= set(about):
        # Codecs, on a device.
        return ", ".join(kinds)
    if len(kinds) == len(about) and len(kinds) > 2:
        return f"all {len(kinds)}"
    if len(kinds) <= 3 or not about:
        return ", ".join(kinds)
    return f"{len(kinds)} of {len(about)}"


def _show_summary(console: Console, report: Report) -> None:
    table = Table(box=None, pad_edge=False, show_header=True)
    table.add_column("verdict")
    met = {result.severity for result in report.results}
    severities = [severity for severity in SEVERITIES if severity in met]
    for severity in severities:
        table.add_column(severity if severity in report.fail_on else f"{severity}*", justify="right")
    table.add_column("all", justify="right")
    for verdict in VERDICTS:
        of_verdict = [result for result in report.results if result.verdict == verdict]
        if of_verdict:
            counts = [sum(result.severity == severity for result in of_verdict) for severity in severities]
            shown = [str(count or "") for count in (*counts, len(of_verdict))]
            table.add_row(Text(verdict, style=STYLES[verdict]), *shown)
    console.print(table)
    if any(severity not in report.fail_on for severity in severities):
        console.print("* reported only: does not fail the run (--fail-on)")
    console.print()
    console.print(Text(f"{describe_subject(report.implementation)}: {describe_exit(report)}"))
    console.print(Text(describe_amount(report)))
