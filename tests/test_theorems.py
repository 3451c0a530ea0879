"""T1 to T12 are proved, their assumptions are needed, and statements beside them are refuted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from kvconform.properties.law import NO_KIND
from kvconform.reference import arithmetic, pages, planning, quantise
from kvconform.reference.plain import Plain
from kvconform.solver import statements
from kvconform.solver.prove import prove
from kvconform.solver.replay import replay
from kvconform.solver.theorems import BUDGET, THEOREMS, Proven, prove_theorem

proven: dict[str, Proven] = {}


def result(id: str) -> Proven:
    if id not in proven:
        proven[id] = prove_theorem(THEOREMS[id])
    return proven[id]


def test_there_are_twelve() -> None:
    assert list(THEOREMS) == [f"T{number}" for number in range(1, 13)]


@pytest.mark.parametrize("id", THEOREMS)
def test_a_theorem_is_proved_on_its_whole_domain(id: str) -> None:
    found = result(id)
    assert found.verdict == "proved", found
    assert found.domain
    assert "at most" not in found.domain
    assert found.paths > 0


@pytest.mark.parametrize("id", THEOREMS)
def test_each_assumption_is_necessary(id: str) -> None:
    found = result(id)
    assert [assumption.name for assumption in found.assumptions] == list(THEOREMS[id].assumptions)
    for assumption in found.assumptions:
        assert assumption.case is not None, assumption
        without = THEOREMS[id].as_law(without=assumption.name)
        assert replay(without, Plain(), NO_KIND, assumption.case).failed
        # The case breaks that assumption and none other, so with it the case is ruled out.
        assert replay(THEOREMS[id].as_law(), Plain(), NO_KIND, assumption.case).verdict == "rejected"


def test_an_assumption_that_is_not_needed_is_a_bug() -> None:
    original = THEOREMS["T6"]
    idle = type(original)(
        "T0",
        original.statement,
        {**original.assumptions, "idle": "heads are positive"},
        lambda given, suppose: (suppose("idle", True), original.check(given, suppose))[1],
    )
    found = prove_theorem(idle)
    assert found.verdict == "inconclusive"
    assert found.message == "not shown necessary: idle"


def test_an_assumption_must_be_listed() -> None:
    broken = type(THEOREMS["T6"])("T0", "", {}, lambda given, suppose: suppose("unlisted", True))
    assert prove_theorem(broken).verdict == "broken"


def stated_without_one(spec: Any, deployment: Any) -> Any:
    tokens = spec.sliding_window - 1 + spec.extra_retained_tokens + deployment.in_flight_tokens
    return arithmetic.cdiv(min(tokens, deployment.max_model_len), spec.block_size)


def stated_with_max(spec: Any, deployment: Any) -> Any:
    tokens = spec.sliding_window - 1 + spec.extra_retained_tokens + deployment.in_flight_tokens
    return arithmetic.cdiv(max(tokens, deployment.max_model_len), spec.block_size) + 1


def stated_off_by_two(spec: Any, deployment: Any) -> Any:
    tokens = spec.sliding_window - 3 + spec.extra_retained_tokens + deployment.in_flight_tokens
    return arithmetic.cdiv(min(tokens, deployment.max_model_len), spec.block_size) + 1


def stated_floored(spec: Any, deployment: Any) -> Any:
    tokens = spec.attention_chunk_size + deployment.in_flight_tokens
    return min(tokens, deployment.max_model_len) // spec.block_size


def packed_carelessly(pages_: Any, alignments: Any = None) -> Any:
    offsets, end = [], 0
    for index, page in enumerate(pages_):
        offsets.append(end if alignments is None else end // alignments[index] * alignments[index])
        end = offsets[-1] + page
    return tuple(offsets), end


def resized_with_stale_padding(spec: Any, size: Any) -> Any:
    resized = replace(spec, block_size=size)
    if getattr(spec, "alignment", None) is None:
        return resized
    contents = pages.unpadded_page_size_bytes(resized)
    page = arithmetic.round_up(contents, spec.alignment)
    return resized if page == contents else replace(resized, page_size_padded=page)


def first_only(specs: Any) -> Any:
    return specs[0]


FAULTS = [
    ("T1", pages, "round_up", lambda value, multiple: value // multiple * multiple),
    ("T2", statements, "stated_blocks_per_request", stated_without_one),
    ("T3", statements, "stated_blocks_per_request", stated_with_max),
    ("T2", statements, "stated_blocks_per_request", stated_off_by_two),
    ("T4", statements, "stated_blocks_per_request", stated_floored),
    ("T5", statements, "merge", first_only),
    ("T6", pages, "round_up", lambda value, multiple: (value // multiple + 1) * multiple),
    ("T7", statements, "cdiv", lambda n, d: n // d + 1),
    ("T8", planning, "fitting_blocks", arithmetic.cdiv),
    ("T8", planning, "fitting_blocks", lambda memory, block: memory // block - 1),
    ("T9", statements, "packed_offsets", packed_carelessly),
    ("T10", quantise, "round_half_even", lambda n, d: n // d),
    ("T11", statements, "copy_with_new_block_size", resized_with_stale_padding),
    ("T12", planning, "withheld_blocks", lambda groups: 0),
]


@pytest.mark.parametrize(
    ("id", "module", "name", "fault"),
    FAULTS,
    ids=[f"{id}-{name}-{number}" for number, (id, _, name, _) in enumerate(FAULTS)],
)
def test_a_fault_in_the_reference_refutes_its_theorem(
    id: str, module: Any, name: str, fault: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    law = THEOREMS[id].as_law()
    monkeypatch.setattr(module, name, fault)
    proof = prove(law, Plain(), NO_KIND, budget=BUDGET)
    assert proof.verdict == "violated", proof
    assert replay(law, Plain(), NO_KIND, proof.case).verdict == "violated"
    monkeypatch.undo()
    assert replay(law, Plain(), NO_KIND, proof.case).verdict != "violated"
