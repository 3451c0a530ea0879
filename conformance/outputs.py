"""The files that a command writes its report to, in every format."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from kvconform.conformance.exits import INCOMPLETE
from kvconform.conformance.screen import Stop, complain, emit, page

if TYPE_CHECKING:
    from kvconform.conformance.report.document import Destination, Report

STANDARD_OUTPUT = "-"


def _json(report: Report) -> bytes:
    from kvconform.conformance.report.document import encode

    return encode(report)


def _junit(report: Report) -> bytes:
    from kvconform.conformance.report.junit import encode_junit

    return encode_junit(report)


def _markdown(report: Report) -> bytes:
    from kvconform.conformance.report.markdown import encode_markdown

    return encode_markdown(report)


def _html(report: Report) -> bytes:
    from kvconform.conformance.report.page import encode_page

    return encode_page(report)


FORMATS: Mapping[str, Callable[[Report], bytes]] = {
    "json": _json,
    "junit": _junit,
    "markdown": _markdown,
    "html": _html,
}
"""Every format of a report by the name of its option."""


class Outputs:
    """Where a report goes. A format without a path is not written; ``-`` is standard output."""

    def __init__(self, paths: Mapping[str, str], destinations: Mapping[str, Destination]) -> None:
        self._paths = paths
        self._destinations = destinations

    @property
    def printed(self) -> str | None:
        """The format that goes to standard output, in place of the text for people."""
        return next((name for name, path in self._paths.items() if path == STANDARD_OUTPUT), None)

    def deliver(self, report: Report, seconds: float = 0.0) -> int:
        """Show the report, unless a format is printed instead, write the files, and say how to exit.

        `seconds` are what the run took. Complains of a file that cannot be written; the exit code
        is not 0 then.
        """
        if self.printed is None:
            from kvconform.conformance.report.terminal import show_report

            with page() as console:
                show_report(console, report, seconds)
        return report.exit if self._write(report) else report.exit or INCOMPLETE

    def _write(self, report: Report) -> bool:
        written = True
        for name, path in self._paths.items():
            content = FORMATS[name](report)
            if path == STANDARD_OUTPUT:
                emit(content.decode())
            else:
                written &= write_to(self._destinations[name], content, path)
        return written


@contextmanager
def opening_outputs(**paths: str | None) -> Iterator[Outputs]:
    """Outputs that can be written, each under the name of its format; nothing is left half done.

    Ends the command where one cannot be written, or where two go to one place.
    """
    given = {name: path for name, path in paths.items() if path is not None}
    taken: dict[str, str] = {}
    with ExitStack() as stack:
        destinations = {}
        for name, path in given.items():
            # What is no regular file, such as /dev/stdout, can take several.
            place = path if path == STANDARD_OUTPUT else str(Path(path).resolve())
            if place in taken and (path == STANDARD_OUTPUT or not _is_special(path)):
                raise Stop(f"--{taken[place]} and --{name} both write to {path}")
            taken[place] = name
            if path != STANDARD_OUTPUT:
                destinations[name] = stack.enter_context(opening_destination(path))
        yield Outputs(given, destinations)


@contextmanager
def opening_destination(path: str, what: str = "the report") -> Iterator[Destination]:
    """A file that can be written, released at the end; ends the command where it cannot."""
    from kvconform.conformance.report.document import Destination

    try:
        destination = Destination(Path(path))
    except OSError as error:
        raise Stop(f"{path}: {what} cannot be written there: {error.strerror}") from error
    try:
        yield destination
    finally:
        destination.release()


def write_to(destination: Destination, content: bytes, path: str, what: str = "the report") -> bool:
    """Put the content in place; complains, and says false, if that cannot be."""
    try:
        destination.write(content)
    except OSError as error:
        complain(f"{path}: {what} cannot be written: {error.strerror}")
        return False
    return True


def _is_special(path: str) -> bool:
    return Path(path).exists() and not Path(path).is_file()


JsonFile = Annotated[
    str | None,
    typer.Option("--json", metavar="FILE", help="Write the report as JSON; - prints it instead."),
]
JunitFile = Annotated[
    str | None, typer.Option("--junit", metavar="FILE", help="Write JUnit XML, which CI systems read.")
]
MarkdownFile = Annotated[
    str | None, typer.Option("--markdown", metavar="FILE", help="Write Markdown, such as a job's summary.")
]
HtmlFile = Annotated[
    str | None, typer.Option("--html", metavar="FILE", help="Write one self-contained page.")
]
ExpectFile = Annotated[
    str | None, typer.Option("--expect", metavar="FILE", help="Known violations, which do not fail the run.")
]
