"""Reports of the shards of one run put together into the report of the whole."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from kvconform.conformance.report.document import Report, Result, Shard, Subject, exit_code
from kvconform.conformance.selection import Pair, SelectionError, find_pairs, take_shard

ALIKE = ("kvconform", "implementation", "seed", "profile", "examples", "fail_on", "laws", "kinds", "engines")
"""What shards of one run have in common."""


class MergeError(Exception):
    """Reports are not those of one run; one line names the first that differs, and in what."""


class Merged(msgspec.Struct, frozen=True):
    """The report of the whole, and the numbers of the shards that are missing."""

    report: Report
    missing: tuple[int, ...]


def merge(reports: Sequence[tuple[str, Report]]) -> Merged:
    """Put the shards of one run together; each comes with what it is called.

    A report that is of no shard is a whole by itself. Where shards are missing or incomplete the
    whole is incomplete. Verdicts that a list of expectations gave are kept; what a shard found to
    differ from it is not, since only the whole can tell: hold the whole against the list again.
    Raises MergeError when the reports are of different runs, overlap, or hold what is not theirs.
    """
    (first_name, first), *_ = reports
    shards = {name: report.shard or Shard(1, 1) for name, report in reports}
    of = shards[first_name].of
    results: dict[tuple[str, str], Result] = {}
    stderr: dict[str, str] = {}
    taken: dict[int, str] = {}
    pairs = _pairs(first, first_name)
    for name, report in reports:
        _compare(first_name, first, name, report)
        number = shards[name].number
        if shards[name].of != of:
            raise MergeError(f"{name}: shard {number} of {shards[name].of}, but {first_name} is one of {of}")
        if number in taken:
            raise MergeError(f"{name}: shard {number} of {of} is that of {taken[number]}, too")
        taken[number] = name
        theirs = {(law.id, kind) for law, kind in take_shard(pairs, shards[name])}
        if report.selected != len(theirs) or not theirs.issuperset(_keys(report)):
            raise MergeError(f"{name}: holds other laws and kinds than shard {number} of {of} does here")
        results.update(zip(_keys(report), report.results, strict=True))
        stderr.update(report.stderr)
    missing = tuple(number for number in range(1, of + 1) if number not in taken)
    ordered = tuple(results[law.id, kind] for law, kind in pairs if (law.id, kind) in results)
    complete = len(ordered) == len(pairs)
    whole = msgspec.structs.replace(
        first,
        shard=None,
        selected=len(pairs),
        results=ordered,
        questions=sum(report.questions for _, report in reports),
        stderr=dict(sorted(stderr.items())),
        expectations="",
        findings=(),
        complete=complete,
        exit=exit_code(ordered, fail_on=first.fail_on, complete=complete),
    )
    return Merged(whole, missing)


def _pairs(report: Report, name: str) -> tuple[Pair, ...]:
    try:
        return find_pairs(report.laws, report.kinds or None)
    except SelectionError as error:
        raise MergeError(f"{name}: {error}") from error


def _compare(first_name: str, first: Report, name: str, report: Report) -> None:
    for field in ALIKE:
        here, there = getattr(first, field), getattr(report, field)
        if here != there:
            words = field.replace("_", " ")
            raise MergeError(
                f"{name}: {words} {_brief(there)}, but {_brief(here)} in {first_name}: not one run"
            )


def _brief(value: object) -> str:
    if isinstance(value, Subject):
        return f"{value.address} {value.version}".strip()
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _keys(report: Report) -> list[tuple[str, str]]:
    return [(result.law, result.kind) for result in report.results]
