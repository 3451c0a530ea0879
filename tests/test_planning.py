"""Groups, blocks and ranks of whole models, by hand (FACTS section 9)."""

from __future__ import annotations

import time
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from kvconform.reference import planning
from kvconform.reference.deployment import Deployment
from kvconform.reference.grouping import buckets, filler_layers, group_size
from kvconform.reference.interface import Refused
from kvconform.reference.pages import page_size_bytes
from kvconform.reference.plain import Plain
from kvconform.reference.specs import (
    AttentionSpec,
    ChunkedLocalAttention,
    FullAttention,
    Mamba,
    MLAAttention,
    SinkFullAttention,
    SlidingWindow,
    SlidingWindowMLA,
    Spec,
    UniformType,
)
from kvconform.reference.uniform import third_party

SHAPE: dict[str, Any] = {"block_size": 16, "num_kv_heads": 1, "head_size": 8, "dtype": "bfloat16"}
FULL = FullAttention(**SHAPE)
WINDOW = SlidingWindow(**SHAPE, sliding_window=17)
PAGE = 16 * 16 * 2
DEPLOYMENT = Deployment(max_model_len=100, max_num_batched_tokens=16)
"""A full layer takes 7 blocks of 16 tokens, a window of 17 cdiv(16 + 16, 16) + 1 = 3."""


def layers(**counts: tuple[int, Spec]) -> dict[str, Spec]:
    return {f"{kind}.{index}": spec for kind, (count, spec) in counts.items() for index in range(count)}


def planned(model: dict[str, Spec], blocks: int, **changes: Any) -> planning.KVCacheConfig:
    """The one rank's configuration with memory for so many blocks of one page each."""
    deployment = replace(DEPLOYMENT, **changes)
    (config,) = Plain().get_kv_cache_configs([model], deployment, [blocks * PAGE])
    return config


# Figures from public reports (known_answers.json)


def test_60_layers_all_full() -> None:  # vllm-metal#505
    wide = FullAttention(block_size=16, num_kv_heads=16, head_size=256, dtype="bfloat16")
    narrow = FullAttention(block_size=16, num_kv_heads=4, head_size=512, dtype="bfloat16")
    model = layers(wide=(50, wide), narrow=(10, narrow))
    deployment = Deployment(max_model_len=262144)
    groups = Plain().get_kv_cache_groups(model, deployment)
    assert planning.max_memory_usage_bytes(groups, deployment) == 236_223_201_280
    usable = 236_223_201_280 + planning.bytes_per_block(groups)
    assert Plain().get_kv_cache_configs([model], deployment, [usable])[0].num_blocks == 16384 + 1
    with pytest.raises(Refused, match="takes 16384 blocks, and of 16384 only 16383"):
        Plain().get_kv_cache_configs([model], deployment, [usable - 1])


def test_19_full_18_sliding() -> None:  # vllm#29303
    groups = Plain().get_kv_cache_groups(layers(full=(19, FULL), sliding=(18, WINDOW)), DEPLOYMENT)
    assert [len(group.layer_names) for group in groups] == [19, 18]
    assert group_size([19, 18]) == 19
    assert filler_layers([19, 18]) == 1


def test_pipeline_10_11() -> None:  # vllm#23883
    first = {**layers(full=(10, FULL)), **layers(sliding=(11, WINDOW))}
    second = {
        **{f"later.{name}": spec for name, spec in layers(full=(11, FULL)).items()},
        **{f"later.{name}": spec for name, spec in layers(sliding=(10, WINDOW)).items()},
    }
    configs = Plain().get_kv_cache_configs([first, second], DEPLOYMENT, [11 * PAGE * 100 + 5] * 2)
    assert filler_layers([21, 21]) == 0
    assert [[len(group.layer_names) for group in config.kv_cache_groups] for config in configs] == [
        [10, 11],
        [11, 10],
    ]
    assert {config.num_blocks for config in configs} == {100}


# Groups


@pytest.mark.parametrize(
    ("counts", "size", "filler"),
    [([1], 1, 0), ([2, 3], 2, 1), ([3, 4], 4, 1), ([2, 6], 2, 0), ([12, 13], 13, 1)],
)
def test_group_size(counts: list[int], size: int, filler: int) -> None:
    assert group_size(counts) == size
    assert filler_layers(counts) == filler


def test_every_kth_layer() -> None:
    groups = Plain().get_kv_cache_groups(layers(full=(2, FULL), sliding=(5, WINDOW)), DEPLOYMENT)
    assert [group.layer_names for group in groups] == [
        ("full.0", "full.1"),
        ("sliding.0", "sliding.3"),
        ("sliding.1", "sliding.4"),
        ("sliding.2",),
    ]


def test_mergeable_layers_are_one_group_and_uniform_ones_one_uniform_type() -> None:
    recorded = replace(FULL, sliding_window=8, non_causal=True)
    (group,) = Plain().get_kv_cache_groups({"a": FULL, "b": recorded}, DEPLOYMENT)
    assert group.kv_cache_spec == replace(FULL, sliding_window=8, head_size_v=8, non_causal=True)
    (group,) = Plain().get_kv_cache_groups({"a": FULL, "b": replace(FULL, num_kv_heads=2)}, DEPLOYMENT)
    assert isinstance(group.kv_cache_spec, UniformType)


def test_layers_that_record_nothing_join_the_smallest_window() -> None:
    wide, narrow = replace(FULL, sliding_window=9), replace(FULL, sliding_window=3)
    model = {"a": wide, "b": FULL, "c": narrow, "d": FULL}
    assert buckets(model) == [["a"], ["b", "c", "d"]]
    assert sorted(map(len, buckets(dict(reversed(model.items()))))) == [1, 3]


def test_pages_grow_are_padded_or_refused() -> None:
    state = Mamba(block_size=16, shapes=((PAGE // 4 - 1,),), dtypes=("float32",))
    half = replace(WINDOW, dtype="uint8", kv_quant_mode="FP8_PER_TENSOR")
    groups = Plain().get_kv_cache_groups({"f": FULL, "h": half, "m": state}, DEPLOYMENT)
    assert [page_size_bytes(group.kv_cache_spec) for group in groups] == [PAGE] * 3
    assert [group.kv_cache_spec.block_size for group in groups] == [16, 32, 16]
    odd = replace(WINDOW, head_size=3, head_size_v=3)
    with pytest.raises(Refused, match="layer w: page of 192 bytes does not divide the largest of 512"):
        Plain().get_kv_cache_groups({"f": FULL, "w": odd}, DEPLOYMENT)
    strided = replace(odd, indexes_kv_by_block_stride=True)
    groups = Plain().get_kv_cache_groups({"f": FULL, "w": strided}, DEPLOYMENT)
    assert groups[1].kv_cache_spec == replace(strided, block_size=32, page_size_padded=PAGE)


def test_draft_layers_flag_their_group() -> None:
    deployment = replace(DEPLOYMENT, draft_layers=("sliding.1",))
    groups = Plain().get_kv_cache_groups(layers(full=(2, FULL), sliding=(2, WINDOW)), deployment)
    assert [group.is_eagle_group for group in groups] == [False, True]


# Without the hybrid manager


def test_promotion_records_the_window_and_keeps_the_storage() -> None:
    deployment = replace(DEPLOYMENT, hybrid_kv_cache_manager=False)
    local = replace(WINDOW, block_size=8, head_size_v=4, page_size_padded=300, extra_retained_tokens=2)
    chunked = ChunkedLocalAttention(**SHAPE, attention_chunk_size=32)
    (group,) = Plain().get_kv_cache_groups({"f": FULL, "w": local, "c": chunked}, deployment)
    specs = group.layer_specs()
    assert specs["w"] == FullAttention(**SHAPE, head_size_v=4, sliding_window=17, page_size_padded=600)
    assert specs["c"] == FullAttention(**SHAPE, head_size_v=8, attention_chunk_size=32)


def test_promotion_of_latents_keeps_their_format() -> None:
    deployment = replace(DEPLOYMENT, hybrid_kv_cache_manager=False)
    latent = SlidingWindowMLA(**SHAPE, sliding_window=5, alignment=100, compress_ratio=4)
    full = MLAAttention(**SHAPE)
    (group,) = Plain().get_kv_cache_groups({"f": full, "w": latent}, deployment)
    planned_spec = group.layer_specs()["w"]
    assert isinstance(planned_spec, MLAAttention)
    assert (planned_spec.sliding_window, planned_spec.alignment, planned_spec.compress_ratio) == (5, 100, 4)
    assert page_size_bytes(planned_spec) == page_size_bytes(latent) == 100


def test_without_hybrid_manager_what_cannot_share_is_refused() -> None:
    deployment = replace(DEPLOYMENT, hybrid_kv_cache_manager=False)
    state = Mamba(block_size=16, shapes=((8,),), dtypes=("float32",))
    with pytest.raises(Refused, match="all layers must share one group"):
        Plain().get_kv_cache_groups({"f": FULL, "m": state}, deployment)
    with pytest.raises(Refused, match=r"different block sizes \[8, 16\]"):
        Plain().get_kv_cache_groups({"f": FULL, "g": replace(FULL, block_size=8), "w": WINDOW}, deployment)


# Blocks and bytes


def test_shared_tensors() -> None:
    config = planned(layers(full=(2, FULL), sliding=(3, WINDOW)), 45)
    # Groups of two: 2 full, 2 sliding, 1 sliding and a filler; 22 blocks of two pages, a page left.
    assert config.num_blocks == 22
    assert config.kv_cache_tensors == (
        planning.KVCacheTensor(size=22 * PAGE, shared_by=("full.0", "sliding.0", "sliding.1")),
        planning.KVCacheTensor(size=22 * PAGE, shared_by=("full.1", "sliding.2")),
    )


def test_packed_slab() -> None:
    config = planned(layers(full=(2, FULL), sliding=(3, WINDOW)), 45, packed_layout=True)
    assert config.num_blocks == 22
    slab = {"size": 44 * PAGE, "block_stride": 2 * PAGE}
    assert config.kv_cache_tensors == (
        planning.KVCacheTensor(shared_by=("full.0", "sliding.0", "sliding.1"), offset=0, **slab),
        planning.KVCacheTensor(shared_by=("full.1", "sliding.2"), offset=PAGE, **slab),
    )


def test_packed_uniform_type_aligns_its_layers() -> None:
    aligned = MLAAttention(**SHAPE, alignment=96)
    # 256 bytes of a latent are padded to 288; 512 of a full page would push it off its alignment.
    config = planned({"f": FULL, "l": aligned}, 45, packed_layout=True)
    slab = {"size": config.num_blocks * 864, "block_stride": 864}
    assert config.kv_cache_tensors == (
        planning.KVCacheTensor(shared_by=("l",), offset=0, **slab),
        planning.KVCacheTensor(shared_by=("f",), offset=288, **slab),
    )


def test_packed_offsets_respect_alignment() -> None:
    assert planning.packed_offsets([10, 20, 5]) == ((0, 10, 30), 35)
    assert planning.packed_offsets([10, 20, 5], [8, 16, 1]) == ((0, 16, 36), 41)
    assert planning.packed_offsets([]) == ((), 0)


def test_smallest_rank_decides_and_memory_beyond_is_left() -> None:
    model = layers(full=(2, FULL))
    halves = [{"full.0": FULL}, {"full.1": FULL}]
    configs = Plain().get_kv_cache_configs(halves, DEPLOYMENT, [30 * PAGE, 20 * PAGE])
    assert [config.num_blocks for config in configs] == [20, 20]
    assert [config.kv_cache_tensors[0].size for config in configs] == [20 * PAGE, 20 * PAGE]
    assert planned(model, 40).num_blocks == 20


def test_stage_that_owns_one_kind_only() -> None:
    model = layers(full=(2, FULL), sliding=(2, WINDOW))
    stages: list[dict[str, Spec]] = [
        {name: spec for name, spec in model.items() if spec is FULL},
        {name: spec for name, spec in model.items() if spec is WINDOW},
    ]
    configs = Plain().get_kv_cache_configs(stages, DEPLOYMENT, [40 * PAGE] * 2)
    assert [[len(group.layer_names) for group in config.kv_cache_groups] for config in configs] == [
        [2, 0],
        [0, 2],
    ]


def test_rank_without_layers_and_model_without_layers() -> None:
    ranks: list[dict[str, Spec]] = [{"a": FULL}, {}]
    configs = Plain().get_kv_cache_configs(ranks, DEPLOYMENT, [20 * PAGE, 0])
    assert [config.num_blocks for config in configs] == [20, 20]
    assert configs[1].kv_cache_tensors == ()
    (empty,) = Plain().get_kv_cache_configs([{}], DEPLOYMENT, [0])
    assert (empty.num_blocks, empty.kv_cache_tensors, empty.kv_cache_groups) == (1, (), ())


def test_override_replaces_the_count_and_is_checked() -> None:
    assert planned({"a": FULL}, 1, num_gpu_blocks_override=8).num_blocks == 8
    with pytest.raises(Refused, match="takes 7 blocks, and of 7 only 6"):
        planned({"a": FULL}, 1000, num_gpu_blocks_override=7)


def test_null_and_sink_blocks_are_withheld() -> None:
    assert planned({"a": FULL}, 8).num_blocks == 8
    with pytest.raises(Refused, match="takes 7 blocks, and of 7 only 6"):
        planned({"a": FULL}, 7)
    sink = SinkFullAttention(**SHAPE, sink_len=17)
    assert planned({"a": sink}, 10).num_blocks == 10
    with pytest.raises(Refused, match="takes 7 blocks, and of 9 only 6"):
        planned({"a": sink}, 9)


def test_concurrency_is_exact() -> None:
    config = planned(layers(full=(1, FULL), sliding=(1, WINDOW)), 33)
    assert Plain().get_max_concurrency(config, DEPLOYMENT) == Fraction(33, 7 + 3)


def test_longest_length() -> None:
    model = [{"a": FULL}]
    estimate = Plain().estimate_max_model_len
    assert estimate(model, DEPLOYMENT, [8 * PAGE]) == 100
    assert estimate(model, DEPLOYMENT, [7 * PAGE]) == 96
    assert estimate(model, DEPLOYMENT, [2 * PAGE]) == 16
    assert estimate(model, DEPLOYMENT, [PAGE]) == 0
    assert estimate([{}], DEPLOYMENT, [0]) == 100


def test_scheduler_view_and_block_sizes() -> None:
    narrow = replace(WINDOW, dtype="uint8", kv_quant_mode="FP8_PER_TENSOR")
    configs = Plain().get_kv_cache_configs([{"f": FULL, "w": narrow}], DEPLOYMENT, [40 * PAGE])
    view = Plain().generate_scheduler_kv_cache_config(configs)
    assert view == configs[0]
    assert Plain().resolve_kv_cache_block_sizes(view, DEPLOYMENT) == (32, 16)
    assert Plain().resolve_kv_cache_block_sizes(view, replace(DEPLOYMENT, prefix_match_unit=8)) == (32, 8)
    with pytest.raises(Refused, match="prefix match unit 5 does not divide"):
        Plain().resolve_kv_cache_block_sizes(view, replace(DEPLOYMENT, prefix_match_unit=5))
    split = replace(DEPLOYMENT, decode_context_parallel=2)
    assert Plain().resolve_kv_cache_block_sizes(view, split) == (64, 32)
    with pytest.raises(Refused, match="different numbers of blocks"):
        Plain().generate_scheduler_kv_cache_config([view, replace(view, num_blocks=1)])


# Bad input


@pytest.mark.parametrize(
    ("memory", "said"),
    [
        ([0], "no memory"),
        ([-1], "no memory"),
        ([-(1 << 200)], "no memory"),
        ([1], "of 0 only 0"),
        ([1e9], "not a whole number of bytes"),
        ([], "memory given for 0"),
        ([PAGE, PAGE], "memory given for 2"),
    ],
)
def test_nonsense_memory_is_refused(memory: list[int], said: str) -> None:
    with pytest.raises(Refused, match=said):
        Plain().get_kv_cache_configs([{"a": FULL}], DEPLOYMENT, memory)


def test_absurd_memory_is_only_much() -> None:
    assert planned({"a": FULL}, 1 << 200).num_blocks == 1 << 200


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ({"a": third_party("Strange", AttentionSpec)(**SHAPE)}, "layer a: kind 'Strange' is not"),
        ({"a": UniformType(block_size=16, kv_cache_specs=(("b", FULL),))}, "layer a: kind 'uniform_type'"),
        ({"a": replace(FULL, num_kv_heads=0)}, "layer a: a page of 0 bytes"),
        ({"a": replace(FULL, block_size=0)}, "block size 0 is not positive"),
        ({"a": Mamba(block_size=-1, shapes=((8,),), dtypes=("float32",))}, "layer a: block size -1"),
        ({"a": MLAAttention(**SHAPE, alignment=100, page_size_padded=999)}, "no multiple of its alignment"),
        ({"a": replace(FULL, sliding_window=1, attention_chunk_size=1)}, "a window and a chunk at once"),
    ],
)
def test_nonsense_layers_are_refused(model: dict[str, Spec], said: str) -> None:
    with pytest.raises(Refused, match=said):
        Plain().get_kv_cache_configs([model], DEPLOYMENT, [1 << 40])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_gpu_blocks_override": 0}, "an override of 0 blocks"),
        ({"num_gpu_blocks_override": -5}, "an override of -5 blocks"),
        ({"max_model_len": 0}, "a max length of 0 tokens"),
    ],
)
def test_nonsense_deployment_is_refused(changes: dict[str, int], said: str) -> None:
    with pytest.raises(Refused, match=said):
        planned({"a": FULL}, 100, **changes)


def test_ranks_that_disagree_are_refused() -> None:
    with pytest.raises(Refused, match="layer a differs between ranks"):
        Plain().get_kv_cache_configs([{"a": FULL}, {"a": WINDOW}], DEPLOYMENT, [1 << 30] * 2)
    with pytest.raises(Refused, match="no rank to plan for"):
        Plain().get_kv_cache_configs([], DEPLOYMENT, [])


# Speed


def hybrid(count: int) -> dict[str, Spec]:
    kinds = (FULL, WINDOW, replace(WINDOW, sliding_window=99))
    return {f"layers.{index}": kinds[index % 3] for index in range(count)}


def wide(count: int) -> dict[str, Spec]:
    return {f"layers.{index}": replace(FULL, head_size=1 + index) for index in range(count)}


def seconds(model: dict[str, Spec]) -> float:
    started = time.perf_counter()
    Plain().get_kv_cache_configs([model], DEPLOYMENT, [1 << 80])
    return time.perf_counter() - started


@pytest.mark.parametrize("make", [hybrid, wide])
def test_planning_is_linear_in_the_layers(make: Any) -> None:
    few, many = make(2_000), make(20_000)
    # The best of three: other processes share the machine. Ten times the layers, quadratic is 100.
    assert min(seconds(many) for _ in range(3)) < 40 * min(seconds(few) for _ in range(3))
