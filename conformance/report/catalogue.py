"""The laws as a person reads them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from kvconform.properties.law import NO_KIND, Law
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text


def list_laws(console: Console, laws: Sequence[Law]) -> None:
    """Print one line per law, area by area."""
    table = Table(box=None, pad_edge=False)
    table.add_column("law", no_wrap=True)
    table.add_column("severity", no_wrap=True)
    table.add_column("by", no_wrap=True)
    table.add_column("kinds", justify="right")
    table.add_column("what must hold")
    for index, (_, group) in enumerate(groupby(laws, key=lambda law: law.area)):
        if index:
            table.add_row()
        for law in group:
            kinds = "" if law.kinds == (NO_KIND,) else str(len(law.kinds))
            table.add_row(law.id, law.severity, "S P" if law.proved else "S", kinds, Text(law.sentence))
    console.print(table)
    console.print(f"\n{len(laws)} laws. S sampled, P can be proved too. kvconform laws ID explains one.")


def explain_laws(console: Console, laws: Sequence[Law]) -> None:
    """Print all there is to say of each law."""
    for law in laws:
        console.print(Text.assemble((law.id, "bold"), f"  ({law.severity})"))
        console.print(Padding(Text(law.explanation), (0, 0, 1, 2)))
        facts = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
        facts.add_column(no_wrap=True)
        facts.add_column()
        facts.add_row("kinds", "none: not about a kind" if law.kinds == (NO_KIND,) else ", ".join(law.kinds))
        facts.add_row("asks", ", ".join(law.needs))
        facts.add_row("engines", "sampled, proved" if law.proved else "sampled")
        if law.reports:
            facts.add_row("reports", ", ".join(law.reports))
        facts.add_row("written in", law.location)
        console.print(Padding(facts, (0, 0, 1, 2)))
