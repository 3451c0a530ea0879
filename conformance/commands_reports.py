"""Commands that put reports together, and that write cases for others to use."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from kvconform.conformance.exits import BROKEN, CONFORMS, INCOMPLETE
from kvconform.conformance.outputs import (
    ExpectFile,
    HtmlFile,
    JunitFile,
    MarkdownFile,
    opening_destination,
    write_to,
)
from kvconform.conformance.screen import Stop, complain, emit, page
from kvconform.conformance.starting import find_profile, prepare_address, run_laws
from kvconform.conformance.subjects import Imports, Interpreter

if TYPE_CHECKING:
    from kvconform.conformance.report.document import Report

Laws = Annotated[str, typer.Option(metavar="GLOB,..", help="Only laws whose id matches.")]
Kinds = Annotated[str | None, typer.Option(metavar="KIND,..", help="Only these kinds of spec.")]


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command("merge-reports")(merge_command)
    app.command("matrix")(matrix_command)
    app.command("vectors")(vectors_command)


def merge_command(
    out: Annotated[str, typer.Argument(metavar="OUT", help="The JSON report to write.", show_default=False)],
    reports: Annotated[
        list[str],
        typer.Argument(metavar="IN..", help="The JSON reports of the shards of one run.", show_default=False),
    ],
    expect: ExpectFile = None,
    junit: JunitFile = None,
    markdown: MarkdownFile = None,
    html: HtmlFile = None,
) -> int:
    """Put the reports of the shards of one run together."""
    from kvconform.conformance.gate import opening_gate
    from kvconform.conformance.merged import MergeError, merge
    from kvconform.conformance.outputs import opening_outputs

    named = [(path, _read(path)) for path in reports]
    with (
        opening_outputs(json=out, junit=junit, markdown=markdown, html=html) as outputs,
        opening_gate(expect) as gate,
    ):
        try:
            merged = merge(named)
        except MergeError as error:
            raise Stop(str(error)) from error
        for number in merged.missing:
            complain(f"shard {number} of {len(named) + len(merged.missing)} is missing")
        return outputs.deliver(gate.hold(merged.report))


def matrix_command(
    implementations: Annotated[
        list[str],
        typer.Argument(
            metavar="IMPLEMENTATION..",
            help="What to run, as for run; or JSON reports of runs, by names that end with .json.",
            show_default=False,
        ),
    ],
    imports: Imports = None,
    python: Interpreter = None,
    laws: Laws = "*",
    kinds: Kinds = None,
    profile: Annotated[str, typer.Option(metavar="NAME", help="quick, gate or deep.")] = "gate",
    seed: Annotated[int, typer.Option(metavar="N", help="The same seed finds the same.")] = 0,
    jobs: Annotated[
        int | None,
        typer.Option(min=1, max=256, metavar="N", help="Worker processes; one per core by default."),
    ] = None,
    html: HtmlFile = None,
) -> int:
    """Show several implementations side by side: laws down, implementations across.

    --import and --python go with every implementation that is run, and not with reports.
    """
    from kvconform.conformance.matrix import exit_code_of
    from kvconform.conformance.report.matrix_page import encode_matrix
    from kvconform.conformance.report.matrix_table import show_matrix
    from kvconform.conformance.selection import SelectionError, find_pairs
    from kvconform.properties.law import GATING

    try:
        pairs = find_pairs(laws, kinds)
    except SelectionError as error:
        raise Stop(str(error)) from error
    amount = find_profile(profile)
    read = {path: _read(path) for path in implementations if _is_report(path)}
    if len(read) == len(set(implementations)) and (imports or python is not None):
        raise Stop("--import and --python go with implementations that are run, and here are reports only")
    # A name that is wrong is told before the first run, not after it.
    for address in implementations:
        if address not in read:
            prepare_address(address, imports=imports or (), python=python)
    found: list[Report] = []
    taken: list[float] = []
    with ExitStack() as stack:
        destination = None if html is None else stack.enter_context(opening_destination(html))
        code = CONFORMS
        for address in implementations:
            try:
                report, seconds = read.get(address), 0.0
                if report is None:
                    report, seconds = run_laws(
                        address,
                        pairs,
                        imports=imports or (),
                        python=python,
                        laws=laws,
                        kinds=kinds,
                        profile=amount,
                        seed=seed,
                        jobs=jobs,
                        fail_on=GATING,
                    )
            except Stop as stop:
                # One that falls over when it is opened does not cost the others.
                if stop.code != BROKEN:
                    raise
                complain(str(stop))
                code = BROKEN
                continue
            found.append(report)
            taken.append(seconds)
            if not report.complete and address not in read:
                break
        if not found:
            return code
        with page() as console:
            show_matrix(console, found, taken)
        code = code or exit_code_of(found)
        if len(found) < len(implementations):
            code = code or INCOMPLETE
        if (
            destination is not None
            and html is not None
            and not write_to(destination, encode_matrix(found), html)
        ):
            code = code or INCOMPLETE
        return code


def vectors_command(
    directory: Annotated[
        str, typer.Argument(metavar="DIRECTORY", help="Where to write them.", show_default=False)
    ],
    laws: Laws = "*",
    kinds: Kinds = None,
    any_language: Annotated[
        bool,
        typer.Option("--implementation-independent", help="Leave out what only Python code can be asked."),
    ] = False,
) -> int:
    """Write test vectors of the laws, to be used without kvconform."""
    from kvconform.conformance.screen import counting
    from kvconform.conformance.selection import SelectionError, find_pairs
    from kvconform.conformance.starting import find_version
    from kvconform.conformance.vectors import VectorsError, check_directory, make_vectors, write_directory
    from kvconform.conformance.worker import forget_constants

    place = Path(directory)
    try:
        pairs = find_pairs(laws, kinds)
        check_directory(place)
    except (SelectionError, VectorsError) as error:
        raise Stop(str(error)) from error
    forget_constants()
    with counting("test vectors: law x kind", len(pairs)) as progress:
        files = make_vectors(pairs, version=find_version(), any_language=any_language, progress=progress)
    try:
        write_directory(place, files)
    except OSError as error:
        raise Stop(f"{directory}: the vectors cannot be written: {error.strerror}") from error
    emit(f"{directory}: {len(files)} files\n")
    return CONFORMS


def _is_report(path: str) -> bool:
    return path.endswith(".json")


def _read(path: str) -> Report:
    from kvconform.conformance.report.document import BadReport, read_report

    try:
        return read_report(path)
    except BadReport as error:
        raise Stop(str(error)) from error
