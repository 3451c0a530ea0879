"""A smoke check, and what an adapter is asked, as a person reads them."""

from __future__ import annotations

from dataclasses import fields

from kvconform.conformance.smoke import Findings
from kvconform.reference.deployment import Deployment
from kvconform.reference.interface import OPERATIONS, Implementation
from kvconform.reference.specs import KINDS, defaults, field_names
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
        if broken.why.startswith("no answer") and not broken.got:
            console.print("  An answer that is written but not flushed does not arrive.")
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


def show_protocol(console: Console) -> None:
    """Print every operation with its arguments, its answer and what it is; then what they speak of."""
    _show_operations(console)
    console.print("\nKinds of spec, with their fields; each has those without brackets")
    for kind in KINDS:
        usual = defaults(kind)
        named = ", ".join(f"[{name}]" if name in usual else name for name in field_names(kind))
        console.print(Padding(Text.assemble((kind, "bold"), f": {named}"), INDENT))
    console.print("\nA deployment, whose values are all there each time")
    named = ", ".join(field.name for field in fields(Deployment))
    console.print(Padding(Text(f"{named}, in_flight_tokens"), INDENT))


def _show_operations(console: Console) -> None:
    for operation in OPERATIONS:
        method = getattr(Implementation, operation)
        types = dict(method.__annotations__)
        answer = types.pop("return")
        arguments = ", ".join(f"{name}: {kind}" for name, kind in types.items())
        console.print(Text.assemble((operation, "bold"), f"({arguments}) -> {answer}"))
        console.print(Padding(Text((method.__doc__ or "").partition("\n")[0]), INDENT))
