"""Running laws over worker processes: what one law does to its process costs only that law."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import IO

import msgspec
from kvconform.conformance.cases import BadCase, Case, reproduce_line
from kvconform.conformance.implementations import AddressError
from kvconform.conformance.messages import (
    Alive,
    Crumb,
    Done,
    Job,
    Message,
    Opened,
    Task,
    Unfit,
    Unopened,
)
from kvconform.conformance.report.document import Asked, Result, Subject
from kvconform.conformance.worker import law_of
from kvconform.properties.law import CATALOGUE, Law

OPENING_SECONDS = 300.0
"""Seconds that importing an implementation may take: a cold torch on a slow disk takes many."""

GRACE_SECONDS = 10.0
"""Seconds beyond the limit of one run after which a silent worker counts as hanging."""

STOPPING_SECONDS = 3.0
"""Seconds that a worker is given to end its implementation's process in peace."""

LAST_WORDS = 2000
"""Characters of a worker's standard error that are kept of a broken law."""

LONGEST_LINE = 1 << 26

Pair = tuple[Law, str]


class OpeningError(Exception):
    """The implementation is there but fell over while it was opened; says how."""


class Run(msgspec.Struct):
    """What came of running pairs of law and kind.

    `results` are in the order of the pairs, without those that were not reached: `interrupted`
    says that a person stopped the run, `trouble` what kept it from going on. `stderr` holds what
    a worker wrote during each broken law, by ``law kind``. `questions` counts what was asked of
    another process, and `seconds` are what the laws took once the implementation was open.
    """

    subject: Subject
    results: tuple[Result, ...]
    stderr: dict[str, str] = {}
    interrupted: bool = False
    trouble: str = ""
    questions: int = 0
    seconds: float = 0.0


def run(job: Job, pairs: Sequence[Pair], *, jobs: int, progress: Callable[[int], None] | None = None) -> Run:
    """Judge every pair, on so many worker processes; `progress` is told how many are done.

    The order of the results and what they say do not depend on the number of processes. SIGINT
    and SIGTERM end the run with what there is. Raises AddressError when there is no such
    implementation and OpeningError when it cannot be opened.
    """
    tasks = [Task(law.id, kind) for law, kind in pairs]
    return _Runner(job, tasks, progress).run(jobs)


def replay(job: Job, case: Case) -> Run:
    """Run one law on one recorded case, in a worker.

    Raises BadCase when it is none of the law's, else as `run` does.
    """
    known = CATALOGUE.get(case.law)
    if known is None:
        raise BadCase(f"the case names an unknown law {case.law!r}")
    if case.kind not in known.kinds:
        raise BadCase(f"{case.law} is not about {case.kind}, but about {', '.join(known.kinds)}")
    return _Runner(job, [Task(case.law, case.kind, case.given)], None).run(1)


class Bench:
    """One worker that is kept between questions, for a caller who brings them one by one.

    It is started when it is first asked, and again after a law that it did not survive; `close`
    ends it. Every call must come from one thread, outside of any running event loop.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._loop: asyncio.Runner | None = None
        self._worker: _Worker | None = None
        self.subject: Subject | None = None

    def ask(self, law: Law, kind: str) -> tuple[Result, str]:
        """The result, and what was written to standard error if the law broke.

        Raises as `run` does.
        """
        if self._loop is None:
            self._loop = asyncio.Runner()
        return self._loop.run(self.answer(Task(law.id, kind)))

    def close(self) -> None:
        """End the worker."""
        if self._loop is None:
            return
        self._loop.run(self.end())
        self._loop.close()
        self._loop = None

    async def end(self) -> None:
        """End the worker, inside of the event loop in which it was asked."""
        if self._worker is not None:
            await self._worker.close()
        self._worker = None

    async def answer(self, task: Task) -> tuple[Result, str]:
        """As `ask` does, inside of a running event loop: others can be asked meanwhile."""
        if self._worker is None:
            worker = _Worker(self._job)
            try:
                opened = await worker.open()
            except BaseException:
                await worker.close()
                raise
            self._worker = worker
            self.subject = _subject(self._job, opened)
        try:
            result = (await self._worker.ask(task)).result
        except _Lost as lost:
            result = _broken(self._job, task, lost.message, self._worker.crumb())
            last_words = self._worker.last_words()
            await self._worker.close()
            self._worker = None
            return result, last_words
        return result, self._worker.last_words() if result.verdict == "broken" else ""


def _subject(job: Job, opened: Opened) -> Subject:
    named = job.implementation
    return Subject(named.address, opened.name, opened.version, named.options, opened.revisions)


class _Runner:
    def __init__(self, job: Job, tasks: list[Task], progress: Callable[[int], None] | None) -> None:
        self._job = job
        self._waiting = deque(enumerate(tasks))
        self._results: dict[int, Result] = {}
        self._stderr: dict[str, str] = {}
        self._subject: Subject | None = None
        self._questions = 0
        self._opened = 0.0
        self._progress = progress

    def run(self, jobs: int) -> Run:
        interrupted = False
        trouble = ""
        try:
            asyncio.run(self._run(min(jobs, len(self._waiting))))
        except (KeyboardInterrupt, asyncio.CancelledError):
            interrupted = True
        except OpeningError as error:
            # A worker that could be opened before: what it found stands.
            if self._subject is None:
                raise
            trouble = str(error)
        subject = self._job.implementation
        return Run(
            self._subject or Subject(subject.address, subject.address, "", subject.options),
            tuple(self._results[index] for index in sorted(self._results)),
            dict(sorted(self._stderr.items())),
            interrupted,
            trouble,
            self._questions,
            time.monotonic() - self._opened if self._opened else 0.0,
        )

    async def _run(self, lanes: int) -> None:
        running = asyncio.current_task()
        assert running is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
        ended = await asyncio.gather(*(self._lane() for _ in range(lanes)), return_exceptions=True)
        for outcome in ended:
            if isinstance(outcome, BaseException):
                raise outcome

    async def _lane(self) -> None:
        worker: _Worker | None = None
        try:
            while self._waiting:
                if worker is None:
                    worker = _Worker(self._job)
                    opened = await worker.open()
                    self._subject = _subject(self._job, opened)
                    self._opened = self._opened or time.monotonic()
                if not self._waiting:
                    break
                index, task = self._waiting.popleft()
                try:
                    done = await worker.ask(task)
                    result = done.result
                    self._questions += done.questions
                    last_words = worker.last_words() if result.verdict == "broken" else ""
                except _Lost as lost:
                    result = _broken(self._job, task, lost.message, worker.crumb())
                    last_words = worker.last_words()
                    await worker.close()
                    worker = None
                if last_words:
                    self._stderr[f"{task.law} {task.kind}"] = last_words
                self._results[index] = result
                if self._progress is not None:
                    self._progress(len(self._results))
        finally:
            if worker is not None:
                await worker.close()


class _Lost(Exception):
    """The worker died or hangs; says which."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class _Worker:
    """One worker process, seen from outside."""

    def __init__(self, job: Job) -> None:
        self._stderr = _scratch()
        self._crumbs = _scratch()
        self._job = msgspec.structs.replace(job, crumbs=self._crumbs.fileno())
        self._limit = job.seconds_per_run + GRACE_SECONDS
        self._heard = 0
        self._process: asyncio.subprocess.Process | None = None

    async def open(self) -> Opened:
        """Start the process and have it open the implementation."""
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            # -P: nothing beside the person who runs this may stand in for a module of the suite.
            *("-P", "-X", "faulthandler", "-m", "kvconform.conformance.worker"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=self._stderr,
            pass_fds=(self._crumbs.fileno(),),
            limit=LONGEST_LINE,
            # The order of a set of strings must not differ from run to run.
            env={**os.environ, "PYTHONHASHSEED": "0"},
            # Ctrl-C is for the parent, which ends its workers together with what they started.
            start_new_session=True,
        )
        address = self._job.implementation.address
        try:
            await self._send(self._job)
            message = await self._receive(OPENING_SECONDS)
        except _Lost as lost:
            words = self.last_words().strip().splitlines()[-1:]
            because = f": {words[0]}" if words else ""
            raise OpeningError(f"{address}: while it was opened, {lost.message}{because}") from lost
        if isinstance(message, Unopened):
            raise OpeningError(message.message) if message.fault else AddressError(message.message)
        assert isinstance(message, Opened)
        return message

    async def ask(self, task: Task) -> Done:
        """What came of the task. Raises `_Lost`, or BadCase when its case is none of the law's."""
        self._heard = os.fstat(self._stderr.fileno()).st_size
        os.ftruncate(self._crumbs.fileno(), 0)
        await self._send(task)
        limit = self._limit
        while isinstance(message := await self._receive(limit), Alive):
            limit = max(self._limit, message.seconds)
        if isinstance(message, Unfit):
            raise BadCase(message.message)
        assert isinstance(message, Done)
        return message

    def last_words(self) -> str:
        """The end of what was written to standard error since the last task."""
        size = os.fstat(self._stderr.fileno()).st_size
        start = max(self._heard, size - LAST_WORDS)
        return os.pread(self._stderr.fileno(), size - start, start).decode(errors="replace")

    def crumb(self) -> Crumb | None:
        """The last question asked during the last task, None if there was none."""
        line, newline, _ = os.pread(self._crumbs.fileno(), LONGEST_LINE, 0).partition(b"\n")
        return msgspec.json.decode(line, type=Crumb) if newline else None

    async def close(self) -> None:
        """End the process and what it started."""
        process = self._process
        if process is not None:
            if self._job.implementation.command and process.stdin is not None:
                # It tells the process that it asks to stop: that one may have something to save.
                process.stdin.close()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(process.wait(), STOPPING_SECONDS)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        self._stderr.close()
        self._crumbs.close()

    async def _send(self, question: Job | Task) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        # A process that is gone is met when its answer is awaited.
        with contextlib.suppress(ConnectionError):
            self._process.stdin.write(msgspec.json.encode(question) + b"\n")
            await self._process.stdin.drain()

    async def _receive(self, seconds: float) -> Message:
        process = self._process
        assert process is not None
        assert process.stdout is not None
        try:
            line = await asyncio.wait_for(process.stdout.readline(), seconds)
        except TimeoutError:
            raise _Lost(f"no answer within {seconds:g} s, and no way to interrupt it") from None
        if line.endswith(b"\n"):
            return msgspec.json.decode(line, type=Message)
        try:
            code = await asyncio.wait_for(process.wait(), GRACE_SECONDS)
        except TimeoutError:
            raise _Lost("the process closed its output") from None
        if code < 0:
            raise _Lost(f"the process was killed by {signal.Signals(-code).name}")
        raise _Lost(f"the process ended with exit status {code}")


def _scratch() -> IO[bytes]:
    return tempfile.TemporaryFile(prefix="kvconform-")


def _broken(job: Job, task: Task, message: str, crumb: Crumb | None) -> Result:
    """The result of a task that its worker did not survive, from what it left behind."""
    case = task.case or {}
    asked: tuple[Asked, ...] = ()
    if crumb is not None:
        case = crumb.case
        asked = (Asked(crumb.operation, crumb.location, "no answer"),)
    return Result(
        law=task.law,
        kind=task.kind,
        severity=law_of(task.law, job.common).severity,
        verdict="broken",
        engines=job.engines if task.case is None else ("replay",),
        message=message,
        case=case,
        reproduce=reproduce_line(
            job.implementation.address, task.law, task.kind, case, job.implementation.options
        ),
        asked=asked,
    )
