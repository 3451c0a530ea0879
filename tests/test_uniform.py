"""Uniform types and the registry of kinds, by hand (FACTS section 8)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from kvconform.reference.interface import Refused
from kvconform.reference.specs import (
    AttentionSpec,
    FullAttention,
    Mamba,
    MLAAttention,
    ReferenceSlidingWindow,
    SlidingWindow,
    SlidingWindowMLA,
    Spec,
)
from kvconform.reference.uniform import Registry, is_uniform_type, third_party, uniform_type

SHAPE: dict[str, Any] = {"block_size": 16, "num_kv_heads": 1, "head_size": 64, "dtype": "bfloat16"}
FULL = FullAttention(**SHAPE)
LATENT = MLAAttention(**SHAPE)
WINDOW = SlidingWindow(**SHAPE, sliding_window=128)
STATE = Mamba(block_size=16, shapes=((8,),), dtypes=("float32",))


@pytest.mark.parametrize(
    ("specs", "uniform"),
    [
        ([], True),
        ([FULL, replace(FULL, num_kv_heads=2)], True),
        ([FULL, LATENT], True),
        ([LATENT, FULL], True),
        ([FULL, replace(FULL, block_size=32)], False),
        ([FULL, WINDOW], False),
        ([WINDOW, replace(WINDOW, num_kv_heads=4)], True),
        ([WINDOW, replace(WINDOW, sliding_window=64)], False),
        ([WINDOW, replace(WINDOW, extra_retained_tokens=1)], False),
        ([WINDOW, SlidingWindowMLA(**SHAPE, sliding_window=128)], False),
        ([SlidingWindowMLA(**SHAPE, sliding_window=128), WINDOW], False),
        ([FULL, ReferenceSlidingWindow(**SHAPE, rswa_window=8)], False),
        ([STATE, replace(STATE, shapes=((16,),))], True),
        ([STATE, replace(STATE, num_speculative_blocks=1)], False),
        ([STATE, replace(STATE, mamba_cache_mode="all")], False),
    ],
)
def test_uniform(specs: list[Spec], uniform: bool) -> None:
    assert is_uniform_type(specs, Registry()) is uniform
    layers = {str(index): spec for index, spec in enumerate(specs)}
    made = uniform_type(layers, Registry())
    assert (made is not None) == (uniform and bool(specs))
    if made is not None:
        assert dict(made.kv_cache_specs) == layers


def test_nested_uniform_type_is_what_is_in_it() -> None:
    inside = uniform_type({"a": FULL, "b": LATENT}, Registry())
    assert inside is not None
    assert is_uniform_type([inside, FULL], Registry())
    assert not is_uniform_type([inside, WINDOW], Registry())


def test_third_party_is_uniform_with_its_base_once_registered() -> None:
    registry = Registry()
    own = third_party("Acme", FullAttention)(**SHAPE)
    assert not is_uniform_type([FULL, own], registry)
    registry.register_kv_cache_spec("Acme", "full_attention")
    registry.register_kv_cache_spec("Acme", "full_attention")
    assert is_uniform_type([FULL, own, LATENT], registry)
    assert registry.base_of("Acme") == "full_attention"
    assert own == third_party("Acme", FullAttention)(**SHAPE)


def test_conflicting_registration_is_refused() -> None:
    registry = Registry()
    registry.register_kv_cache_spec("Acme", "full_attention")
    with pytest.raises(Refused, match="already registered with base 'full_attention'"):
        registry.register_kv_cache_spec("Acme", "mamba")
    with pytest.raises(Refused, match="'rswa' is not a base kind"):
        registry.register_kv_cache_spec("Other", "rswa")


def test_unknown_kind_is_refused_by_name() -> None:
    stranger = third_party("Strange", AttentionSpec)(**SHAPE)
    assert not is_uniform_type([stranger], Registry())
    with pytest.raises(Refused, match="layer b: kind 'Strange' is not registered"):
        Registry().refuse_unknown({"a": FULL, "b": stranger})
