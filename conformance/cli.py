"""The command line. Each command is one function; what it needs is imported when it is called."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from kvconform.conformance.exits import BAD_INPUT, BROKEN, INCOMPLETE
from kvconform.conformance.screen import Stop, complain, counting, emit, fetching, page

if TYPE_CHECKING:
    from kvconform.conformance.implementations import Prepared
    from kvconform.conformance.report.document import Destination

# Click's exception for wrong arguments, wherever this release of typer keeps it.
UsageError: type[Exception] = typer.BadParameter.__mro__[1]

KEYBOARD_INTERRUPT = 130
"""What typer makes of Ctrl-C."""

MOST_JOBS = 8
"""Workers by default at most: each holds a copy of the implementation in memory."""

app = typer.Typer(
    name="kvconform",
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Check a KV-cache implementation against the laws of its spec.",
    epilog="Exit codes: 0 conforms, 1 violated, 2 bad input, 3 inconclusive or incomplete, 4 broken.",
)

Address = Annotated[
    str,
    typer.Argument(
        metavar="IMPLEMENTATION",
        help="reference, vllm, vllm==VERSION, vllm@DIRECTORY or python:MODULE:ATTRIBUTE.",
        show_default=False,
    ),
]


@app.command("run")
def run_command(  # noqa: PLR0917 (typer passes options by name)
    implementation: Address,
    laws: Annotated[str, typer.Option(metavar="GLOB,..", help="Only laws whose id matches.")] = "*",
    kinds: Annotated[str | None, typer.Option(metavar="KIND,..", help="Only these kinds of spec.")] = None,
    engine: Annotated[str, typer.Option(metavar="ENGINE,..", help="How laws are checked.")] = "sample",
    profile: Annotated[str, typer.Option(metavar="NAME", help="quick, gate or deep.")] = "gate",
    examples: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Inputs per law and kind, not the profile's.")
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="The same seed finds the same.")] = 0,
    jobs: Annotated[
        int | None,
        typer.Option(min=1, max=256, metavar="N", help="Worker processes; one per core by default."),
    ] = None,
    fail_on: Annotated[
        str, typer.Option(metavar="SEVERITY,..", help="Severities that make the exit code 1.")
    ] = "safety,agreement,formula",
    json: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write the report there too; - prints it instead.")
    ] = None,
) -> int:
    """Check every law, on every kind of spec that it is about."""
    from kvconform.conformance.profiles import PROFILES
    from kvconform.conformance.report.document import Report, encode, exit_code
    from kvconform.conformance.running import run
    from kvconform.conformance.selection import SelectionError, find_pairs, find_severities
    from kvconform.conformance.worker import ENGINES, Job

    try:
        pairs = find_pairs(laws, kinds)
        severities = find_severities(fail_on)
    except SelectionError as error:
        raise Stop(str(error)) from error
    if profile not in PROFILES:
        raise Stop(f"unknown profile {profile!r}; the profiles: {', '.join(PROFILES)}")
    engines = tuple(name.strip() for name in engine.split(","))
    for name in engines:
        if name not in ENGINES:
            raise Stop(f"unknown engine {name!r}; the engines: {', '.join(ENGINES)}")
    with _destination(json) as destination:
        job = Job(
            implementation=_prepare(implementation),
            engines=engines,
            examples=examples or PROFILES[profile].examples,
            seed=seed,
            seconds_per_run=PROFILES[profile].seconds_per_run,
        )
        with counting(f"{implementation}: law x kind", len(pairs)) as progress, _opening():
            done = run(job, pairs, jobs=jobs or _cores(), progress=progress)
        complete = len(done.results) == len(pairs)
        report = Report(
            kvconform=_version(),
            implementation=done.subject,
            seed=seed,
            profile=profile,
            examples=job.examples,
            fail_on=severities,
            selected=len(pairs),
            results=done.results,
            stderr=done.stderr,
            complete=complete,
            exit=exit_code(done.results, fail_on=severities, complete=complete),
        )
        if done.interrupted:
            complain(f"interrupted after {len(done.results)} of {len(pairs)}")
        if done.trouble:
            complain(done.trouble)
        if json == "-":
            emit(encode(report).decode())
        else:
            from kvconform.conformance.report.terminal import show_report

            with page() as console:
                show_report(console, report)
        if destination is not None:
            try:
                destination.write(encode(report))
            except OSError as error:
                complain(f"{json}: the report cannot be written: {error.strerror}")
                return report.exit or INCOMPLETE
    return report.exit


@app.command("replay")
def replay_command(
    implementation: Address,
    case: Annotated[
        str,
        typer.Argument(
            metavar="CASE",
            help="A recorded case: as JSON, as a file that holds it, or - for standard input.",
            show_default=False,
        ),
    ],
    profile: Annotated[str, typer.Option(metavar="NAME", help="Whose time limit holds.")] = "gate",
) -> int:
    """Run one law on one recorded case."""
    from kvconform.conformance.cases import BadCase, read_case
    from kvconform.conformance.profiles import PROFILES
    from kvconform.conformance.report.document import exit_code
    from kvconform.conformance.report.terminal import show_result
    from kvconform.conformance.running import replay
    from kvconform.conformance.selection import find_laws
    from kvconform.conformance.worker import Job

    if profile not in PROFILES:
        raise Stop(f"unknown profile {profile!r}; the profiles: {', '.join(PROFILES)}")
    find_laws()
    try:
        recorded = read_case(case)
        job = Job(implementation=_prepare(implementation), seconds_per_run=PROFILES[profile].seconds_per_run)
        with _opening():
            done = replay(job, recorded)
    except BadCase as error:
        raise Stop(str(error)) from error
    if done.trouble:
        complain(done.trouble)
    if not done.results:
        return INCOMPLETE
    (result,) = done.results
    with page() as console:
        show_result(console, result, "".join(done.stderr.values()))
    if result.verdict == "unsupported":
        return INCOMPLETE
    return exit_code(done.results, fail_on=(result.severity,), complete=True)


@app.command("laws")
def laws_command(
    laws: Annotated[
        str | None,
        typer.Argument(metavar="[ID]", help="Explain these laws: an id or a glob.", show_default=False),
    ] = None,
) -> int:
    """List the laws, or explain some."""
    from kvconform.conformance.report.catalogue import explain_laws, list_laws
    from kvconform.conformance.selection import SelectionError, find_laws

    try:
        found = find_laws() if laws is None else find_laws(laws)
    except SelectionError as error:
        raise Stop(str(error)) from error
    with page() as console:
        if laws is None:
            list_laws(console, found)
        else:
            explain_laws(console, found)
    return 0


@app.callback(invoke_without_command=True)
def options(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False,
) -> None:
    """Check a KV-cache implementation against the laws of its spec."""
    if version:
        emit(f"kvconform {_version()}\n")
        raise typer.Exit
    if context.invoked_subcommand is None:
        raise Stop("name a command; kvconform --help lists them")


def main() -> None:
    """The console command: runs and exits."""
    # What a law or an implementation says may be more than the terminal's encoding can.
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        code = app(standalone_mode=False)
    except Stop as stop:
        complain(str(stop))
        code = stop.code
    except UsageError as error:
        complain(f"{getattr(error, 'format_message', error.__str__)()} See kvconform --help.")
        code = BAD_INPUT
    except (KeyboardInterrupt, typer.Abort):
        code = KEYBOARD_INTERRUPT
    if code == KEYBOARD_INTERRUPT:
        complain("interrupted")
        code = INCOMPLETE
    sys.exit(code or 0)


def _version() -> str:
    from importlib.metadata import version

    return version("kvconform")


def _cores() -> int:
    # Not every platform can say which cores this process may use.
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(MOST_JOBS, usable)


def _prepare(address: str) -> Prepared:
    from kvconform.conformance.implementations import AddressError, prepare

    try:
        with fetching(address) as progress:
            return prepare(address, progress=progress)
    except AddressError as error:
        raise Stop(str(error)) from error


@contextmanager
def _opening() -> Iterator[None]:
    """An implementation that cannot be opened stops the command."""
    from kvconform.conformance.implementations import AddressError
    from kvconform.conformance.running import OpeningError

    try:
        yield
    except AddressError as error:
        raise Stop(str(error)) from error
    except OpeningError as error:
        raise Stop(str(error), BROKEN) from error


@contextmanager
def _destination(path: str | None) -> Iterator[Destination | None]:
    """Where a report goes, None for nowhere or standard output; nothing is left half written."""
    from kvconform.conformance.report.document import Destination

    if path is None or path == "-":
        yield None
        return
    try:
        destination = Destination(Path(path))
    except OSError as error:
        raise Stop(f"{path}: the report cannot be written there: {error.strerror}") from error
    try:
        yield destination
    finally:
        destination.release()
