"""What leaves this process as dictionaries comes back as it was."""

from __future__ import annotations

import json
from typing import Any

import pytest
from kvconform.reference.deployment import Deployment
from kvconform.reference.grouping import KVCacheGroupSpec
from kvconform.reference.plain import Plain
from kvconform.reference.planning import KVCacheConfig, KVCacheTensor, StridedKVCacheTensor
from kvconform.reference.specs import (
    KINDS,
    AttentionSpec,
    FullAttention,
    Mamba,
    MLAAttention,
    SlidingWindow,
    Spec,
    UniformType,
)
from kvconform.reference.uniform import third_party
from kvconform.reference.wire import (
    config_from_wire,
    config_to_wire,
    deployment_to_wire,
    group_from_wire,
    group_to_wire,
    spec_from_wire,
    spec_to_wire,
    tensor_from_wire,
    tensor_to_wire,
)

FULL = FullAttention(block_size=16, num_kv_heads=2, head_size=64, dtype="bfloat16")
SLIDING = SlidingWindow(block_size=16, num_kv_heads=2, head_size=64, dtype="bfloat16", sliding_window=33)
MAMBA = Mamba(block_size=16, shapes=((3, 4), (5,)), dtypes=("float32", "bfloat16"))
WRAPPED = UniformType(block_size=16, kv_cache_specs=(("a", FULL), ("b", FULL)))


def as_json(wire: dict[str, Any]) -> dict[str, Any]:
    """The dictionary as it arrives elsewhere."""
    arrived: dict[str, Any] = json.loads(json.dumps(wire))
    return arrived


def test_every_kind_comes_back() -> None:
    attention: dict[str, Any] = {"num_kv_heads": 1, "head_size": 8, "dtype": "uint8"}
    own: dict[str, dict[str, Any]] = {
        "sliding_window": {"sliding_window": 5},
        "sliding_window_mla": {"sliding_window": 5, "alignment": 576, "compress_ratio": 4},
        "chunked_local_attention": {"attention_chunk_size": 64},
        "rswa": {"rswa_window": 7},
        "mamba": {"shapes": ((1, 2),), "dtypes": ("float32",)},
        "uniform_type": {"kv_cache_specs": (("a", FULL), ("b", MAMBA))},
    }
    for kind, spec_class in KINDS.items():
        fields = {**({} if kind in ("mamba", "uniform_type") else attention), **own.get(kind, {})}
        spec: Spec = spec_class(block_size=16, **fields)
        assert spec_from_wire(as_json(spec_to_wire(spec))) == spec


@pytest.mark.parametrize("base", [AttentionSpec, FullAttention, MLAAttention, Mamba], ids=str)
def test_a_third_partys_kind_comes_back(base: type[Spec]) -> None:
    fields: dict[str, Any] = {"num_kv_heads": 1, "head_size": 8, "dtype": "uint8"}
    if base is Mamba:
        fields = {"shapes": ((4,),), "dtypes": ("float32",)}
    spec = third_party("TheirCache", base)(block_size=16, **fields)
    wire = as_json(spec_to_wire(spec))
    assert (wire["kind"], wire["base"]) == ("TheirCache", base.kind)
    again = spec_from_wire(wire)
    assert again == spec
    assert type(again) is type(spec)


@pytest.mark.parametrize(
    ("wire", "named"),
    [
        ({"kind": "nobody", "block_size": 16}, "nobody"),
        ({"block_size": 16}, "None"),
        ({"kind": "TheirCache", "base": "nobody", "block_size": 16}, "nobody"),
        ({"kind": ["full_attention"]}, "full_attention"),
        ({"kind": "full_attention", "block_size": 16, "colour": 1}, "colour"),
        ({"kind": "full_attention", "block_size": 16}, "num_kv_heads"),
    ],
)
def test_a_bad_spec_is_named(wire: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        spec_from_wire(wire)


@pytest.mark.parametrize(
    "tensor",
    [
        KVCacheTensor(size=512, shared_by=("a", "b")),
        KVCacheTensor(size=512, shared_by=("a",), offset=64, block_stride=128),
        StridedKVCacheTensor(size=512, layers=("a", "b"), layer_stride=64, block_stride=128, offset=32),
        StridedKVCacheTensor(size=0, layers=(), layer_stride=0, block_stride=0),
    ],
)
def test_tensors_come_back(tensor: KVCacheTensor | StridedKVCacheTensor) -> None:
    assert tensor_from_wire(as_json(tensor_to_wire(tensor))) == tensor


@pytest.mark.parametrize("spec", [FULL, WRAPPED, MAMBA], ids=lambda spec: spec.kind)
@pytest.mark.parametrize("draft", [False, True])
def test_groups_come_back(spec: Spec, draft: bool) -> None:
    group = KVCacheGroupSpec(layer_names=("a", "b"), kv_cache_spec=spec, is_eagle_group=draft)
    assert group_from_wire(as_json(group_to_wire(group))) == group


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    "layers",
    [
        {},
        {"a": FULL, "b": FULL},
        {"a": FULL, "b": SLIDING, "c": SLIDING},
        {"a": FULL, "b": MLAAttention(block_size=16, num_kv_heads=1, head_size=576, dtype="bfloat16")},
    ],
    ids=["none", "full", "hybrid", "wrapped"],
)
def test_whole_plans_come_back(layers: dict[str, Spec], packed: bool) -> None:
    deployment = Deployment(max_model_len=64, packed_layout=packed, draft_layers=("b",))
    ranks = [layers, {name: spec for name, spec in layers.items() if name != "a"}]
    configs = Plain().get_kv_cache_configs(ranks, deployment, [1 << 22, 1 << 23])
    for config in configs:
        assert config_from_wire(as_json(config_to_wire(config))) == config


def test_a_configuration_without_anything_comes_back() -> None:
    config = KVCacheConfig(num_blocks=1, kv_cache_tensors=(), kv_cache_groups=())
    assert config_from_wire(as_json(config_to_wire(config))) == config


def test_lookahead_is_not_among_the_tokens_in_flight() -> None:
    deployment = Deployment(
        max_model_len=64, max_num_batched_tokens=8, max_concurrent_batches=2, num_lookahead_tokens=5
    )
    wire = deployment_to_wire(deployment)
    assert wire["in_flight_tokens"] == 16
    assert wire["num_lookahead_tokens"] == 5
    assert (
        Deployment(**{name: value for name, value in wire.items() if name != "in_flight_tokens"})
        == deployment
    )
