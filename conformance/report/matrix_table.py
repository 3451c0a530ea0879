"""Several reports as a table in a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from kvconform.conformance.matrix import name_columns, tabulate
from kvconform.conformance.report.document import Report
from kvconform.conformance.report.terminal import STYLES
from kvconform.conformance.report.words import describe_amount, describe_exit, describe_pace
from rich.console import Console
from rich.table import Table
from rich.text import Text


def show_matrix(console: Console, reports: Sequence[Report], seconds: Sequence[float]) -> None:
    """Print a line for each law that does not hold everywhere, and count the others.

    `seconds` are what each run took, 0 for one that was read; only a terminal is told.
    """
    names = name_columns(reports)
    rows = tabulate(reports)
    table = Table(box=None, pad_edge=False)
    table.add_column("law")
    for name in names:
        table.add_column(name)
    for row in rows:
        if not row.holds:
            cells = (Text(cell.describe(), style=STYLES.get(cell.verdict, "dim")) for cell in row.cells)
            table.add_row(row.law, *cells)
    if table.row_count:
        console.print(table)
        console.print()
    console.print(f"{sum(row.holds for row in rows)} of {len(rows)} laws hold wherever they could be asked")
    for name, report, taken in zip(names, reports, seconds, strict=True):
        console.print(Text(f"{name}: {describe_exit(report)}; {describe_amount(report)}"))
        pace = describe_pace(report, taken)
        if pace and console.is_terminal:
            console.print(Text(f"{name}: {pace}"))
