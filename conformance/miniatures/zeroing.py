"""Faults in clearing blocks before use (FACTS section 9)."""

from __future__ import annotations

from dataclasses import replace

from kvconform.conformance.miniatures.engine import Engine
from kvconform.conformance.miniatures.registry import breaks
from kvconform.reference.planning import KVCacheConfig
from kvconform.reference.specs import AttentionSpec, Mamba, UniformType
from kvconform.reference.zeroing import planned_specs


def unwrapped(config: KVCacheConfig) -> KVCacheConfig:
    """The configuration without its uniform_types, which a look at groups alone passes by."""
    plain = tuple(
        group for group in config.kv_cache_groups if not isinstance(group.kv_cache_spec, UniformType)
    )
    return replace(config, kv_cache_groups=plain)


@breaks("zero/state-read-before-write", "zero/new-blocks-reported")
class StatesNotCleared(Engine):
    """Blocks are cleared for mixed precisions alone, not for states."""

    def has_mamba_layers(self, config: KVCacheConfig) -> bool:
        return False


@breaks("zero/state-read-before-write", "plan/wrapping-free")
class WrappedStatesOverlooked(Engine):
    """States are looked for among the groups, not inside a uniform_type."""

    def has_mamba_layers(self, config: KVCacheConfig) -> bool:
        return super().has_mamba_layers(unwrapped(config))


@breaks("zero/mixed-precision", "plan/wrapping-free", "zero/new-blocks-reported")
class WrappedPrecisionsOverlooked(Engine):
    """Precisions are compared among the groups, not inside a uniform_type."""

    def has_mixed_precision_kv_cache(self, config: KVCacheConfig) -> bool:
        return super().has_mixed_precision_kv_cache(unwrapped(config))


@breaks("zero/mixed-precision", "zero/new-blocks-reported", "plan/wrapping-free")
class PrecisionsComparedWithinGroups(Engine):
    """Precisions are compared inside each group, not from group to group."""

    def has_mixed_precision_kv_cache(self, config: KVCacheConfig) -> bool:
        ask = super().has_mixed_precision_kv_cache
        return any(ask(replace(config, kv_cache_groups=(group,))) for group in config.kv_cache_groups)


@breaks("zero/only-when-needed")
class AlwaysCleared(Engine):
    """Every new block of every model is cleared."""

    def needs_kv_cache_zeroing(self, config: KVCacheConfig) -> bool:
        return True


@breaks("zero/only-when-needed")
class ClearedWhenQuantised(Engine):
    """Blocks are cleared for every quantised cache, be it of one precision."""

    def has_mixed_precision_kv_cache(self, config: KVCacheConfig) -> bool:
        modes = {spec.kv_quant_mode for spec in planned_specs(config) if isinstance(spec, AttentionSpec)}
        return modes != {"NONE"} and bool(modes)


@breaks("zero/new-blocks-reported")
class FirstGroupReported(Engine):
    """Only the new blocks of the first group are reported for clearing."""

    def records_new_block_ids(self, config: KVCacheConfig) -> tuple[bool, ...]:
        reported = super().records_new_block_ids(config)
        return (*reported[:1], *(False for _ in reported[1:]))


@breaks("zero/new-blocks-reported")
class StatesReportedAlone(Engine):
    """Where states ask for clearing, only the new blocks of states are reported."""

    def records_new_block_ids(self, config: KVCacheConfig) -> tuple[bool, ...]:
        if not self.has_mamba_layers(config):
            return super().records_new_block_ids(config)
        return tuple(isinstance(group.kv_cache_spec, Mamba) for group in config.kv_cache_groups)
