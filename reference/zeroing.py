"""When new blocks must be cleared before use (FACTS section 9)."""

from __future__ import annotations

from collections.abc import Iterator

from kvconform.reference.planning import KVCacheConfig
from kvconform.reference.specs import AttentionSpec, Mamba, Spec, UniformType


def needs_kv_cache_zeroing(config: KVCacheConfig) -> bool:
    """Whether a new block may be read before it is written, or under another precision.

    True with a mamba layer, whose state is read first, and with more than one precision.
    """
    return has_mamba_layers(config) or has_mixed_precision_kv_cache(config)


def has_mamba_layers(config: KVCacheConfig) -> bool:
    """Whether any layer is a mamba layer, inside a uniform_type too.

    Releases that look at the group alone miss the wrapped ones (FACTS section 9, finding).
    """
    return any(isinstance(spec, Mamba) for spec in planned_specs(config))


def has_mixed_precision_kv_cache(config: KVCacheConfig) -> bool:
    """Whether attention layers have more than one pair of element type and mode."""
    return len(precisions(config)) > 1


def precisions(config: KVCacheConfig) -> set[tuple[str, str]]:
    """The pairs of element type and quantisation mode among the attention layers."""
    return {
        (spec.dtype, spec.kv_quant_mode) for spec in planned_specs(config) if isinstance(spec, AttentionSpec)
    }


def records_new_block_ids(config: KVCacheConfig) -> tuple[bool, ...]:
    """For each group, whether its new blocks are reported for zeroing.

    Those of every group with attention layers, where zeroing is needed (zero/new-blocks-reported).
    """
    needed = needs_kv_cache_zeroing(config)
    return tuple(
        needed and any(isinstance(spec, AttentionSpec) for spec in inner_specs(group.kv_cache_spec))
        for group in config.kv_cache_groups
    )


def planned_specs(config: KVCacheConfig) -> Iterator[Spec]:
    """The specs of a configuration's groups, uniform_types opened."""
    for group in config.kv_cache_groups:
        yield from inner_specs(group.kv_cache_spec)


def inner_specs(spec: Spec) -> tuple[Spec, ...]:
    """The layers' specs of a uniform_type; any other spec alone."""
    return spec.layers() if isinstance(spec, UniformType) else (spec,)
