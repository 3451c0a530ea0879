"""Commands for whoever writes an adapter."""

from __future__ import annotations

from typing import Annotated

import typer
from kvconform.conformance.exits import BROKEN, CONFORMS
from kvconform.conformance.screen import Stop, emit, page
from kvconform.conformance.starting import prepare_address
from kvconform.conformance.subjects import Address, Imports, Interpreter


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command("smoke")(smoke_command)
    app.command("protocol")(protocol_command)


def smoke_command(
    implementation: Address,
    imports: Imports = None,
    python: Interpreter = None,
) -> int:
    """Check that an adapter answers every command, whatever the answers are."""
    from kvconform.conformance.report.smoke import show_findings
    from kvconform.conformance.smoke import check

    prepared = prepare_address(implementation, imports=imports or (), python=python)
    try:
        found = check(prepared)
    except OSError as error:
        raise Stop(f"{implementation}: it cannot be run: {error.strerror}") from error
    with page() as console:
        show_findings(console, implementation, found)
    return BROKEN if found.broken or found.fell else CONFORMS


def protocol_command(
    schema: Annotated[bool, typer.Option("--schema", help="Print a JSON Schema of every message.")] = False,
) -> int:
    """Show what an adapter is asked: operations, kinds of spec with their fields, deployments."""
    from kvconform.conformance import protocol

    if schema:
        import msgspec

        emit(msgspec.json.format(msgspec.json.encode(protocol.schema()), indent=2).decode() + "\n")
        return CONFORMS
    from kvconform.conformance.report.smoke import show_protocol

    with page() as console:
        show_protocol(console)
    return CONFORMS
