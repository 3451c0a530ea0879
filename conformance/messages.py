"""What a worker is told and what it answers: a line of JSON each."""

from __future__ import annotations

from typing import BinaryIO

import msgspec
from kvconform.conformance.cases import Drawn
from kvconform.conformance.common import Common
from kvconform.conformance.implementations import Prepared
from kvconform.conformance.report.document import Result


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker is for. `crumbs` is the descriptor of a file for the case being asked.

    `common` is what the implementation has in common with another that it is compared with. Unless
    it is to `refine`, the verdict is all that is asked for: a failing case is neither made small nor
    explained. One proof may take so many `paths`, the prover's own number where that is None.
    """

    implementation: Prepared
    engines: tuple[str, ...] = ("sample",)
    examples: int = 100
    seed: int = 0
    seconds_per_run: float = 5.0
    crumbs: int = -1
    common: Common | None = None
    refine: bool = True
    paths: int | None = None


class Task(msgspec.Struct, frozen=True):
    """One law and kind to be judged: with a case, by that case alone.

    `examples` and `engines` are the job's unless given.
    """

    law: str
    kind: str
    case: dict[str, Drawn] | None = None
    examples: int | None = None
    engines: tuple[str, ...] | None = None


class Opened(msgspec.Struct, frozen=True, tag=True):
    """The implementation is ready."""

    name: str
    version: str
    revisions: tuple[str, ...] = ()


class Unopened(msgspec.Struct, frozen=True, tag=True):
    """The implementation cannot be asked: `fault` when it is there but fell over."""

    message: str
    fault: bool


class Alive(msgspec.Struct, frozen=True, tag=True):
    """The task goes on, and may be silent for so many seconds where that is more than usual."""

    seconds: float = 0.0


class Unfit(msgspec.Struct, frozen=True, tag=True):
    """The case is none of the law's."""

    message: str


class Done(msgspec.Struct, frozen=True, tag=True):
    """The task's result, and how many questions it took where another process is asked."""

    result: Result
    questions: int = 0


Message = Opened | Unopened | Alive | Unfit | Done


class Crumb(msgspec.Struct, frozen=True):
    """The question that was being asked: what is known of a process that died."""

    operation: str
    location: str
    case: dict[str, Drawn]


def send(answers: BinaryIO, message: Message) -> None:
    """Write a message for the parent."""
    answers.write(msgspec.json.encode(message) + b"\n")
    answers.flush()
