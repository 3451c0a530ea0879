"""Comparing implementations: what is found, with a witness that both reproduce, and what it costs."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import comparable
import pytest
from commands import environment
from kvconform.conformance.answers import REFUSALS, Refusal, Viewer, answer, ask_both, in_words
from kvconform.conformance.common import in_common
from kvconform.conformance.compare import ARBITRARY, compare
from kvconform.conformance.comparison import Comparison, Difference
from kvconform.conformance.effects import effects
from kvconform.conformance.judging import Judge
from kvconform.conformance.messages import Task
from kvconform.conformance.miniatures import miniature
from kvconform.conformance.process import ProcessImplementation
from kvconform.conformance.questions import NAMED, TOPICS, asked, questions
from kvconform.conformance.report.comparison import question_line, towards
from kvconform.conformance.report.document import Result
from kvconform.conformance.sides import read_sides
from kvconform.conformance.values import read_result
from kvconform.properties.law import NO_KIND
from kvconform.reference.interface import OPERATIONS, Implementation
from kvconform.reference.plain import Plain
from kvconform.reference.specs import FullAttention

MODELS = (NO_KIND,)


def compared(
    left: Implementation, right: Implementation, examples: int = 60, kinds: tuple[str, ...] | None = None
) -> Comparison:
    *_, last = compare(left, right, examples=examples, kinds=kinds)
    return last


def test_an_implementation_is_like_itself() -> None:
    found = compared(Plain(), Plain(), examples=10)
    assert found.complete
    assert not found.different
    assert not found.not_asked
    assert not found.only_left
    assert not found.only_right
    common = in_common(Plain(), Plain())
    wanted = {
        (operation, kind) for topic, kind in questions(common) for operation in asked(topic, kind, common)
    }
    assert {(same.operation, same.kind) for same in found.same} == wanted | {
        (name, NO_KIND) for name in NAMED
    }
    assert all(same.examples > 0 and same.verdict == "held" for same in found.same)


def test_every_operation_is_compared() -> None:
    compared_operations = [operation for topic in TOPICS for operation in topic.operations]
    listed = ("quant_modes", "cache_dtypes")
    assert sorted((*compared_operations, *NAMED, *listed)) == sorted(OPERATIONS)


@pytest.mark.parametrize(
    ("name", "operation", "direction"),
    [
        ("window-without-plus-one", "max_blocks_per_request", "less memory"),
        ("window-with-plus-two", "max_blocks_per_request", "more memory"),
        ("memory-without-padding", "max_memory_usage_bytes", "less memory"),
    ],
)
def test_a_fault_is_found_with_its_direction(name: str, operation: str, direction: str) -> None:
    faulty = miniature(name)
    found = compared(Plain(), faulty, examples=120, kinds=("sliding_window", "sliding_window_mla"))
    differing = [difference for difference in found.different if difference.operation == operation]
    assert differing
    for difference in differing:
        assert difference.direction == direction
        answers = [str(getattr(side, operation)(**difference.arguments)) for side in (Plain(), faulty)]
        assert answers == [difference.left, difference.right]


def test_a_manager_that_holds_more_is_found() -> None:
    found = compared(Plain(), comparable.Hoarding(), examples=60, kinds=("sliding_window",))
    (difference,) = found.different
    assert difference.operation == "follow_schedule"
    # Only the events that differ are told: here one that has no room for want of a block that was passed.
    event, _, words = difference.left.partition(": ")
    assert words.startswith("scheduled up to token ")
    assert re.search(r"request \d has -", words)
    assert difference.right.startswith(f"{event}: short, ")


def test_which_free_blocks_are_taken_is_no_difference() -> None:
    kinds = ("full_attention", "sliding_window")
    assert not compared(Plain(), comparable.OtherBlocks(), examples=60, kinds=kinds).different


PLANS = {
    "Cautious": ("get_kv_cache_configs", "blocks", "less capacity: fewer blocks from the same memory"),
    "Wasteful": ("get_kv_cache_configs", "bytes", "more memory"),
    "Strict": ("get_kv_cache_configs", "refusals", "now refused"),
    "Spread": ("get_kv_cache_groups", "groups", ""),
    "Short": (
        "estimate_max_model_len",
        "answer",
        "less capacity: a shorter request fits the same memory",
    ),
    "Slow": ("get_max_concurrency", "answer", "less capacity: fewer requests at once"),
    "Careless": ("needs_kv_cache_zeroing", "answer", ""),
}
"""What each planner of `comparable` does otherwise than the reference, and which way capacity goes."""


@pytest.mark.parametrize("name", PLANS)
def test_a_planner_that_differs_is_found(name: str) -> None:
    operation, aspect, direction = PLANS[name]
    found = compared(Plain(), getattr(comparable, name)(), kinds=MODELS)
    assert found.complete
    assert not found.not_asked
    (difference,) = (each for each in found.different if (each.operation, each.aspect) == (operation, aspect))
    assert towards(difference) == direction
    hidden = {each.aspect for each in found.different if each.operation == operation} - {aspect}
    # One that is found in its groups also flags no drafts; no other aspect comes with it.
    assert hidden == ({"drafts"} if name == "Spread" else set())


def test_the_shape_of_tensors_is_no_difference() -> None:
    assert not compared(Plain(), comparable.Strided(), kinds=MODELS).different


def test_ratios_that_are_rounded_are_no_difference() -> None:
    assert not compared(Plain(), comparable.Rounded(), kinds=MODELS).different


def test_what_falls_over_is_told_from_what_refuses() -> None:
    found = compared(Plain(), comparable.Falling(), examples=20, kinds=("sliding_window",))
    merge = next(each for each in found.different if each.operation == "merge")
    assert merge.direction == "now falls over"
    assert merge.right == "fell over: KeyError: 'merge'"
    (unasked,) = found.not_asked
    assert (unasked.operation, unasked.verdict) == ("max_num_blocks_per_req", "unsupported")
    assert unasked.why == "block tables of windows"


def test_where_both_fall_over_nothing_is_claimed() -> None:
    found = compared(comparable.Falling(), comparable.Falling(), examples=20, kinds=("full_attention",))
    assert not found.different
    broken = {each.operation for each in found.not_asked if each.verdict == "broken"}
    assert broken == {"merge", "merge_without_asserts", "merge_side_effects"}
    assert "merge" not in {same.operation for same in found.same}


def test_an_answer_that_does_not_come_again_is_no_witness() -> None:
    found = compared(Plain(), comparable.Unsteady(), examples=20, kinds=("full_attention",))
    assert not found.different
    (unasked,) = found.not_asked
    assert unasked.verdict == "broken"
    assert "answers differently to the same question" in unasked.why


def test_what_one_side_lacks_is_listed() -> None:
    found = compared(Plain(), comparable.Fewer(), examples=5, kinds=("full_attention",))
    assert "kind rswa" in found.only_left
    assert "operation real_page_size_bytes" in found.only_left
    assert "field full_attention.num_head_slots" in found.only_left
    assert not found.only_right
    assert not found.different


def test_the_effect_on_models() -> None:
    same = effects(Plain(), Plain(), length=4096, budget_bytes=1 << 34)
    assert not same.changed
    assert not same.unsized
    assert len(same.unchanged) >= 25
    worse = effects(Plain(), miniature("window-with-plus-two"), length=1 << 20, budget_bytes=1 << 34)
    changed = {effect.model: effect for effect in worse.changed}
    assert "mistral-7b-v0.1" in changed
    assert "llama-2-7b" not in changed, "it has no window"
    for effect in worse.changed:
        assert effect.right.request_blocks > effect.left.request_blocks
        assert effect.right.requests <= effect.left.requests


def test_the_effect_on_models_as_they_are_planned() -> None:
    assert not effects(Plain(), Plain(), length=4096, budget_bytes=1 << 34).planned
    fewer = effects(Plain(), comparable.Cautious(), length=4096, budget_bytes=1 << 34)
    assert not fewer.changed, "no layer's page or bound is another"
    planned = {effect.model: effect for effect in fewer.planned}
    assert planned["llama-2-7b"].right.requests < planned["llama-2-7b"].left.requests
    assert planned["llama-2-7b"].left.request_blocks == 256
    refusing = effects(Plain(), comparable.Planless(), length=4096, budget_bytes=1 << 34)
    assert {effect.right.trouble for effect in refusing.planned} == {"refused: no plan"}
    assert not effects(Plain(), comparable.Groupless(), length=4096, budget_bytes=1 << 34).planned


def test_models_that_neither_sizes_are_not_called_unchanged() -> None:
    lacking = effects(comparable.Pageless(), comparable.Pageless(), length=4096, budget_bytes=1 << 34)
    assert not lacking.changed
    assert not lacking.unchanged
    assert "unsupported" in lacking.unsized[0].left.trouble


REPRODUCED = [
    ("miniature:window-without-plus-one", "sliding_window", "max_blocks_per_request"),
    *((f"python:comparable:{name}", NO_KIND, operation) for name, (operation, _, _) in PLANS.items()),
    ("python:comparable:Falling", "full_attention", "merge"),
]


def opened(address: str) -> Implementation:
    """The implementation in this process."""
    scheme, _, name = address.rpartition(":")
    made: Implementation = miniature(name) if scheme == "miniature" else getattr(comparable, name)()
    return made


@pytest.mark.parametrize(("address", "kind", "operation"), REPRODUCED)
def test_both_reproduce_a_witness_through_ask(
    address: str, kind: str, operation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent)
    other = opened(address)
    found = compared(Plain(), other, examples=60, kinds=(kind,))
    difference = next(each for each in found.different if each.operation == operation)
    sides = read_sides("reference", address, (), ())
    for side, implementation, told in zip(
        sides, (Plain(), other), (difference.left, difference.right), strict=True
    ):
        line = question_line(side, difference)
        done = subprocess.run(
            shlex.split(line), cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False
        )
        assert told_again(difference, implementation, done) == told, line


def told_again(difference: Difference, side: Implementation, done: subprocess.CompletedProcess[str]) -> str:
    """What ``kvconform ask`` printed, in the words of a comparison."""
    if done.returncode == 1:
        return done.stdout.strip()
    if done.returncode == 4:
        return f"fell over: {done.stderr.partition(': ')[2].strip()}"
    import msgspec

    printed = read_result(difference.operation, msgspec.json.decode(done.stdout))
    if difference.aspect in ("", REFUSALS):
        return in_words(printed, Refusal(""))
    parts = Viewer(side).parts(difference.operation, printed)
    beside = Viewer(Plain()).parts(
        difference.operation, answer(Plain(), difference.operation, difference.arguments)
    )
    part = parts[difference.aspect]
    # Of a view only what differs is told: here beside what the other side says.
    words = (difference.left, difference.right)
    return next((each for each in words if each in told_in_full(part, beside[difference.aspect])), "")


def told_in_full(part: Any, beside: Any) -> tuple[str, ...]:
    """The ways in which a part is told: beside the reference's, or entry by entry."""
    if not isinstance(part, dict):
        return (in_words(part, beside),)
    return (in_words(part, beside), *(f"{name}: {value}" for name, value in part.items()))


def test_only_whether_it_is_refused_counts_where_the_answer_is_arbitrary() -> None:
    assert ARBITRARY == ("merge_without_asserts",)
    found = compared(Plain(), comparable.Arbitrary(), examples=60, kinds=("full_attention",))
    assert [each.operation for each in found.different] == []


def served() -> ProcessImplementation:
    return ProcessImplementation(
        (sys.executable, "-m", "kvconform.conformance.adapters.serve", "reference"), seconds_per_ask=20.0
    )


def test_an_interrupted_question_leaves_no_answer_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = FullAttention(block_size=4, num_kv_heads=1, head_size=1, dtype="bfloat16")
    asks: list[tuple[str, dict[str, Any]]] = [
        ("page_size_bytes", {"spec": spec}),
        ("stored_bytes", {"spec": spec}),
    ]
    left, right = served(), served()
    try:
        assert ask_both(left, right, asks) == [(16, 16), (4, 4)]
        with monkeypatch.context() as patched:
            patched.setattr(left, "_reply", interrupt)
            with pytest.raises(KeyboardInterrupt):
                ask_both(left, right, asks)
        # The right one's answers to those were never read; they must not be taken for these.
        assert ask_both(left, right, asks[1:]) == [(4, 4)]
    finally:
        left.kill()
        right.kill()


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def judge_saying(left: dict[str, Any], right: dict[str, Any]) -> Judge:
    """A judge that says the same of every law: some fields of each side's result."""

    def judge(task: Task) -> tuple[Result, Result]:
        one, other = (
            Result(law=task.law, kind=task.kind, severity="agreement", engines=("sample", "prove"), **each)
            for each in (left, right)
        )
        return one, other

    return judge


PROVED = {"verdict": "proved", "examples": 9, "domain": "n: from 1 up"}
NARROWER = {"verdict": "proved", "examples": 5, "domain": "n: from 1 to 8"}
HELD = {"verdict": "held", "examples": 9, "message": "not proved: more than 200 paths"}
VIOLATED = {"verdict": "violated", "message": "got 1, wanted 2"}

JUDGED = {
    "both proved": (PROVED, PROVED, ("proved", 9, "reference", "n: from 1 up", "")),
    "on different domains": (
        PROVED,
        NARROWER,
        ("proved", 5, "reference", "both n: from 1 up AND n: from 1 to 8", ""),
    ),
    "one only held": (PROVED, HELD, ("held", 4, "", "", "right: not proved: more than 200 paths")),
    "one departs": (
        PROVED,
        VIOLATED,
        ("held", 4, "", "", "only the right one answers otherwise than the reference formula"),
    ),
    "both depart from all": (
        VIOLATED,
        VIOLATED,
        ("held", 4, "", "", "neither answers by a formula that is known here"),
    ),
}


@pytest.mark.parametrize("name", JUDGED)
def test_proved_takes_a_proof_of_both(name: str) -> None:
    left, right, wanted = JUDGED[name]
    judge = judge_saying(left, right)
    *_, found = compare(Plain(), Plain(), examples=4, kinds=("cross_attention",), judge=judge)
    page = next(same for same in found.same if same.operation == "page_size_bytes")
    assert (page.verdict, page.examples, page.formula, page.domain, page.why) == wanted
