"""device/allocates-what-was-computed."""

from __future__ import annotations

import pytest
from kvconform.gpu_checks.allocation import check_allocation
from kvconform.gpu_checks.far import GIBIBYTE
from kvconform.gpu_checks.memory import Memory
from kvconform.gpu_checks.model_plans import model_plan
from kvconform.gpu_checks.plans import FULL, collection, drawn, planned
from kvconform.gpu_checks.plugin import Tally
from kvconform.reference.interface import Refused
from kvconform.reference.models import models
from kvconform.reference.pages import page_size_bytes
from kvconform.reference.planning import KVCacheConfig

PLANS = collection()
DRAWN = dict(drawn(24))
pytestmark = pytest.mark.law("device/allocates-what-was-computed")


@pytest.mark.parametrize("config", [*PLANS.values(), *DRAWN.values()], ids=[*PLANS, *DRAWN])
def test_plan_takes_what_was_computed(config: KVCacheConfig, memory: Memory, tally: Tally) -> None:
    check_allocation(config, memory)
    tally.count("plans allocated")


@pytest.mark.parametrize("packed", [False, True], ids=["shared", "packed"])
@pytest.mark.parametrize("name", models())
def test_plan_of_a_model_takes_what_was_computed(
    name: str, packed: bool, memory: Memory, tally: Tally
) -> None:
    try:
        config = model_plan(name, packed)
    except Refused as refusal:
        pytest.skip(f"the reference does not plan {name}: {refusal}")
    check_allocation(config, memory)
    tally.count("plans of models allocated")


@pytest.mark.parametrize("blocks", [3, 127, 128, 129, 1279, 1280, 2049])
def test_sizes_about_the_allocator_s_steps(blocks: int, memory: Memory, tally: Tally) -> None:
    """Pages of 8 KiB: tensors below, at and above 1 and 10 MiB, where CUDA's segments change."""
    config = planned({f"f.{index}": FULL for index in range(2)}, False, blocks)
    assert page_size_bytes(FULL) == 8192
    check_allocation(config, memory)
    tally.count("plans allocated")


@pytest.mark.large
def test_half_a_gibibyte(memory: Memory, tally: Tally) -> None:
    if memory.available() < GIBIBYTE:
        pytest.skip(f"{memory.available()} bytes available, wanted 1 GiB")
    check_allocation(planned({"f.0": FULL}, True, GIBIBYTE // 2 // 8192), memory)
    tally.count("plans allocated")
