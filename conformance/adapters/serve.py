"""Serves a Python implementation over the protocol.

``python -m kvconform.conformance.adapters.serve ADDRESS [--import MODULE]...`` opens what the
address names and answers for it on the standard streams, which are taken away from it first.
"""

from __future__ import annotations

import argparse
import traceback
from collections.abc import Mapping
from typing import Any, BinaryIO

from kvconform.conformance import protocol
from kvconform.conformance.implementations import AddressError, open_implementation, prepare
from kvconform.conformance.protocol import (
    Batch,
    Capabilities,
    Command,
    Failure,
    Lack,
    Question,
    Refusal,
    Reply,
    Result,
    Start,
    Stop,
    Unready,
)
from kvconform.conformance.streams import take_streams
from kvconform.conformance.values import read_arguments, to_wire
from kvconform.properties.law import NO_KIND
from kvconform.reference.interface import OPERATIONS, Implementation, Refused, Undocumented, Unsupported


def serve(implementation: Implementation, questions: BinaryIO, answers: BinaryIO) -> None:
    """Answer commands until ``stop`` or the end of the questions."""
    for line in questions:
        command: Command = protocol.read_command(line)
        if isinstance(command, Stop):
            return
        if isinstance(command, Start):
            answers.write(protocol.write(capabilities(implementation)))
        else:
            asks = command.asks if isinstance(command, Batch) else (command,)
            answers.writelines(protocol.write(answer(implementation, question)) for question in asks)
        answers.flush()


def capabilities(implementation: Implementation) -> Capabilities:
    """What can be asked of the implementation."""
    kinds = implementation.kinds()
    operations = sorted(implementation.operations(), key=OPERATIONS.index)
    return Capabilities(
        protocol=protocol.VERSION,
        name=implementation.name,
        version=implementation.version,
        revisions=implementation.revisions(),
        kinds={kind: tuple(sorted(implementation.fields(kind))) for kind in kinds},
        operations=tuple(operations),
        locations={
            operation: {kind: implementation.location(operation, kind) for kind in (*kinds, NO_KIND)}
            for operation in operations
        },
    )


def answer(implementation: Implementation, question: Question) -> Reply:
    """The reply to one question."""
    try:
        if question.operation not in OPERATIONS:
            return Lack(question.id, f"operation {question.operation}")
        arguments = read_arguments(question.operation, question.arguments)
        before = _layers(arguments)
        result = to_wire(getattr(implementation, question.operation)(**arguments))
        after = _layers(arguments)
        changed = {name: to_wire(arguments[name]) for name in before if after[name] != before[name]}
        return Result(question.id, result, changed)
    except Refused as refusal:
        return Refusal(question.id, str(refusal), not isinstance(refusal, Undocumented))
    except Unsupported as lack:
        return Lack(question.id, str(lack))
    except Exception as error:
        traceback.print_exc()
        return Failure(question.id, f"{type(error).__name__}: {error}")


def _layers(arguments: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Copies of the mappings of layers among the arguments."""
    found = {"layers": [arguments["layers"]]} if "layers" in arguments else {}
    if "ranks" in arguments:
        found["ranks"] = list(arguments["ranks"])
    return {name: [dict(layers) for layers in ranks] for name, ranks in found.items()}


def main() -> None:
    """Open what the arguments name, and serve it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("address")
    parser.add_argument("--import", dest="imports", metavar="MODULE", action="append", default=[])
    options = parser.parse_args()
    questions, answers = take_streams()
    try:
        implementation = open_implementation(prepare(options.address, imports=options.imports))
    except AddressError as error:
        questions.readline()
        answers.write(protocol.write(Unready(str(error))))
        answers.flush()
        return
    serve(implementation, questions, answers)


if __name__ == "__main__":
    main()
