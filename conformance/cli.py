"""The command line. Each command is one function; what it needs is imported when it is called."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from kvconform.conformance import (
    commands_adapters,
    commands_compare,
    commands_device,
    commands_explain,
    commands_prove,
    commands_reports,
)
from kvconform.conformance.exits import BAD_INPUT, INCOMPLETE
from kvconform.conformance.outputs import ExpectFile, HtmlFile, JsonFile, JunitFile, MarkdownFile
from kvconform.conformance.screen import Stop, complain, emit, page
from kvconform.conformance.starting import (
    find_engines,
    find_profile,
    find_version,
    opening,
    prepare_address,
    run_laws,
)
from kvconform.conformance.subjects import Address, Imports, Interpreter

# Click's exception for wrong arguments, wherever this release of typer keeps it.
UsageError: type[Exception] = typer.BadParameter.__mro__[1]

KEYBOARD_INTERRUPT = 130
"""What typer makes of Ctrl-C."""

app = typer.Typer(
    name="kvconform",
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Check a KV-cache implementation against the laws of its spec.",
    epilog="Exit codes: 0 conforms, 1 violated, 2 bad input, 3 inconclusive or incomplete, 4 broken.",
)


@app.command("run")
def run_command(
    implementation: Address,
    imports: Imports = None,
    python: Interpreter = None,
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
    shard: Annotated[str | None, typer.Option(metavar="I/N", help="Only the Ith of N parts.")] = None,
    expect: ExpectFile = None,
    update: Annotated[bool, typer.Option("--update", help="Rewrite the list that --expect names.")] = False,
    json: JsonFile = None,
    junit: JunitFile = None,
    markdown: MarkdownFile = None,
    html: HtmlFile = None,
) -> int:
    """Check every law, on every kind of spec that it is about."""
    from kvconform.conformance.gate import demand_whole_run, opening_gate
    from kvconform.conformance.outputs import opening_outputs
    from kvconform.conformance.selection import (
        SelectionError,
        find_pairs,
        find_severities,
        find_shard,
        take_shard,
    )

    amount = find_profile(profile)
    if update:
        demand_whole_run(laws=laws, kinds=kinds, shard=shard, examples=examples or amount.examples)
    try:
        pairs = find_pairs(laws, kinds)
        severities = find_severities(fail_on)
        part = None if shard is None else find_shard(shard)
        if part is not None:
            pairs = take_shard(pairs, part)
    except SelectionError as error:
        raise Stop(str(error)) from error
    engines = find_engines(engine)
    with (
        opening_outputs(json=json, junit=junit, markdown=markdown, html=html) as outputs,
        opening_gate(expect, update=update) as gate,
    ):
        report, seconds = run_laws(
            implementation,
            pairs,
            imports=imports or (),
            python=python,
            laws=laws,
            kinds=kinds,
            shard=part,
            engines=engines,
            profile=amount,
            examples=examples,
            seed=seed,
            jobs=jobs,
            fail_on=severities,
        )
        return outputs.deliver(gate.hold(report), seconds)


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
    imports: Imports = None,
    python: Interpreter = None,
    profile: Annotated[str, typer.Option(metavar="NAME", help="Whose time limit holds.")] = "gate",
) -> int:
    """Run one law on one recorded case."""
    from kvconform.conformance.cases import BadCase, read_case
    from kvconform.conformance.messages import Job
    from kvconform.conformance.report.document import exit_code
    from kvconform.conformance.report.terminal import show_result
    from kvconform.conformance.running import replay
    from kvconform.conformance.selection import find_laws

    amount = find_profile(profile)
    find_laws()
    try:
        recorded = read_case(case)
        prepared = prepare_address(implementation, imports=imports or (), python=python)
        job = Job(implementation=prepared, seconds_per_run=amount.seconds_per_run)
        with opening():
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
    from kvconform.conformance.selection import SelectionError, find_every_law

    try:
        found = find_every_law() if laws is None else find_every_law(laws)
    except SelectionError as error:
        raise Stop(str(error)) from error
    with page() as console:
        if laws is None:
            list_laws(console, found)
        else:
            explain_laws(console, found)
    return 0


commands_adapters.register(app)
commands_compare.register(app)
commands_device.register(app)
commands_explain.register(app)
commands_prove.register(app)
commands_reports.register(app)


@app.callback(invoke_without_command=True)
def options(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False,
) -> None:
    """Check a KV-cache implementation against the laws of its spec."""
    if version:
        emit(f"kvconform {find_version()}\n")
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
