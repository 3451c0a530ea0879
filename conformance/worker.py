"""The process that holds an implementation under test and answers for it.

``python -m kvconform.conformance.worker`` reads a `Job` and then one `Task` after another from its
standard input, each a line of JSON, and writes messages to its standard output. Both are taken
away from the implementation first: what it prints goes to standard error, and it reads nothing.
"""

from __future__ import annotations

import gc
import importlib
from typing import BinaryIO

import msgspec
from kvconform.conformance.cases import BadCase
from kvconform.conformance.common import Common
from kvconform.conformance.examination import Desk, Examination, print_fall
from kvconform.conformance.implementations import AddressError, open_implementation
from kvconform.conformance.messages import Done, Job, Opened, Task, Unfit, Unopened, send
from kvconform.conformance.streams import take_streams
from kvconform.properties.law import CATALOGUE, Law
from kvconform.reference.interface import Implementation
from kvconform.reference.revisions import following

SHARE_OF_RUN = 0.6
"""How much of the time of one run a single question to another process may take."""


def serve(questions: BinaryIO, answers: BinaryIO) -> None:
    """Answer tasks until there are no more."""
    job = msgspec.json.decode(questions.readline(), type=Job)
    try:
        # Less than a run may take, so that the question is named that was not answered.
        seconds = job.seconds_per_run * SHARE_OF_RUN
        implementation = open_implementation(job.implementation, seconds_per_ask=seconds)
        opened = Opened(str(implementation.name), str(implementation.version), declared(implementation))
    except AddressError as error:
        send(answers, Unopened(str(error), fault=False))
        return
    except BaseException as error:
        print_fall(error)
        why = _describe_fall(error)
        address = job.implementation.address
        send(answers, Unopened(f"{address}: fell over while it was opened: {why}", fault=True))
        return
    # All that sampling needs, so that its first law is not charged with the import.
    importlib.import_module("kvconform.properties.laws")
    importlib.import_module("kvconform.properties.sampling")
    forget_constants()
    # What is loaded by now stays: the collector need not walk all of torch again and again.
    gc.collect()
    gc.freeze()
    desk = Desk(job, implementation, answers)
    desk.send(opened)
    for line in questions:
        task = msgspec.json.decode(line, type=Task)
        examination = Examination(desk, law_of(task.law, job.common), task)
        before = _count_asked(job, implementation)
        try:
            result = examination.judge() if task.case is None else examination.replay(task.case)
        except BadCase as error:
            desk.send(Unfit(str(error)))
        else:
            desk.send(Done(result, _count_asked(job, implementation) - before))
    if job.implementation.command:
        implementation.close()  # type: ignore[attr-defined]


def _count_asked(job: Job, implementation: Implementation) -> int:
    asked: int = implementation.asked if job.implementation.command else 0  # type: ignore[attr-defined]
    return asked


def law_of(id: str, common: Common | None) -> Law:
    """The law of an id: one of the catalogue, or one by which an implementation is compared."""
    if common is None or id in CATALOGUE:
        return CATALOGUE[id]
    from kvconform.conformance.sameness import read_sameness

    return read_sameness(id, common)


def declared(implementation: Implementation) -> tuple[str, ...]:
    """The revisions that an implementation declares. Raises `AddressError` for one that there is not."""
    names = tuple(implementation.revisions())
    try:
        following(names)
    except ValueError as error:
        raise AddressError(f"{implementation.name}: {error}") from error
    return names


def _describe_fall(error: BaseException) -> str:
    """What an implementation fell over while it was opened, in one line."""
    from kvconform.conformance.process import BrokenExchange

    if isinstance(error, BrokenExchange):
        # Another process says itself what is wrong, in the end.
        return ": ".join([error.command, error.why, *error.last_words.strip().splitlines()[-1:]])
    return f"{type(error).__name__}: {error}".partition("\n")[0]


def forget_constants() -> None:
    """Keep Hypothesis from drawing the constants that it finds in the modules loaded so far.

    Which modules are loaded depends on what was asked before, and with it a law's draws would;
    it also writes what it finds into a folder of the current directory.
    """
    from hypothesis.internal.conjecture import providers
    from hypothesis.internal.constants_ast import Constants

    nothing = Constants()
    # There is no public switch; a release of Hypothesis without this function needs none.
    if hasattr(providers, "_get_local_constants"):
        setattr(providers, "_get_local_constants", lambda: nothing)  # noqa: B010


def main() -> None:
    """Take over the standard streams and serve."""
    serve(*take_streams())


if __name__ == "__main__":
    main()
