"""Where two implementations answer differently, with the smallest input that shows it.

Both are asked the same questions, drawn and made smaller as for a law: that the two agree is the
law. Fields, kinds and modes that only one of them has are listed, and kept at their defaults.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import kvconform.properties.laws  # noqa: F401 (fills the catalogue)
from kvconform.conformance.answers import (
    REFUSALS,
    Fall,
    Refusal,
    Viewer,
    ask_both,
    differ,
    direction,
    in_words,
)
from kvconform.conformance.cases import BadCase, ReplayGiven
from kvconform.conformance.common import InCommon, in_common, one_sided
from kvconform.conformance.comparison import Comparison, Difference, Same, Unasked
from kvconform.conformance.judging import SECONDS_PER_RUN, Judge
from kvconform.conformance.messages import Task
from kvconform.conformance.questions import MADE_OF, NAMED, Arguments, Topic, asked, questions
from kvconform.conformance.report.document import Result
from kvconform.conformance.sameness import FORMULAS, sameness
from kvconform.properties.given import Given, Rejected
from kvconform.properties.law import CATALOGUE, NO_KIND, Law, Violation
from kvconform.properties.sampling import Outcome, SampledGiven, sample
from kvconform.reference.interface import Implementation, Unsupported

SAFETY_EXAMPLES = 30
"""Inputs on which each side is held to each law of safety that asks what they differ in."""


ARBITRARY = ("merge_without_asserts",)
"""Operations of which only refusals are compared: of fields that should have been refused as unlike,
the answer may take any, and not the same one twice."""

ANSWERED = "answered"


class BothFell(Exception):
    """Both sides raised an exception over one question: there is nothing to compare."""


def compare(
    left: Implementation,
    right: Implementation,
    *,
    examples: int = 150,
    seed: int = 0,
    kinds: Collection[str] | None = None,
    judge: Judge | None = None,
    obstacle: str = "",
) -> Iterator[Comparison]:
    """Compare two implementations, topic by topic and kind by kind; only ``kinds`` where given.

    ``judge`` holds the two: it tells which safety laws each side keeps where they differ and,
    unless there is an ``obstacle`` to it, whether both are proved equal to a third formula.
    Yields the growing comparison after each topic and kind, so that an interrupted one still shows
    what it has; the last is marked complete.
    """
    comparing = _Comparing(left, right, examples, seed, judge, obstacle)
    found = comparing.found
    found.only_left, found.only_right = one_sided(left, right), one_sided(right, left)
    yield found
    for topic, kind in questions(comparing.common, kinds):
        comparing.compare(topic, kind)
        yield found
    for operation in NAMED:
        if operation in comparing.common.operations and (kinds is None or NO_KIND in kinds):
            comparing.compare_names(operation)
    found.complete = True
    yield found


class _Comparing:
    def __init__(
        self,
        left: Implementation,
        right: Implementation,
        examples: int,
        seed: int,
        judge: Judge | None,
        obstacle: str,
    ) -> None:
        self.found = Comparison()
        self.common = in_common(left, right)
        self._sides = left, right
        self._shared = InCommon(self.common)
        self._viewers = Viewer(left), Viewer(right)
        self._examples = examples
        self._seed = seed
        self._judge = judge
        self._obstacle = obstacle
        self._judged: dict[tuple[str, str], tuple[Result, Result]] = {}
        self._suspects: list[dict[str, Any]] = []

    def compare(self, topic: Topic, kind: str) -> None:
        """Compare all operations of a topic for a kind: proved where they can be, else sampled."""
        operations = asked(topic, kind, self.common)
        reasons = dict.fromkeys(operations, self._obstacle if topic.proved else "")
        self._suspects = []
        if self._judge is not None and topic.proved and not self._obstacle:
            reasons = self._prove(operations, kind)
            operations = tuple(reasons)
        if operations:
            self._sample(topic, operations, kind, reasons)

    # Proving

    def _prove(self, operations: Sequence[str], kind: str) -> dict[str, str]:
        """Note what is proved the same; the operations that are not, each with the reason."""
        reason = ""
        for formula in FORMULAS:
            results = self._ask_judge(Task(sameness(operations, formula, self.common).id, kind))
            verdicts = {result.verdict for result in results}
            # Where one side departs from a formula the other one may not.
            self._suspects += [result.case for result in results if result.case]
            if verdicts == {"proved"}:
                self.found.same += [
                    Same(
                        operation,
                        kind,
                        min(result.examples for result in results),
                        "proved",
                        formula,
                        _domain(results),
                    )
                    for operation in operations
                ]
                return {}
            if verdicts != {"violated"}:
                # Both must miss this formula for the next one to be worth trying.
                reason = _obstacle(results, formula)
                break
            reason = "neither answers by a formula that is known here"
        if len(operations) == 1:
            return {operations[0]: reason}
        left_over: dict[str, str] = {}
        for operation in operations:
            left_over |= self._prove([operation], kind)
        return left_over

    def _ask_judge(self, task: Task) -> tuple[Result, Result]:
        assert self._judge is not None
        if (task.law, task.kind) not in self._judged:
            self._judged[task.law, task.kind] = self._judge(task)
        return self._judged[task.law, task.kind]

    # Sampling

    def _sample(self, topic: Topic, operations: Sequence[str], kind: str, reasons: dict[str, str]) -> None:
        """Compare operations on the same draws; those that differ once more, to find the smallest."""
        compared: Counter[tuple[str, str]] = Counter()
        differing: dict[tuple[str, str], dict[str, Any]] = {}
        lacking: dict[str, str] = {}

        def notice(given: Given, case: Mapping[str, Any]) -> None:
            drawn = topic.draw(given)
            for operation, aspect, one, other in self._answers(topic, operations, drawn):
                if isinstance(one, Unsupported) or isinstance(other, Unsupported):
                    lacking.setdefault(operation, str(one if isinstance(one, Unsupported) else other))
                else:
                    compared[operation, aspect] += 1
                    if differ(self.common, one, other):
                        differing.setdefault((operation, aspect), dict(case))

        def look(_: Implementation, given: Given) -> None:
            assert isinstance(given, SampledGiven)
            notice(given, given.case)

        outcome = self._sampled(topic, kind, look)
        if outcome.verdict == "broken" and len(operations) > 1:
            # One of them fell over on both sides; the others can still be compared.
            for operation in operations:
                self._sample(topic, [operation], kind, reasons)
            return
        for suspect in self._suspects:
            with suppress(BadCase, Rejected, BothFell):
                notice(ReplayGiven(self._shared, kind, suspect), suspect)
        for operation in operations:
            aspects = [aspect for about, aspect in compared if about == operation]
            if outcome.verdict not in ("held", "unsupported"):
                self.found.not_asked.append(Unasked(operation, kind, outcome.verdict, outcome.message))
            elif not aspects:
                why = lacking.get(operation, outcome.message)
                self.found.not_asked.append(Unasked(operation, kind, "unsupported", why))
            for aspect in aspects:
                if (operation, aspect) in differing:
                    self._find_smallest(topic, operation, aspect, kind, differing[operation, aspect])
                elif outcome.verdict == "held":
                    examples = compared[operation, aspect]
                    why = reasons.get(operation, "")
                    self.found.same.append(Same(operation, kind, examples, why=why, aspect=aspect))

    def _find_smallest(
        self, topic: Topic, operation: str, aspect: str, kind: str, known: dict[str, Any]
    ) -> None:
        """Note the smallest difference found; the known one, where sampling meets no other."""
        last: list[tuple[Arguments, Any, Any]] = []

        def agree(_: Implementation, given: Given) -> None:
            drawn = topic.draw(given)
            for _operation, part, one, other in self._answers(topic, [operation], drawn):
                if isinstance(one, Unsupported) or isinstance(other, Unsupported):
                    given.reject()
                if part == aspect and differ(self.common, one, other):
                    last[:] = [(topic.arguments(operation, drawn), one, other)]
                    raise Violation("they differ")

        outcome = self._sampled(topic, kind, agree)
        case = outcome.case
        if outcome.verdict != "violated":
            case = known
            with suppress(Violation):
                agree(self._shared, ReplayGiven(self._shared, kind, known))
        if not last or not self._reproduced(topic, operation, aspect, *last[0]):
            why = f"answers differently to the same question: {known}"
            self.found.not_asked.append(Unasked(operation, kind, "broken", why))
            return
        arguments, one, other = last[0]
        self.found.different.append(
            Difference(
                operation,
                kind,
                case,
                arguments,
                in_words(one, other),
                in_words(other, one),
                direction(operation, aspect, one, other),
                aspect,
                self._safety(operation, kind),
            )
        )

    def _reproduced(
        self, topic: Topic, operation: str, aspect: str, arguments: Arguments, one: Any, other: Any
    ) -> bool:
        """Whether both sides answer as they did when they are asked once more."""
        for _, part, again, other_again in self._answers(topic, [operation], arguments):
            if part == aspect:
                return not differ(self.common, one, again) and not differ(self.common, other, other_again)
        return False

    def _sampled(self, topic: Topic, kind: str, check: Any) -> Outcome:
        # One id for all of a topic: the draws follow from it, so they are met again.
        question = Law(f"diff/{topic.name}", "agreement", (kind,), (), False, (), check)
        return sample(
            question,
            self._shared,
            kind,
            examples=self._examples,
            seed_number=self._seed,
            seconds_per_run=SECONDS_PER_RUN,
        )

    def _answers(
        self, topic: Topic, operations: Sequence[str], drawn: Arguments
    ) -> Iterator[tuple[str, str, Any, Any]]:
        """The two answers to each operation; those about a whole model aspect by aspect."""
        asks = [(operation, topic.arguments(operation, drawn)) for operation in operations]
        for operation, given in zip(operations, ask_both(*self._sides, asks), strict=True):
            if all(isinstance(answer, Fall) for answer in given):
                raise BothFell(f"{operation}: {given[0]}")
            answers = [_settled(answer) for answer in given] if operation in ARBITRARY else list(given)
            if topic.kinds or any(isinstance(answer, Unsupported) for answer in answers):
                yield operation, "", *answers
                continue
            none = [isinstance(answer, Refusal | Fall) for answer in answers]
            yield operation, REFUSALS, *(answers if any(none) else (ANSWERED, ANSWERED))
            if not any(none):
                one, other = (
                    viewer.parts(operation, each) for viewer, each in zip(self._viewers, answers, strict=True)
                )
                for aspect in one:
                    yield operation, aspect, one[aspect], other[aspect]

    # Names, and what differs

    def compare_names(self, operation: str) -> None:
        """Compare what each name of a mode or cache dtype means that both know."""
        left, right = self._sides
        if operation == "quant_families":
            argument, names = "mode", tuple(self.common.modes)
        else:
            there = right.cache_dtypes()
            argument, names = "cache_dtype", tuple(name for name in left.cache_dtypes() if name in there)
        alike = 0
        for name in names:
            arguments = {argument: name}
            ((one, other),) = ask_both(left, right, [(operation, arguments)])
            if differ(self.common, one, other):
                words = in_words(one, other), in_words(other, one)
                way = direction(operation, "", one, other)
                self.found.different.append(Difference(operation, NO_KIND, arguments, arguments, *words, way))
            else:
                alike += 1
        if alike:
            self.found.same.append(Same(operation, NO_KIND, alike))

    def _safety(self, operation: str, kind: str) -> tuple[tuple[str, str, str], ...]:
        """The verdict of each side for each safety law that asks the operation of the kind."""
        if self._judge is None:
            return ()
        asking = {operation, *MADE_OF.get(operation, ())}
        laws = [
            law
            for law in CATALOGUE.values()
            if law.severity == "safety" and not asking.isdisjoint(law.needs) and kind in law.kinds
        ]
        verdicts = []
        for law in laws:
            task = Task(law.id, kind, examples=SAFETY_EXAMPLES, engines=("sample",))
            left, right = self._ask_judge(task)
            verdicts.append((law.id, left.verdict, right.verdict))
        return tuple(verdicts)


def _settled(answer: Any) -> Any:
    """Whether there is an answer, in place of an arbitrary one."""
    return answer if isinstance(answer, Refusal | Fall | Unsupported) else ANSWERED


def _domain(results: tuple[Result, Result]) -> str:
    """What two proofs cover together: inputs within both domains."""
    one, other = (result.domain for result in results)
    return one if one == other else f"both {one} AND {other}"


def _obstacle(results: tuple[Result, Result], formula: str) -> str:
    """Why two results are no proof that both sides answer by a formula."""
    for side, result in zip(("left", "right"), results, strict=True):
        if result.verdict not in ("proved", "violated"):
            return f"{side}: {result.message or result.verdict}"
    side = "left" if results[0].verdict == "violated" else "right"
    return f"only the {side} one answers otherwise than the {formula} formula"
