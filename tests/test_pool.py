"""A model planned as one pool: groups, empty slots and what a request takes, as the planner says."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from commands import kvconform
from kvconform.conformance.pool import Pool, plan
from kvconform.reference.deployment import Deployment
from kvconform.reference.grouping import KVCacheGroupSpec
from kvconform.reference.interface import Unsupported
from kvconform.reference.models import model, models
from kvconform.reference.plain import Plain
from kvconform.reference.planning import get_kv_cache_configs, max_memory_usage_bytes
from kvconform.reference.specs import FullAttention, SlidingWindow, Spec
from releases import root_of

FULL = FullAttention(block_size=16, num_kv_heads=2, head_size=64, dtype="bfloat16")
WINDOW = SlidingWindow(block_size=16, num_kv_heads=2, head_size=64, dtype="bfloat16", sliding_window=64)
BRIEF = Deployment(max_model_len=160, max_num_batched_tokens=16)


def layers(full: int, local: int) -> dict[str, Spec]:
    return {
        **{f"f.{index}": FULL for index in range(full)},
        **{f"w.{index}": WINDOW for index in range(local)},
    }


def planned(of: Mapping[str, Spec], memory: int | None = None) -> Pool:
    pool = plan(Plain(), of, BRIEF, memory)
    assert isinstance(pool, Pool), pool
    return pool


def test_short_groups_leave_slots_empty() -> None:
    # Groups of two: seven local layers fill three of them and half of a fourth.
    pool = planned(layers(2, 7))
    assert pool.groups == (
        ("full_attention, 2 layers, blocks of 16 tokens, pages of 8,192 bytes", 1),
        ("sliding_window, 2 layers, blocks of 16 tokens, pages of 8,192 bytes", 3),
        ("sliding_window, 1 layer, blocks of 16 tokens, pages of 8,192 bytes", 1),
    )
    assert (pool.slots, pool.empty_slots, pool.block_bytes) == (10, 1, 2 * 8192)
    # 160 tokens in ten blocks, and 64 - 1 + 16 in five, and one, four times.
    assert pool.request_blocks == 10 + 4 * 6
    assert pool.request_bytes == 34 * 2 * 8192


def test_padding_is_named() -> None:
    padded = FullAttention(
        block_size=16, num_kv_heads=2, head_size=64, dtype="bfloat16", page_size_padded=9000
    )
    pool = planned({"a": padded})
    assert pool.groups[0][0].endswith("pages of 9,000 (808 of it padding) bytes")


def test_layers_of_a_uniform_type_have_a_tensor_each() -> None:
    wide = FullAttention(block_size=16, num_kv_heads=4, head_size=64, dtype="bfloat16")
    pool = planned({"a": FULL, "b": wide, "c": FULL})
    assert pool.groups == (
        ("full_attention, 3 layers, blocks of 16 tokens, pages of 8,192 + 16,384 bytes", 1),
    )
    assert (pool.slots, pool.empty_slots, pool.block_bytes) == (3, 0, 4 * 8192)


def test_memory_is_blocks_and_requests_or_the_longest_that_fits() -> None:
    block = 2 * 8192
    ample = planned(layers(2, 2), memory=100 * block + 5)
    # Sixteen blocks a request, and one of the hundred is the null block.
    assert (ample.num_blocks, ample.requests, ample.longest) == (100, 100 / 16, 160)
    scarce = planned(layers(2, 2), memory=16 * block)
    assert (scarce.num_blocks, scarce.requests, scarce.longest) == (None, None, 144)


def test_what_cannot_be_planned_says_why() -> None:
    odd = SlidingWindow(block_size=16, num_kv_heads=3, head_size=64, dtype="bfloat16", sliding_window=64)
    assert "does not divide" in str(plan(Plain(), {"a": FULL, "b": odd}, BRIEF, None))

    class NoPlanner(Plain):
        def get_kv_cache_groups(
            self, layers: Mapping[str, Spec], deployment: Deployment
        ) -> tuple[KVCacheGroupSpec, ...]:
            raise Unsupported("get_kv_cache_groups")

    assert plan(NoPlanner(), layers(1, 1), BRIEF, None) == "unsupported: get_kv_cache_groups"


@pytest.mark.parametrize("name", models())
def test_every_model_takes_what_the_reference_plans(name: str) -> None:
    known = model(name)
    of = dict(known.layers())
    deployment = known.deployment(max_num_batched_tokens=2048)
    reference = Plain()
    pool = plan(reference, of, deployment, None)
    if isinstance(pool, str):
        assert pool.startswith("refused: "), pool
        return
    groups = reference.get_kv_cache_groups(of, deployment)
    assert pool.request_bytes == max_memory_usage_bytes(groups, deployment)
    assert pool.slots - pool.empty_slots == len(of)
    assert sum(count for _, count in pool.groups) == len(groups)
    if pool.request_blocks == 0:
        assert {spec.kind for spec in of.values()} == {"encoder_only_attention"}
        return
    memory = 2 * pool.request_bytes + 1000 * pool.block_bytes
    (config,) = get_kv_cache_configs([of], deployment, [memory], reference.registry)
    ample = plan(reference, of, deployment, memory)
    assert isinstance(ample, Pool)
    assert ample.num_blocks == config.num_blocks


def test_the_command_shows_the_pool(tmp_path: Path) -> None:
    done = kvconform("explain", "gemma-3-27b", "--length", "32768", "--memory", "40", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "4 x sliding_window, 9 layers" in done.stdout
    assert "8 of 70 layer slots are empty: 11.4%" in done.stdout
    assert "32,768 blocks, 5.95 requests at once" in done.stdout
    scarce = kvconform("explain", "gemma-3-27b", "--memory", "1", cwd=tmp_path)
    assert "the longest that fits has " in scarce.stdout


def test_a_release_plans_beside_the_reference(tmp_path: Path) -> None:
    root_of("0.33.0")
    done = kvconform(
        *("explain", "gemma-3-27b", "--memory", "40", "--length", "32768"),
        *("--implementation", "vllm==0.33.0"),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "planned by vllm==0.33.0, all layers in one pool" in done.stdout
    assert done.stdout.count("32,768 blocks, 5.95 requests at once") == 2
