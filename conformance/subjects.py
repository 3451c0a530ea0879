"""What names an implementation on a command line: its address, and what goes with it."""

from __future__ import annotations

from typing import Annotated

import typer

Address = Annotated[
    str,
    typer.Argument(
        metavar="IMPLEMENTATION",
        help="reference, vllm, vllm==VERSION, vllm@DIRECTORY, python:MODULE:ATTRIBUTE or process:COMMAND.",
        show_default=False,
    ),
]

Imports = Annotated[
    list[str] | None,
    typer.Option("--import", metavar="MODULE", help="Import this first: a plugin that patches or registers."),
]

Interpreter = Annotated[
    str | None,
    typer.Option("--python", metavar="PATH", help="Ask a vLLM in this interpreter instead of kvconform's."),
]
