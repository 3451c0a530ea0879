"""What a command shows besides its answer, and how it stops: progress, complaints, pages."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kvconform.conformance.exits import BAD_INPUT

if TYPE_CHECKING:
    from rich.console import Console

WIDTH = 100
"""Columns where standard output is no terminal."""


class Stop(Exception):
    """Ends a command with one line on standard error and an exit code."""

    def __init__(self, message: str, code: int = BAD_INPUT) -> None:
        super().__init__(message)
        self.code = code


def complain(message: str) -> None:
    """Print one line on standard error."""
    print(f"kvconform: {' '.join(message.split())}", file=sys.stderr)


def emit(text: str) -> None:
    """Write to standard output; a reader that has gone away is no error."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes once more at exit, and would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def page() -> Iterator[Console]:
    """A console whose text goes to standard output when the block ends."""
    from rich.console import Console

    terminal = sys.stdout.isatty()
    text_file = io.StringIO()
    console = Console(
        file=text_file,
        force_terminal=terminal,
        width=None if terminal else WIDTH,
        highlight=False,
        emoji=False,
        markup=False,
    )
    yield console
    text = text_file.getvalue()
    if not terminal:
        # Rich fills lines up with spaces, which only a terminal's colours need.
        text = "".join(f"{line.rstrip()}\n" for line in text.splitlines())
    emit(text)


@contextmanager
def fetching(what: str) -> Iterator[Callable[[int, int | None], None]]:
    """A bar of bytes on standard error, where that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    label = TextColumn("fetching {task.description}")
    columns = (label, BarColumn(), DownloadColumn(), TransferSpeedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task(what, total=None, visible=False)
        yield lambda done, total: progress.update(bar, completed=done, total=total, visible=True)


LONGEST_LABEL = 44
"""Characters of what a bar counts that are shown."""


@contextmanager
def counting(what: str, total: int | None = None) -> Iterator[Callable[..., None]]:
    """A bar of things done on standard error, where that is a terminal.

    What is yielded is told how many are done and, where that is not known before, of how many.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    # A long address would leave no room for the bar and the count.
    shown = what if len(what) <= LONGEST_LABEL else f"{what[:10]}...{what[13 - LONGEST_LABEL :]}"
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task(shown, total=total)
        yield lambda done, of=total: progress.update(bar, completed=done, total=of)
