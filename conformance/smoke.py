"""The smallest check of an adapter: whether every command is answered as the protocol says.

It tells a broken adapter from a wrong implementation: the answers must be there, in order and of
their types, and are held to nothing else. Any implementation is asked over the protocol, one in
Python by way of `adapters.serve`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kvconform.conformance.implementations import Prepared
from kvconform.conformance.process import BrokenExchange, Fell, ProcessImplementation
from kvconform.conformance.simplest import questions
from kvconform.reference.interface import Refused, Unsupported

SECONDS_PER_ASK = 10.0


@dataclass
class Findings:
    """What a smoke check found.

    `steps` are the commands that were answered, in order; where one was not, `broken` holds the
    exchange. `remarks` are the operations that were answered otherwise than by a result, and how,
    with the kinds; `fell` says that one of these is an error.
    """

    name: str = ""
    steps: list[str] = field(default_factory=list)
    remarks: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    fell: bool = False
    broken: BrokenExchange | None = None


def command_of(prepared: Prepared) -> tuple[str, ...]:
    """The command of a process that answers for what was prepared."""
    if prepared.command:
        return prepared.command
    serve = ("-P", "-m", "kvconform.conformance.adapters.serve")
    return (sys.executable, *serve, prepared.address, *prepared.options)


def check(prepared: Prepared) -> Findings:
    """Start it, ask each operation of each kind once, alone and in a batch, and stop it.

    Ends at the first exchange that breaks. Raises OSError where it cannot be run.
    """
    found = Findings()
    implementation: ProcessImplementation | None = None
    try:
        implementation = ProcessImplementation(command_of(prepared), seconds_per_ask=SECONDS_PER_ASK)
        found.name = implementation.name
        kinds, operations = implementation.kinds(), implementation.operations()
        found.steps.append(f"start: {len(kinds)} kinds, {len(operations)} operations")
        asked: list[tuple[str, dict[str, Any]]] = []
        for operation, kind, arguments in questions(implementation):
            _ask(found, kind, operation, getattr(implementation, operation), arguments)
            asked.append((operation, arguments))
        found.steps.append(f"ask: {len(asked)} answered")
        answers = implementation.ask_all(asked)
        found.steps.append(f"batch: {len(answers)} answered")
        implementation.close()
        found.steps.append("stop")
    except BrokenExchange as broken:
        found.broken = broken
    finally:
        if implementation is not None:
            implementation.kill()
    return found


def _ask(
    found: Findings, kind: str, operation: str, ask: Callable[..., Any], arguments: Mapping[str, Any]
) -> None:
    try:
        ask(**arguments)
        return
    except Refused as refusal:
        remark = f"refused: {refusal}"
    except Unsupported as lack:
        remark = f"unsupported: {lack}"
    except Fell as fall:
        remark = f"error: {fall}"
        found.fell = True
    found.remarks.setdefault((operation, remark), []).append(kind)
