"""The command that checks real memory."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from typing import Annotated

import typer
from kvconform.conformance.exits import CONFORMS, INCOMPLETE, VIOLATED
from kvconform.conformance.screen import Stop

FAILED, USAGE = 1, 4
"""Pytest's exit codes for failed tests and for a command line that it cannot follow."""


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command("device")(device_command)


def device_command(
    device: Annotated[
        str | None,
        typer.Option(metavar="DEVICE", help="cpu, cuda, ...; cuda where there is one, else cpu."),
    ] = None,
    junit: Annotated[str | None, typer.Option(metavar="FILE", help="Write JUnit XML there.")] = None,
) -> int:
    """Check allocations, views and quantised round trips on a device's real memory."""
    if importlib.util.find_spec("torch") is None:
        raise Stop("the device checks need torch: pip install 'kvconform[gpu]'")
    # A process of its own: pytest and torch are not for this one, and a device may take it down.
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--pyargs",
        "kvconform.gpu_checks",
    ]
    if device is not None:
        command += ["--device", device]
    if junit is not None:
        command.append(f"--junitxml={junit}")
    code = subprocess.run(command, check=False).returncode
    if code == USAGE:
        raise Stop("the device cannot be checked; the line above says why")
    return {0: CONFORMS, FAILED: VIOLATED}.get(code, INCOMPLETE)
