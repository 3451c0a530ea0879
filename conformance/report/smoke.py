"""A smoke check and the operations of the protocol as a person reads them."""

from __future__ import annotations

from kvconform.conformance.smoke import Findings
from kvconform.reference.interface import OPERATIONS, Implementation
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

INDENT = (0, 0, 0, 2)


def show_findings(console: Console, address: str, found: Findings) -> None:
    """Print what was answered, and the exchange that was not."""
    for step in found.steps:
        console.print(Text(f"ok      {step}"))
    for (operation, remark), kinds in found.remarks.items():
        console.print(
            Text(f"        {operation} {', '.join(kinds)}".rstrip() + f": {remark}"), soft_wrap=True
        )
    broken = found.broken
    if broken is not None:
        console.print(Text(f"BROKEN  {broken.command}: {broken.why}", style="bold red"), soft_wrap=True)
        console.print(Text(f"  sent: {broken.sent}"), soft_wrap=True)
        console.print(Text(f"  got:  {broken.got or 'nothing'}"), soft_wrap=True)
        if broken.last_words.strip():
            console.print(Text("  standard error:"))
            for line in broken.last_words.strip().splitlines()[-12:]:
                console.print(Text(f"    {line}"), soft_wrap=True)
        ending = "the adapter is broken"
    elif found.fell:
        ending = f"the adapter works; {found.name} falls over what is named above"
    else:
        ending = f"the adapter works; whether {found.name} is right, kvconform run says"
    console.print(Text(f"{address}: {ending}"), soft_wrap=True)


def show_operations(console: Console) -> None:
    """Print every operation: its arguments, its answer, and what it is."""
    for operation in OPERATIONS:
        method = getattr(Implementation, operation)
        types = dict(method.__annotations__)
        answer = types.pop("return")
        arguments = ", ".join(f"{name}: {kind}" for name, kind in types.items())
        console.print(Text.assemble((operation, "bold"), f"({arguments}) -> {answer}"))
        console.print(Padding(Text((method.__doc__ or "").partition("\n")[0]), INDENT))
