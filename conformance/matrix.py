"""Several reports side by side: laws down, implementations across."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvconform.conformance.exits import BROKEN, CONFORMS, INCOMPLETE, VIOLATED
from kvconform.conformance.report.document import VERDICTS, Report, Result

NOT_RUN = "not run"
"""In place of a verdict where a report has none."""


HOLDING = ("held", "proved", "unsupported", NOT_RUN)


@dataclass(frozen=True)
class Cell:
    """One law on one implementation: the worst verdict, and on how many of its kinds."""

    verdict: str
    count: int
    results: tuple[Result, ...]

    def describe(self) -> str:
        """The verdict, and how many of how many kinds where they differ."""
        if self.count == len(self.results):
            return self.verdict
        return f"{self.verdict} {self.count} of {len(self.results)}"


@dataclass(frozen=True)
class Row:
    """One law, with a cell for each report."""

    law: str
    severity: str
    cells: tuple[Cell, ...]

    @property
    def differs(self) -> bool:
        """Whether the implementations differ that were asked."""
        return len({cell.describe() for cell in self.cells if cell.results}) > 1

    @property
    def holds(self) -> bool:
        """Whether the law holds wherever it could be asked."""
        return all(cell.verdict in HOLDING for cell in self.cells)


def tabulate(reports: Sequence[Report]) -> list[Row]:
    """A row for each law that a report has, in the order in which they come."""
    severities: dict[str, str] = {}
    for report in reports:
        severities.update({one.law: one.severity for one in report.results if one.law not in severities})
    return [
        Row(law, severity, tuple(_cell(report, law) for report in reports))
        for law, severity in severities.items()
    ]


def name_columns(reports: Sequence[Report]) -> list[str]:
    """The addresses with what went with them, numbered where one comes twice."""
    names: list[str] = []
    for report in reports:
        name = " ".join((report.implementation.address, *report.implementation.options))
        again = sum(known == name or known.startswith(f"{name} #") for known in names)
        names.append(f"{name} #{again + 1}" if again else name)
    return names


def exit_code_of(reports: Sequence[Report]) -> int:
    """The worst of the reports' exit codes: broken, then violated, then incomplete."""
    codes = {report.exit for report in reports}
    return next((code for code in (BROKEN, VIOLATED, INCOMPLETE) if code in codes), CONFORMS)


def _cell(report: Report, law: str) -> Cell:
    results = tuple(result for result in report.results if result.law == law)
    if not results:
        return Cell(NOT_RUN, 0, ())
    verdict = min((result.verdict for result in results), key=VERDICTS.index)
    return Cell(verdict, sum(result.verdict == verdict for result in results), results)
