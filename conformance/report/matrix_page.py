"""Several reports as one page that needs nothing else; each cell leads to its cases."""

from __future__ import annotations

from collections.abc import Sequence

from kvconform.conformance.matrix import NOT_RUN, name_columns, tabulate
from kvconform.conformance.report.document import Report, Result
from kvconform.conformance.report.page import Group, group_by_law, render
from kvconform.conformance.report.words import FAILURES, describe_amount, describe_exit, find_sentence

TOLD = (*FAILURES, "expected")
"""Verdicts that have a case to lead to."""


def encode_matrix(reports: Sequence[Report]) -> bytes:
    """The reports as one HTML page."""
    names = name_columns(reports)
    groups = [
        {group.law: group for group in group_by_law(_told(report), report, prefix=f"{number}.")}
        for number, report in enumerate(reports, 1)
    ]
    rows = tabulate(reports)
    return render(
        "matrix.html",
        title="kvconform: " + ", ".join(names),
        kvconform=", ".join(dict.fromkeys(report.kvconform for report in reports)),
        columns=[
            (name, describe_exit(report), describe_amount(report))
            for name, report in zip(names, reports, strict=True)
        ],
        rows=[
            (row, [(cell, groups[number].get(row.law)) for number, cell in enumerate(row.cells)])
            for row in rows
        ],
        cases=[(row, find_sentence(row.law), _by_column(row.law, names, groups)) for row in rows],
        not_run=NOT_RUN,
    )


def _told(report: Report) -> list[Result]:
    order = list(dict.fromkeys(result.law for result in report.results))
    told = [result for result in report.results if result.verdict in TOLD]
    return sorted(told, key=lambda result: order.index(result.law))


def _by_column(law: str, names: Sequence[str], groups: Sequence[dict[str, Group]]) -> list[tuple[str, Group]]:
    return [(name, of_law[law]) for name, of_law in zip(names, groups, strict=True) if law in of_law]
