"""Judging a law on two implementations at once, each in a worker process that holds it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import Protocol, Self

from kvconform.conformance.common import Common
from kvconform.conformance.implementations import Prepared
from kvconform.conformance.messages import Job, Task
from kvconform.conformance.report.document import Result
from kvconform.conformance.running import Bench

MOST_PATHS = 200
"""Paths of one proof: two releases are to be compared while somebody waits."""

SECONDS_PER_RUN = 20.0
"""Seconds that one run of a law may take."""


def jobs_of(
    sides: Sequence[Prepared], common: Common, *, engines: tuple[str, ...], examples: int, seed: int
) -> list[Job]:
    """A worker's job for each side: to tell verdicts, in what the two have in common."""
    return [
        Job(
            implementation=side,
            engines=engines,
            examples=examples,
            seed=seed,
            seconds_per_run=SECONDS_PER_RUN,
            common=common,
            refine=False,
            paths=MOST_PATHS,
        )
        for side in sides
    ]


def find_obstacle(sides: Sequence[Prepared], engines: tuple[str, ...]) -> str:
    """Why nothing can be proved of the two; empty where it can."""
    if "prove" not in engines:
        return "not asked for"
    for side in sides:
        if side.command:
            return f"the code of {side.address} runs in a process of its own"
    return ""


class Judge(Protocol):
    """What judges one law and kind on both sides."""

    def __call__(self, task: Task) -> tuple[Result, Result]:
        """The left side's result and the right one's."""


class Judges:
    """Workers of two sides, started when they are first asked and kept until they are closed."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._benches = [Bench(job) for job in jobs]
        self._loop: asyncio.Runner | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._loop is not None:
            with self._loop as loop:
                loop.run(self._end())

    def __call__(self, task: Task) -> tuple[Result, Result]:
        """Raises as `running.run` does."""
        if self._loop is None:
            self._loop = asyncio.Runner()
        left, right = self._loop.run(self._ask(task))
        return left, right

    async def _ask(self, task: Task) -> list[Result]:
        answers = await asyncio.gather(*(bench.answer(task) for bench in self._benches))
        return [result for result, _ in answers]

    async def _end(self) -> None:
        await asyncio.gather(*(bench.end() for bench in self._benches))
