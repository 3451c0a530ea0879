"""The laws as a person reads them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from kvconform.properties.law import NO_KIND, Law
from kvconform.properties.laws.device import HOW_TO_RUN, SECOND_SOURCE, DeviceLaw
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text


def list_laws(console: Console, laws: Sequence[Law | DeviceLaw]) -> None:
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
            table.add_row(law.id, law.severity, _engines(law), kinds, Text(law.sentence))
    console.print(table)
    on_device = sum(isinstance(law, DeviceLaw) for law in laws)
    console.print(f"\n{len(laws) - on_device} laws, and {on_device} about real memory.")
    console.print(
        f"S sampled, P can be proved too, D on a device ({HOW_TO_RUN}). kvconform laws ID explains one."
    )


def _engines(law: Law | DeviceLaw) -> str:
    if isinstance(law, DeviceLaw):
        return "D"
    return "S P" if law.proved else "S"


def explain_laws(console: Console, laws: Sequence[Law | DeviceLaw]) -> None:
    """Print all there is to say of each law."""
    for law in laws:
        console.print(Text.assemble((law.id, "bold"), f"  ({law.severity})"))
        console.print(Padding(Text(law.explanation), (0, 0, 1, 2)))
        facts = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
        facts.add_column(no_wrap=True)
        facts.add_column()
        facts.add_row("kinds", "none: not about a kind" if law.kinds == (NO_KIND,) else ", ".join(law.kinds))
        if isinstance(law, DeviceLaw):
            facts.add_row("engines", "device")
        else:
            facts.add_row("asks", ", ".join(law.needs))
            facts.add_row("engines", "sampled, proved" if law.proved else "sampled")
        if law.reports:
            facts.add_row("reports", ", ".join(law.reports))
        if isinstance(law, DeviceLaw):
            facts.add_row("checked by", f"{HOW_TO_RUN} --laws {law.id}")
        else:
            facts.add_row("written in", law.location)
        if law.id in SECOND_SOURCE:
            facts.add_row("on a device", f"{HOW_TO_RUN} --laws {law.id}")
        console.print(Padding(facts, (0, 0, 1, 2)))
