"""device/views-cover, guards-survive and zero-exact."""

from __future__ import annotations

import pytest
import torch
from kvconform.gpu_checks import views
from kvconform.gpu_checks.memory import Memory
from kvconform.gpu_checks.model_plans import model_plan
from kvconform.gpu_checks.plans import collection, drawn
from kvconform.gpu_checks.plugin import Tally
from kvconform.reference.interface import Refused
from kvconform.reference.models import models
from kvconform.reference.planning import KVCacheConfig

PLANS = {**collection(), **dict(drawn(24, seed=1))}
each_plan = pytest.mark.parametrize("config", PLANS.values(), ids=PLANS)


@pytest.mark.law("device/views-cover", "device/guards-survive")
@each_plan
def test_views_cover_and_guards_survive(config: KVCacheConfig, memory: Memory, tally: Tally) -> None:
    views.check_views(config, memory)
    tally.count("plans viewed")


@pytest.mark.law("device/views-cover", "device/guards-survive")
@pytest.mark.parametrize("packed", [False, True], ids=["shared", "packed"])
@pytest.mark.parametrize("name", models())
def test_views_of_a_model_cover_its_pages(name: str, packed: bool, memory: Memory, tally: Tally) -> None:
    try:
        config = model_plan(name, packed)
    except Refused as refusal:
        pytest.skip(f"the reference does not plan {name}: {refusal}")
    views.check_views(config, memory)
    tally.count("plans of models viewed")


@pytest.mark.law("device/zero-exact", "zero/exact-span")
@each_plan
def test_clearing_a_block_clears_exactly_it(config: KVCacheConfig, memory: Memory, tally: Tally) -> None:
    views.check_clear(config, memory)
    tally.count("plans cleared")


@pytest.mark.law("device/views-cover")
@pytest.mark.parametrize("split", [2, 4])
def test_kernel_blocks_address_the_same_bytes(split: int, memory: Memory, tally: Tally) -> None:
    tried = sum(views.check_kernel_blocks(config, memory, split) for config in PLANS.values())
    assert tried >= 20
    tally.count("layers of kernel blocks", tried)


@pytest.mark.law("device/views-cover")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.uint8])
def test_typed_views_are_the_same_bytes(dtype: torch.dtype, memory: Memory, tally: Tally) -> None:
    """An engine's view of a block is tokens by heads by elements of its type, over the same bytes."""
    tried = 0
    for config in PLANS.values():
        laid = views.lay_out(config, memory)
        for index, place in enumerate(laid.places):
            view = views.view_of(laid.raw[place.allocation], place, config.num_blocks)
            try:
                cells = views.typed(view, dtype, (place.page // dtype.itemsize,))
            except Refused:
                continue
            last = torch.tensor([config.num_blocks - 1], device=memory.device)
            wanted = views.pattern(index, last, place.page)
            cells[-1] = wanted[0].view(dtype)
            assert torch.equal(laid.page(place, config.num_blocks - 1), wanted[0])
            tried += 1
    assert tried >= 20
    tally.count("layers of typed views", tried)
