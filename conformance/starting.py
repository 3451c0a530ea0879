"""What commands have in common: an implementation opened, laws run on it, what came of it reported."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kvconform.conformance.exits import BROKEN
from kvconform.conformance.screen import Stop, complain, counting, fetching

if TYPE_CHECKING:
    from kvconform.conformance.implementations import Prepared
    from kvconform.conformance.profiles import Profile
    from kvconform.conformance.report.document import Report, Shard
    from kvconform.conformance.selection import Pair

MOST_JOBS = 8
"""Workers by default at most: each holds a copy of the implementation in memory."""


def find_version() -> str:
    """The version of kvconform."""
    from importlib.metadata import version

    return version("kvconform")


def count_cores() -> int:
    """How many workers to run by default."""
    # Not every platform can say which cores this process may use.
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(MOST_JOBS, usable)


def prepare_address(address: str, *, imports: Sequence[str] = (), python: str | None = None) -> Prepared:
    """The implementation with its files here; ends the command when there is none such."""
    from kvconform.conformance.implementations import AddressError, prepare

    try:
        with fetching(address) as progress:
            return prepare(address, imports=imports, python=python, progress=progress)
    except AddressError as error:
        raise Stop(str(error)) from error


@contextmanager
def opening() -> Iterator[None]:
    """An implementation that cannot be opened ends the command."""
    from kvconform.conformance.implementations import AddressError
    from kvconform.conformance.running import OpeningError

    try:
        yield
    except AddressError as error:
        raise Stop(str(error)) from error
    except OpeningError as error:
        raise Stop(str(error), BROKEN) from error


def find_profile(name: str) -> Profile:
    """The profile of that name; ends the command when there is none."""
    from kvconform.conformance.profiles import PROFILES

    if name not in PROFILES:
        raise Stop(f"unknown profile {name!r}; the profiles: {', '.join(PROFILES)}")
    return PROFILES[name]


def find_engines(names: str) -> tuple[str, ...]:
    """The engines named, separated by commas; ends the command for an unknown one."""
    from kvconform.conformance.examination import ENGINES

    engines = tuple(name.strip() for name in names.split(","))
    for name in engines:
        if name not in ENGINES:
            raise Stop(f"unknown engine {name!r}; the engines: {', '.join(ENGINES)}")
    return engines


def run_laws(
    address: str,
    pairs: Sequence[Pair],
    *,
    imports: Sequence[str] = (),
    python: str | None = None,
    laws: str,
    kinds: str | None,
    shard: Shard | None = None,
    engines: tuple[str, ...] = ("sample",),
    profile: Profile,
    examples: int | None = None,
    seed: int,
    jobs: int | None,
    fail_on: tuple[str, ...],
) -> tuple[Report, float]:
    """Run pairs of law and kind on an implementation, with what is seen of it on standard error.

    The report, and the seconds that the laws took: they differ from run to run and are no part of
    it. `laws`, `kinds` and `shard` are what the pairs were selected by. Ends the command when the
    implementation cannot be opened.
    """
    from kvconform.conformance.messages import Job
    from kvconform.conformance.report.document import Report, exit_code
    from kvconform.conformance.running import run

    job = Job(
        implementation=prepare_address(address, imports=imports, python=python),
        engines=engines,
        examples=examples or profile.examples,
        seed=seed,
        seconds_per_run=profile.seconds_per_run,
    )
    with counting(f"{address}: law x kind", len(pairs)) as progress, opening():
        done = run(job, pairs, jobs=jobs or count_cores(), progress=progress)
    if done.interrupted:
        complain(f"interrupted after {len(done.results)} of {len(pairs)}")
    if done.trouble:
        complain(done.trouble)
    complete = len(done.results) == len(pairs)
    report = Report(
        kvconform=find_version(),
        implementation=done.subject,
        seed=seed,
        profile=profile.name,
        examples=job.examples,
        fail_on=fail_on,
        laws=laws,
        kinds=kinds or "",
        engines=engines,
        shard=shard,
        selected=len(pairs),
        results=done.results,
        questions=done.questions,
        stderr=done.stderr,
        complete=complete,
        exit=exit_code(done.results, fail_on=fail_on, complete=complete),
    )
    return report, done.seconds
