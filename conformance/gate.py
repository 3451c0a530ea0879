"""A command's list of expectations: read before a run, held against it, rewritten if asked for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from kvconform.conformance.outputs import opening_destination, write_to
from kvconform.conformance.screen import Stop, complain

if TYPE_CHECKING:
    from kvconform.conformance.expectations import Expectations
    from kvconform.conformance.report.document import Destination, Report

WHAT = "the list of expectations"


class Gate:
    """What a report must get past. Without a list every report does as it is."""

    def __init__(self, listed: Expectations | None, text: str, destination: Destination | None) -> None:
        self._listed = listed
        self._text = text
        self._destination = destination

    def hold(self, report: Report) -> Report:
        """The report as it stands against the list; where asked for, the list is rewritten first."""
        from kvconform.conformance.expectations import hold_against, parse_expectations
        from kvconform.conformance.updating import update

        if self._listed is None:
            return report
        today = datetime.now(UTC).date()
        held, judgement = hold_against(self._listed, report, today)
        if self._destination is None:
            return held
        path = self._listed.path
        if not report.complete:
            complain(f"{path}: not updated, since the run is incomplete")
            return held
        updated = update(self._text, self._listed, judgement)
        if not write_to(self._destination, updated.text.encode(), path, WHAT):
            return held
        complain(f"{path}: {updated.describe()}")
        held, _ = hold_against(parse_expectations(updated.text, path), report, today)
        return held


def demand_whole_run(*, laws: str, kinds: str | None, shard: str | None, examples: int) -> None:
    """End the command where a run is too small for a list to be rewritten after it.

    What such a run does not ask, or does not meet in so few inputs, it would take off the list.
    """
    from kvconform.conformance.profiles import PROFILES

    if laws != "*" or kinds is not None or shard is not None:
        raise Stop("--update wants a whole run: leave out --laws, --kinds and --shard")
    enough = PROFILES["gate"].examples
    if examples < enough:
        raise Stop(f"--update wants a whole run: {examples} examples are fewer than the {enough} of the gate")


@contextmanager
def opening_gate(expect: str | None, *, update: bool = False) -> Iterator[Gate]:
    """The gate of a list in a file, which need not be there to be updated.

    Ends the command when the list cannot be read or, to be updated, cannot be written.
    """
    if expect is None:
        if update:
            raise Stop("--update rewrites the list that --expect names; name one")
        yield Gate(None, "", None)
        return
    from kvconform.conformance.expectations import BadExpectations, Expectations, read_expectations
    from kvconform.conformance.updating import is_updatable

    with ExitStack() as stack:
        destination = stack.enter_context(opening_destination(expect, WHAT)) if update else None
        if update and not Path(expect).exists():
            yield Gate(Expectations(expect), "", destination)
            return
        try:
            listed = read_expectations(expect)
        except BadExpectations as error:
            raise Stop(str(error)) from error
        if update and not is_updatable(listed):
            raise Stop(f"{expect}: cannot be updated: write each entry below a heading [[expected]]")
        yield Gate(listed, Path(expect).read_text(encoding="utf-8"), destination)
