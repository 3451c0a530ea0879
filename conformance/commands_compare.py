"""Commands for whoever is about to change a formula, or to move past a release that did."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer
from kvconform.conformance.exits import BROKEN, CONFORMS, INCOMPLETE, VIOLATED
from kvconform.conformance.screen import Stop, complain, counting, emit, page
from kvconform.conformance.sides import Side, find_kinds, read_sides
from kvconform.conformance.starting import find_engines, opening, prepare_address
from kvconform.conformance.subjects import Address, Imports, Interpreter

if TYPE_CHECKING:
    from kvconform.conformance.comparison import Comparison
    from kvconform.conformance.effects import Effects
    from kvconform.conformance.process import ProcessImplementation

SECONDS_PER_ASK = 20.0
"""Seconds that a process may take for one answer."""


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command("diff")(diff_command)
    app.command("ask")(ask_command)


def diff_command(
    left: Address,
    right: Address,
    imports: Annotated[
        list[str] | None,
        typer.Option(
            "--import",
            metavar="[SIDE:]MODULE",
            help="Import this first into every vLLM compared; with left: or right: in front, that side.",
        ),
    ] = None,
    python: Annotated[
        list[str] | None,
        typer.Option(
            "--python",
            metavar="[SIDE:]PATH",
            help="Ask every vLLM compared in this interpreter; with left: or right: in front, that side.",
        ),
    ] = None,
    kinds: Annotated[
        str | None,
        typer.Option(metavar="KIND,..", help="Only these kinds of spec; - stands for whole models."),
    ] = None,
    engine: Annotated[
        str,
        typer.Option(
            metavar="ENGINE,..", help="How sameness is found: sample, or also prove over the code itself."
        ),
    ] = "sample,prove",
    examples: Annotated[int, typer.Option(min=1, metavar="N", help="Inputs per operation and kind.")] = 150,
    seed: Annotated[int, typer.Option(metavar="N", help="The same seed finds the same.")] = 0,
    length: Annotated[
        int, typer.Option(min=1, metavar="TOKENS", help="Length of a request, for the effect on models.")
    ] = 32768,
    budget: Annotated[
        int, typer.Option(min=1, metavar="GIB", help="Memory for the cache, for the effect on models.")
    ] = 40,
    domains: Annotated[bool, typer.Option("--domains", help="Print what each proof covers.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print it as Markdown.")] = False,
) -> int:
    """Show where two implementations answer differently, and what that does to models."""
    from kvconform.conformance.report import comparison, comparison_documents

    if json and markdown:
        raise Stop("--json and --markdown: choose one")
    engines = find_engines(engine)
    wanted = find_kinds(kinds)
    sides = read_sides(left, right, imports or (), python or ())
    found, changes = _compared(sides, wanted, engines, examples, seed, length, budget)
    if json:
        emit(comparison_documents.as_json(sides, engines, found, changes))
    elif markdown:
        emit(comparison_documents.as_markdown(sides, found, changes))
    else:
        with page() as console:
            comparison.show(console, sides, found, changes, domains=domains)
    return _exit(found, changes)


def _compared(
    sides: tuple[Side, Side],
    kinds: frozenset[str] | None,
    engines: tuple[str, ...],
    examples: int,
    seed: int,
    length: int,
    budget: int,
) -> tuple[Comparison, Effects | None]:
    """The comparison and the effect on models. Ctrl-C ends it with what there is."""
    from kvconform.conformance.common import in_common
    from kvconform.conformance.compare import compare
    from kvconform.conformance.comparison import Comparison
    from kvconform.conformance.effects import effects
    from kvconform.conformance.judging import Judges, find_obstacle, jobs_of
    from kvconform.conformance.process import BrokenExchange, Fell
    from kvconform.conformance.questions import questions

    found, changes = Comparison(), None
    prepared = [side.prepared for side in sides]
    with asked_both(sides) as (one, other):
        try:
            common = in_common(one, other)
            total = len(questions(common, kinds))
            jobs = jobs_of(prepared, common, engines=engines, examples=examples, seed=seed)
            obstacle = find_obstacle(prepared, engines)
            with (
                counting(" against ".join(side.label for side in sides), total) as progress,
                opening(),
                Judges(jobs) as judge,
            ):
                growing = compare(
                    one, other, examples=examples, seed=seed, kinds=kinds, judge=judge, obstacle=obstacle
                )
                for done, so_far in enumerate(growing):
                    found = so_far
                    progress(min(done, total))
            changes = effects(one, other, length=length, budget_bytes=budget << 30)
        except (BrokenExchange, Fell) as fall:
            raise Stop(str(fall), BROKEN) from fall
        except KeyboardInterrupt:
            complain("interrupted: what follows is not all")
    return found, changes


def _exit(found: Comparison, changes: Effects | None) -> int:
    if not found.complete or changes is None:
        return INCOMPLETE
    if found.different or found.only_left or found.only_right:
        return VIOLATED
    doubtful = any(unasked.verdict != "unsupported" for unasked in found.not_asked)
    return INCOMPLETE if doubtful else CONFORMS


def ask_command(
    implementation: Address,
    operation: Annotated[str, typer.Argument(metavar="OPERATION", show_default=False)],
    arguments: Annotated[
        str, typer.Argument(metavar="ARGUMENTS", help="As JSON, by name.", show_default=False)
    ] = "{}",
    imports: Imports = None,
    python: Interpreter = None,
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
    with asked(implementation, imports=imports or (), python=python) as subject:
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
def asked(
    address: str, *, imports: Sequence[str] = (), python: str | None = None
) -> Iterator[ProcessImplementation]:
    """The implementation in a process of its own, since two releases cannot share one."""
    subject = _start(Side(address, prepare_address(address, imports=imports, python=python)))
    with _closing(subject):
        yield subject


@contextmanager
def asked_both(sides: tuple[Side, Side]) -> Iterator[tuple[ProcessImplementation, ProcessImplementation]]:
    """Both sides, each in a process of its own; they are started at the same time."""
    with ThreadPoolExecutor(2) as pool:
        starting = [pool.submit(_start, side) for side in sides]
    started = [each.result() for each in starting if each.exception() is None]
    try:
        one, other = (each.result() for each in starting)
    except BaseException:
        for subject in started:
            subject.kill()
        raise
    with _closing(one), _closing(other):
        yield one, other


def _start(side: Side) -> ProcessImplementation:
    from kvconform.conformance.process import BrokenExchange, ProcessImplementation

    serving = (sys.executable, "-m", "kvconform.conformance.adapters.serve", side.address)
    imports = [word for module in side.prepared.imports for word in ("--import", module)]
    command = side.prepared.command or (*serving, *imports)
    # The order of a set of strings must not differ between the two.
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    try:
        return ProcessImplementation(command, seconds_per_ask=SECONDS_PER_ASK, environment=environment)
    except (OSError, BrokenExchange) as error:
        raise Stop(f"{side.address}: {error}", BROKEN) from error


@contextmanager
def _closing(subject: ProcessImplementation) -> Iterator[None]:
    from kvconform.conformance.process import BrokenExchange

    try:
        yield
    finally:
        try:
            subject.close()
        except BrokenExchange as fall:
            complain(str(fall))
