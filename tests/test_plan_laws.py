"""The laws of whole models hold on the reference, and each is broken by a planner wrong on purpose."""

from __future__ import annotations

import pytest
from faulty_plans import FAULTS, faulty_planners
from kvconform.properties.law import CATALOGUE, Law
from kvconform.properties.laws import (
    admission,
    plan_groups,
    plan_layout,
    plan_memory,
    plan_views,
    uniform,
    zero,
)
from kvconform.properties.sampling import Outcome, sample
from kvconform.reference.plain import Plain

MODULES = (admission, plan_groups, plan_layout, plan_memory, plan_views, uniform, zero)
LAWS = [law for module in MODULES for law in vars(module).values() if isinstance(law, Law)]

PLANNED = {
    "every-layer-once total own-layers-only leaves-inputs wrapping-free blocks-aligned blocks-apart "
    "promotion-keeps-storage promotion-total unify-waste check-counts-all within-budget maximal "
    "backs-every-block disjoint shares-across-groups-only one-stride pages-unified order-free "
    "filler-bounded ranks-agree monotone override-checked startup-implies-admission "
    "cheaper-is-not-worse concurrency longest-fits no-layers lengths-match": "plan",
    "reflexive symmetric same-tokens same-blocks-kept total unregistered-refused registered-base": "uniform",
    "state-read-before-write mixed-precision only-when-needed every-view-agrees new-blocks-reported": "zero",
    "lookahead-counts one-number": "bound",
}
"""The ids that these files are to hold, by area."""


def sampled(law: Law, implementation: Plain, examples: int) -> list[Outcome]:
    """The outcome for each kind, up to the first that is not held."""
    outcomes = []
    for kind in law.kinds:
        outcomes.append(sample(law, implementation, kind, examples=examples, seed_number=1))
        if outcomes[-1].verdict != "held":
            break
    return outcomes


def test_every_law_is_there() -> None:
    wanted = {f"{area}/{name}" for names, area in PLANNED.items() for name in names.split()}
    assert {law.id for law in LAWS} == wanted
    assert all(CATALOGUE[law.id] is law for law in LAWS)


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.id)
def test_holds_on_the_reference(law: Law) -> None:
    outcomes = sampled(law, Plain(), 60)
    assert [outcome.message for outcome in outcomes if outcome.verdict != "held"] == []
    assert all(outcome.examples >= 20 for outcome in outcomes)


def test_every_law_has_a_planner_that_breaks_it() -> None:
    assert set(FAULTS) == {law.id for law in LAWS}


def named(value: object) -> str:
    return str(getattr(value, "__name__", value))


@pytest.mark.parametrize(("law", "fault"), faulty_planners(), ids=named)
def test_is_broken_by_its_fault(law: str, fault: type[Plain]) -> None:
    outcome = sampled(CATALOGUE[law], fault(), 300)[-1]
    assert outcome.verdict == "violated", outcome
    assert outcome.message
    assert outcome.case


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.id)
def test_says_one_sentence(law: Law) -> None:
    assert law.sentence.endswith(".")
    assert law.sentence.count(". ") == 0
    assert law.sentence != law.explanation or law.severity in ("formula", "agreement")
