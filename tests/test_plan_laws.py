"""The laws of whole models hold on the reference, and tell a plan that is right from one that is nearly so.

That each is broken by an implementation wrong on purpose is tested with the miniatures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from kvconform.conformance.miniatures.engine import Engine, Groups, Layers
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
from kvconform.reference.deployment import Deployment
from kvconform.reference.plain import Plain
from kvconform.reference.planning import KVCacheConfig

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


class OneByteMore(Engine):
    """Every tensor is a byte larger than its blocks."""

    def config(self, groups: Groups, num_blocks: int, deployment: Deployment) -> KVCacheConfig:
        made = super().config(groups, num_blocks, deployment)
        larger = tuple(replace(tensor, size=tensor.size + 1) for tensor in made.kv_cache_tensors)
        return replace(made, kv_cache_tensors=larger)


class MoreBlocks(Engine):
    """So many blocks more than fit, or fewer, are planned."""

    more = 0

    def sized(
        self, ranks: Sequence[Layers], deployment: Deployment, available_memory: Sequence[int]
    ) -> tuple[Groups, int]:
        groups, num_blocks = super().sized(ranks, deployment, available_memory)
        return groups, max(num_blocks + self.more, 1) if groups else num_blocks


class OneBlockMore(MoreBlocks):
    more = 1


class OneBlockLess(MoreBlocks):
    more = -1


@pytest.mark.parametrize(
    ("law", "planner"),
    [
        ("plan/within-budget", OneByteMore),
        ("plan/within-budget", OneBlockMore),
        ("plan/maximal", OneBlockLess),
        ("plan/override-checked", OneByteMore),
        ("plan/override-checked", OneBlockMore),
        ("plan/override-checked", OneBlockLess),
    ],
)
def test_the_smallest_error_is_caught(law: str, planner: type[Plain]) -> None:
    outcome = sampled(CATALOGUE[law], planner(), 300)[-1]
    assert outcome.verdict == "violated", outcome
    assert outcome.message
    assert outcome.case


@pytest.mark.parametrize(
    ("law", "planner"), [("plan/maximal", OneByteMore), ("plan/within-budget", OneBlockLess)]
)
def test_another_error_is_not(law: str, planner: type[Plain]) -> None:
    assert {outcome.verdict for outcome in sampled(CATALOGUE[law], planner(), 300)} == {"held"}


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.id)
def test_says_one_sentence(law: Law) -> None:
    assert law.sentence.endswith(".")
    assert law.sentence.count(". ") == 0
    assert law.sentence != law.explanation or law.severity in ("formula", "agreement")
