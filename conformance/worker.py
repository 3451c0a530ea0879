"""The process that holds an implementation under test and answers for it.

``python -m kvconform.conformance.worker`` reads a `Job` and then one `Task` after another from its
standard input, each a line of JSON, and writes messages to its standard output. Both are taken
away from the implementation first: what it prints goes to standard error, and it reads nothing.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
import time
import traceback
from collections.abc import Callable
from typing import BinaryIO

import msgspec
from kvconform.conformance.cases import BadCase, Drawn, ReplayGiven, reproduce_line
from kvconform.conformance.implementations import AddressError, Prepared, open_implementation
from kvconform.conformance.recording import Call, record, watch
from kvconform.conformance.report.document import Asked, Result
from kvconform.conformance.streams import take_streams
from kvconform.properties.law import CATALOGUE, Law, Violation
from kvconform.reference.interface import Implementation, Unsupported

PROOF_SECONDS = 300.0
"""Seconds that one proof may be silent: its budget is z3's own count, which no clock bounds."""

HEARTBEAT = 1.0
"""Seconds between signs of life during a long task."""

SHARE_OF_RUN = 0.6
"""How much of the time of one run a single question to another process may take."""

LONGEST_ANSWER = 300
"""Characters of an answer that are kept."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker is for. `crumbs` is the descriptor of a file for the case being asked."""

    implementation: Prepared
    engines: tuple[str, ...] = ("sample",)
    examples: int = 100
    seed: int = 0
    seconds_per_run: float = 5.0
    crumbs: int = -1


class Task(msgspec.Struct, frozen=True):
    """One law and kind to be judged: with a case, by that case alone."""

    law: str
    kind: str
    case: dict[str, Drawn] | None = None


class Opened(msgspec.Struct, frozen=True, tag=True):
    """The implementation is ready."""

    name: str
    version: str


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
    """The task's result."""

    result: Result


Message = Opened | Unopened | Alive | Unfit | Done


class Crumb(msgspec.Struct, frozen=True):
    """The question that was being asked: what is known of a process that died."""

    operation: str
    location: str
    case: dict[str, Drawn]


class Outcome(msgspec.Struct, kw_only=True):
    """What one engine found."""

    verdict: str
    examples: int = 0
    domain: str = ""
    message: str = ""
    case: dict[str, Drawn] = {}


class Desk:
    """What the examinations of one worker share: the job, the implementation and the way out."""

    def __init__(self, job: Job, implementation: Implementation, answers: BinaryIO) -> None:
        self.job = job
        self.implementation = implementation
        self._answers = answers
        self._sent = 0.0
        self._locations: dict[tuple[str, str], str] = {}

    def send(self, message: Message) -> None:
        """Tell the parent."""
        _send(self._answers, message)
        self._sent = time.monotonic()

    def alive(self) -> None:
        """Tell the parent that the task goes on, now and then."""
        if time.monotonic() - self._sent > HEARTBEAT:
            self.send(Alive())

    def leave_crumb(self, crumb: Crumb) -> None:
        """Write down what is about to be asked."""
        if self.job.crumbs >= 0:
            # Only the first line counts: no need to cut off what a longer crumb left behind.
            os.pwrite(self.job.crumbs, msgspec.json.encode(crumb) + b"\n", 0)

    def locate(self, operation: str, kind: str) -> str:
        """Where the implementation defines the operation; finding out reads source, so only once."""
        if (operation, kind) not in self._locations:
            try:
                location = self.implementation.location(operation, kind)
            except Exception:
                traceback.print_exc()
                location = ""
            self._locations[operation, kind] = location
        return self._locations[operation, kind]


class Examination:
    """One law asked of one implementation for one kind."""

    def __init__(self, desk: Desk, law: Law, kind: str) -> None:
        self.desk = desk
        self.job = desk.job
        self.implementation = desk.implementation
        self.law = law
        self.kind = kind
        self._case: dict[str, Drawn] = {}

    def judge(self) -> Result:
        """Ask by every engine of the job, and explain what failed."""
        asked = ["sample"]
        outcome = self._ask(ENGINES["sample"])
        if "prove" in self.job.engines and self.law.proved and outcome.verdict in ("held", "violated"):
            asked.append("prove")
            outcome = _weigh(outcome, self._ask(ENGINES["prove"]))
        if outcome.verdict in ("violated", "broken"):
            return self._explain(outcome, tuple(asked))
        return self._result(outcome, engines=tuple(asked))

    def _ask(self, engine: Callable[[Examination], Outcome]) -> Outcome:
        try:
            missing = self.law.missing(self.implementation, self.kind)
            return engine(self) if missing is None else Outcome(verdict="unsupported", message=missing)
        except BaseException as error:
            # The implementation may raise anything, SystemExit and KeyboardInterrupt too.
            _print(error)
            message = f"{type(error).__name__}: {error}"
            return Outcome(verdict="broken", message=message, case=dict(self._case))

    def sample(self) -> Outcome:
        """The sampling engine."""
        from kvconform.properties.sampling import sample

        found = sample(
            self.law,
            watch(self.implementation, self._leave_crumb),
            self.kind,
            examples=self.job.examples,
            seed_number=self.job.seed,
            seconds_per_run=self.job.seconds_per_run,
            trace=self._begin,
        )
        return Outcome(verdict=found.verdict, examples=found.examples, message=found.message, case=found.case)

    def prove(self) -> Outcome:
        """The proving engine: the law run on unknowns over the code under test."""
        if self.job.implementation.command:
            return Outcome(verdict="inconclusive", message="its code runs in a process of its own")
        from kvconform.solver.prove import prove

        self.desk.send(Alive(seconds=PROOF_SECONDS))
        found = prove(self.law, self.implementation, self.kind)
        where = f" ({found.where})" if found.where else ""
        return Outcome(
            verdict=found.verdict, domain=found.domain, message=f"{found.message}{where}", case=found.case
        )

    def replay(self, case: dict[str, Drawn]) -> Result:
        """Run the law once on a recorded case. Raises BadCase when it is none of the law's."""
        missing = self.law.missing(self.implementation, self.kind)
        if missing is not None:
            return self._result(Outcome(verdict="unsupported", message=missing), engines=("replay",))
        calls: list[Call] = []
        outcome = self._run_once(case, calls)
        return self._result(outcome, engines=("replay",), calls=calls)

    def _explain(self, outcome: Outcome, engines: tuple[str, ...]) -> Result:
        calls: list[Call] = []
        try:
            again = self._run_once(outcome.case, calls)
        except BadCase as error:
            again = Outcome(verdict="broken", message=str(error))
        if again.verdict != outcome.verdict:
            outcome.message = f"{outcome.verdict} once ({outcome.message}), {again.verdict} when asked again"
            outcome.verdict = "broken"
        return self._result(outcome, engines=engines, calls=calls)

    def _run_once(self, case: dict[str, Drawn], calls: list[Call]) -> Outcome:
        from kvconform.properties.given import Rejected
        from kvconform.properties.sampling import Fault, TooSlow, run_law, time_limit

        self._begin(case)
        given = ReplayGiven(self.implementation, self.kind, case)
        asked = watch(record(self.implementation, calls), self._leave_crumb)
        outcome = Outcome(verdict="held", examples=1, case=case)
        try:
            with time_limit(self.job.seconds_per_run):
                run_law(self.law, asked, given)
        except Violation as violation:
            outcome = Outcome(verdict="violated", examples=1, message=str(violation), case=case)
        except Unsupported as absent:
            return Outcome(verdict="unsupported", message=str(absent), case=case)
        except Rejected:
            raise BadCase("the case does not meet an assumption of the law") from None
        except Fault as fault:
            if isinstance(fault.__cause__, BadCase):
                raise fault.__cause__ from None
            _print(fault.__cause__ or fault)
            return Outcome(verdict="broken", examples=1, message=str(fault), case=case)
        except TooSlow:
            message = f"no answer within {self.job.seconds_per_run:g} s"
            return Outcome(verdict="broken", examples=1, message=message, case=case)
        except BaseException as error:
            _print(error)
            message = f"{type(error).__name__}: {error}"
            return Outcome(verdict="broken", examples=1, message=message, case=case)
        given.finish()
        return outcome

    def _result(
        self, outcome: Outcome, *, engines: tuple[str, ...] = (), calls: list[Call] | None = None
    ) -> Result:
        failed = outcome.verdict in ("violated", "broken")
        reproduce = ""
        if failed:
            subject = self.job.implementation
            reproduce = reproduce_line(subject.address, self.law.id, self.kind, outcome.case, subject.options)
        return Result(
            law=self.law.id,
            kind=self.kind,
            severity=self.law.severity,
            verdict=outcome.verdict,
            engines=engines,
            examples=outcome.examples,
            domain=outcome.domain,
            # What an implementation answers may hold characters that no encoding has.
            message=outcome.message.encode(errors="backslashreplace").decode(),
            case=outcome.case if failed else {},
            reproduce=reproduce,
            asked=tuple(self._asked(calls)) if failed and calls else (),
            script=self._script(calls, outcome.message) if failed and calls else "",
        )

    def _asked(self, calls: list[Call]) -> list[Asked]:
        return [
            Asked(
                call.operation,
                self.desk.locate(call.operation, self.kind),
                _shorten(call.describe()),
                _shorten(call.describe_arguments()),
            )
            for call in calls
        ]

    def _script(self, calls: list[Call], message: str) -> str:
        write = getattr(self.implementation, "script", None)
        if write is None:
            return ""
        try:
            return str(write([(call.operation, call.arguments, call.answer) for call in calls], message))
        except Exception:
            traceback.print_exc()
            return ""

    def _begin(self, case: dict[str, Drawn]) -> None:
        self._case = case
        self.desk.alive()
        # Here, since what a run of the law may take does not include a new process.
        revive = getattr(self.implementation, "revive", None)
        if revive is not None:
            revive(self.desk.alive)

    def _leave_crumb(self, operation: str) -> None:
        self.desk.leave_crumb(Crumb(operation, self.desk.locate(operation, self.kind), self._case))


ENGINES: dict[str, Callable[[Examination], Outcome]] = {
    "sample": Examination.sample,
    "prove": Examination.prove,
}
"""The engines. Every law is sampled; those that can be proved are then proved too, if asked for."""


def _weigh(sampled: Outcome, proof: Outcome) -> Outcome:
    """What sampling and proving one law come to together.

    A proof counts only where sampling found nothing, and a counterexample of either breaks the
    law, the smaller one being shown. Where there is no proof, what was sampled stands, with why.
    """
    if proof.verdict == "violated":
        smaller = sampled.verdict == "held" or _size(proof.case) <= _size(sampled.case)
        return proof if smaller else sampled
    if sampled.verdict == "violated":
        return sampled
    if proof.verdict == "proved":
        return Outcome(verdict="proved", examples=sampled.examples, domain=proof.domain)
    if proof.verdict == "broken":
        return proof
    return Outcome(verdict="held", examples=sampled.examples, message=f"not proved: {proof.message}")


def _size(case: dict[str, Drawn]) -> int:
    return sum(abs(value) for value in case.values() if isinstance(value, int))


def serve(questions: BinaryIO, answers: BinaryIO) -> None:
    """Answer tasks until there are no more."""
    job = msgspec.json.decode(questions.readline(), type=Job)
    try:
        # Less than a run may take, so that the question is named that was not answered.
        seconds = job.seconds_per_run * SHARE_OF_RUN
        implementation = open_implementation(job.implementation, seconds_per_ask=seconds)
        opened = Opened(str(implementation.name), str(implementation.version))
    except AddressError as error:
        _send(answers, Unopened(str(error), fault=False))
        return
    except BaseException as error:
        traceback.print_exception(error)
        why = f"{type(error).__name__}: {error}".partition("\n")[0]
        address = job.implementation.address
        _send(answers, Unopened(f"{address}: fell over while it was opened: {why}", fault=True))
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
        examination = Examination(desk, CATALOGUE[task.law], task.kind)
        try:
            result = examination.judge() if task.case is None else examination.replay(task.case)
        except BadCase as error:
            desk.send(Unfit(str(error)))
        else:
            desk.send(Done(result))
    if job.implementation.command:
        implementation.close()  # type: ignore[attr-defined]


def _send(answers: BinaryIO, message: Message) -> None:
    answers.write(msgspec.json.encode(message) + b"\n")
    answers.flush()


def _print(error: BaseException) -> None:
    """Write to standard error where it fell over: what another process wrote, or the traceback."""
    words: str | None = getattr(error, "last_words", None)
    if words is None:
        traceback.print_exception(error)
    else:
        print(words, file=sys.stderr)


def _shorten(text: str) -> str:
    return text if len(text) <= LONGEST_ANSWER else f"{text[: LONGEST_ANSWER - 3]}..."


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
