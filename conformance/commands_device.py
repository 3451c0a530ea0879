"""The command that checks real memory."""

from __future__ import annotations

import importlib.util
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer
from kvconform.conformance.exits import BROKEN
from kvconform.conformance.outputs import HtmlFile, JsonFile, JunitFile, MarkdownFile
from kvconform.conformance.screen import Stop, complain, counting, emit


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command("device")(device_command)


def device_command(
    device: Annotated[
        str | None,
        typer.Option(metavar="DEVICE", help="cpu, cuda or cuda:N; by default cuda where there is one."),
    ] = None,
    laws: Annotated[
        str, typer.Option(metavar="GLOB,..", help="Only laws whose id matches; kvconform laws device.")
    ] = "*",
    implementation: Annotated[
        str | None,
        typer.Option(
            metavar="IMPLEMENTATION", help="Compare what is written with the stored bytes that it reports."
        ),
    ] = None,
    json: JsonFile = None,
    junit: JunitFile = None,
    markdown: MarkdownFile = None,
    html: HtmlFile = None,
) -> int:
    """Check allocations, views and quantised round trips on a device's real memory."""
    if importlib.util.find_spec("torch") is None:
        raise Stop("the device checks need torch: pip install 'kvconform[gpu]'")
    from kvconform.conformance.device import check_device, describe_device, make_report
    from kvconform.conformance.outputs import opening_outputs
    from kvconform.conformance.selection import SelectionError, find_device_laws
    from kvconform.properties.laws.device import SECOND_SOURCE

    try:
        chosen = () if laws == "*" else find_device_laws(laws)
    except SelectionError as error:
        raise Stop(str(error)) from error
    if implementation is not None and chosen and not set(chosen) & set(SECOND_SOURCE):
        raise Stop(f"--implementation is for {' and '.join(SECOND_SOURCE)}, which --laws leaves out")
    with (
        opening_outputs(json=json, junit=junit, markdown=markdown, html=html) as outputs,
        ExitStack() as stack,
    ):
        stored = None
        if implementation is not None:
            scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="kvconform-stored-"))
            stored = Path(scratch, "stored.json")
            _ask(implementation, stored)
        with counting("checks on real memory") as progress:
            checked = check_device(device, chosen, stored, progress)
        options = () if implementation is None else ("--implementation", implementation)
        report = make_report(checked, laws=laws, options=options)
        if checked.interrupted:
            complain(f"interrupted after {len(report.results)} of {report.selected}")
        if checked.died:
            complain(checked.died)
        if outputs.printed is None:
            emit("".join(f"{line}\n" for line in (describe_device(checked), *checked.counts, "")))
        return outputs.deliver(report)


def _ask(address: str, path: Path) -> None:
    """Have the implementation say what it stores; ends the command where it cannot be asked."""
    from kvconform.conformance.commands_compare import asked
    from kvconform.conformance.process import BrokenExchange
    from kvconform.conformance.stored import count_cells, write_answers

    with asked(address) as subject, counting(f"{address}: stored bytes", count_cells()) as progress:
        try:
            write_answers(subject, address, path, progress)
        except BrokenExchange as error:
            raise Stop(f"{address}: {error}", BROKEN) from error
