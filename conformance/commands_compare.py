"""Commands for whoever is about to change a formula, or to move past a release that did."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer
from kvconform.conformance.exits import BROKEN, CONFORMS, INCOMPLETE, VIOLATED
from kvconform.conformance.screen import Stop, complain, counting, emit, page
from kvconform.conformance.starting import prepare_address
from kvconform.conformance.subjects import Address

if TYPE_CHECKING:
    from kvconform.conformance.process import ProcessImplementation


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command("diff")(diff_command)
    app.command("ask")(ask_command)


def diff_command(
    left: Address,
    right: Address,
    examples: Annotated[int, typer.Option(min=1, metavar="N", help="Inputs per operation and kind.")] = 150,
    seed: Annotated[int, typer.Option(metavar="N", help="The same seed finds the same.")] = 0,
    length: Annotated[
        int, typer.Option(min=1, metavar="TOKENS", help="Length of a request, for the effect on models.")
    ] = 32768,
    budget: Annotated[
        int, typer.Option(min=1, metavar="GIB", help="Memory for the cache, for the effect on models.")
    ] = 40,
    json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print it as Markdown.")] = False,
) -> int:
    """Show where two implementations answer differently, and what that does to models."""
    from kvconform.conformance.compare import Both, Comparison, compare, questions
    from kvconform.conformance.effects import effects
    from kvconform.conformance.process import BrokenExchange, Fell
    from kvconform.conformance.report import comparison

    if json and markdown:
        raise Stop("--json and --markdown: choose one")
    found = Comparison()
    changes = None
    with asked(left) as one, asked(right) as other:
        try:
            total = len(questions(Both(one, other)))
            with counting(f"{left} against {right}", total) as progress:
                growing = compare(one, other, examples=examples, seed=seed)
                for done, so_far in enumerate(growing):
                    found = so_far
                    progress(min(done, total))
            changes = effects(one, other, length=length, budget_bytes=budget << 30)
        except (BrokenExchange, Fell) as fall:
            raise Stop(str(fall), BROKEN) from fall
        except KeyboardInterrupt:
            complain("interrupted: what follows is not all")
    if json:
        emit(comparison.as_json(left, right, found, changes))
    elif markdown:
        emit(comparison.as_markdown(left, right, found, changes))
    else:
        with page() as console:
            comparison.show(console, left, right, found, changes)
    if not found.complete or changes is None:
        return INCOMPLETE
    return VIOLATED if found.different or found.only_left or found.only_right else CONFORMS


def ask_command(
    implementation: Address,
    operation: Annotated[str, typer.Argument(metavar="OPERATION", show_default=False)],
    arguments: Annotated[
        str, typer.Argument(metavar="ARGUMENTS", help="As JSON, by name.", show_default=False)
    ] = "{}",
) -> int:
    """Ask an implementation one question, and print its answer as JSON."""
    import msgspec
    from kvconform.conformance.process import BrokenExchange, Fell
    from kvconform.conformance.values import read_arguments, to_wire
    from kvconform.reference.interface import OPERATIONS, Refused, Unsupported

    if operation not in OPERATIONS:
        raise Stop(f"unknown operation {operation!r}; see kvconform protocol")
    try:
        named = read_arguments(operation, msgspec.json.decode(arguments))
    except (ValueError, msgspec.DecodeError) as error:
        raise Stop(f"the arguments of {operation}: {error}") from error
    with asked(implementation) as subject:
        try:
            answer = getattr(subject, operation)(**named)
        except Refused as refusal:
            emit(f"refused: {refusal}\n")
            return VIOLATED
        except Unsupported as lack:
            emit(f"unsupported: {lack}\n")
            return INCOMPLETE
        except (BrokenExchange, Fell) as fall:
            raise Stop(str(fall), BROKEN) from fall
    emit(msgspec.json.encode(to_wire(answer)).decode() + "\n")
    return CONFORMS


@contextmanager
def asked(address: str) -> Iterator[ProcessImplementation]:
    """The implementation in a process of its own, since two releases cannot share one."""
    from kvconform.conformance.process import BrokenExchange, ProcessImplementation

    prepared = prepare_address(address)
    command = prepared.command or (
        sys.executable,
        "-m",
        "kvconform.conformance.adapters.serve",
        address,
    )
    try:
        subject = ProcessImplementation(command, seconds_per_ask=20.0)
    except (OSError, BrokenExchange) as error:
        raise Stop(f"{address}: {error}", BROKEN) from error
    try:
        yield subject
    finally:
        try:
            subject.close()
        except BrokenExchange as fall:
            complain(str(fall))
