"""One law asked of one implementation: by every engine, and once more to explain what failed."""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from typing import BinaryIO

import msgspec
from kvconform.conformance.cases import BadCase, Drawn, ReplayGiven, reproduce_line
from kvconform.conformance.messages import Alive, Crumb, Job, Message, Task, send
from kvconform.conformance.recording import Call, is_crash, record, watch
from kvconform.conformance.report.document import Asked, Result
from kvconform.properties.law import Law, Violation
from kvconform.reference.interface import Implementation, Unsupported

PROOF_SECONDS = 300.0
"""Seconds that one proof may be silent: its budget is z3's own count, which no clock bounds."""

HEARTBEAT = 1.0
"""Seconds between signs of life during a long task."""

LONGEST_ANSWER = 300
"""Characters of an answer that are kept."""


class Outcome(msgspec.Struct, kw_only=True):
    """What one engine found."""

    verdict: str
    examples: int = 0
    domain: str = ""
    message: str = ""
    case: dict[str, Drawn] = {}
    crashed: bool = False


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
        send(self._answers, message)
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

    def __init__(self, desk: Desk, law: Law, task: Task) -> None:
        self.desk = desk
        self.job = msgspec.structs.replace(
            desk.job,
            examples=desk.job.examples if task.examples is None else task.examples,
            engines=desk.job.engines if task.engines is None else task.engines,
        )
        self.implementation = desk.implementation
        self.law = law
        self.kind = task.kind
        self._case: dict[str, Drawn] = {}

    def judge(self) -> Result:
        """Ask by every engine of the job, and explain what failed."""
        asked = ["sample"]
        outcome = self._ask(ENGINES["sample"])
        provable = ("held", "violated") if self.job.refine else ("held",)
        if "prove" in self.job.engines and self.law.proved and outcome.verdict in provable:
            asked.append("prove")
            outcome = _weigh(outcome, self._ask(ENGINES["prove"]))
        if outcome.verdict in ("violated", "broken") and self.job.refine:
            return self._explain(outcome, tuple(asked))
        return self._result(outcome, engines=tuple(asked))

    def _ask(self, engine: Callable[[Examination], Outcome]) -> Outcome:
        try:
            missing = self.law.missing(self.implementation, self.kind)
            return engine(self) if missing is None else Outcome(verdict="unsupported", message=missing)
        except BaseException as error:
            # The implementation may raise anything, SystemExit and KeyboardInterrupt too.
            print_fall(error)
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
            shrink=self.job.refine,
        )
        return Outcome(verdict=found.verdict, examples=found.examples, message=found.message, case=found.case)

    def prove(self) -> Outcome:
        """The proving engine: the law run on unknowns over the code under test."""
        if self.job.implementation.command:
            return Outcome(verdict="inconclusive", message="its code runs in a process of its own")
        from kvconform.solver.prove import DEFAULT_BUDGET, prove

        self.desk.send(Alive(seconds=PROOF_SECONDS))
        budget = replace(DEFAULT_BUDGET, paths=self.job.paths or DEFAULT_BUDGET.paths)
        found = prove(self.law, self.implementation, self.kind, budget=budget)
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
        outcome.crashed = again.crashed and again.message == outcome.message
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
            print_fall(fault.__cause__ or fault)
            crashed = is_crash(fault.__cause__, calls)
            return Outcome(verdict="broken", examples=1, message=str(fault), case=case, crashed=crashed)
        except TooSlow:
            message = f"no answer within {self.job.seconds_per_run:g} s"
            return Outcome(verdict="broken", examples=1, message=message, case=case)
        except BaseException as error:
            print_fall(error)
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
            crashed=outcome.crashed,
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


def print_fall(error: BaseException) -> None:
    """Write to standard error where it fell over: what another process wrote, or the traceback."""
    words: str | None = getattr(error, "last_words", None)
    if words is None:
        traceback.print_exception(error)
    else:
        print(words, file=sys.stderr)


def _shorten(text: str) -> str:
    return text if len(text) <= LONGEST_ANSWER else f"{text[: LONGEST_ANSWER - 3]}..."
