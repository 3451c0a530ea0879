"""Planning grows linearly with the layers: the ratio of the two means should be near ten."""

from __future__ import annotations

from typing import Any

import pytest
from kvconform.reference.deployment import Deployment
from kvconform.reference.plain import Plain
from kvconform.reference.specs import FullAttention, SlidingWindow, Spec

SHAPE: dict[str, Any] = {"block_size": 16, "num_kv_heads": 8, "head_size": 128, "dtype": "bfloat16"}


def hybrid(layers: int) -> dict[str, Spec]:
    """Alternating full and sliding layers."""
    return {
        f"layer.{index}": FullAttention(**SHAPE) if index % 2 else SlidingWindow(sliding_window=1024, **SHAPE)
        for index in range(layers)
    }


@pytest.mark.parametrize("layers", [1_000, 10_000])
@pytest.mark.benchmark(group="planning")
def test_planning(benchmark: Any, layers: int) -> None:
    deployment = Deployment(max_model_len=4096, max_num_batched_tokens=2048)
    model = hybrid(layers)
    configs = benchmark(Plain().get_kv_cache_configs, [model], deployment, [1 << 44])
    assert sum(len(group.layer_names) for group in configs[0].kv_cache_groups) == layers
