"""Faults in which layers may share one block table (FACTS section 8)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kvconform.conformance.miniatures.engine import Engine, Groups, Layers
from kvconform.conformance.miniatures.registry import breaks
from kvconform.reference.deployment import Deployment
from kvconform.reference.specs import FullAttention, Mamba, ReferenceSlidingWindow, SlidingWindow, Spec
from kvconform.reference.uniform import BASES


@breaks("uniform/reflexive", "uniform/registered-base", "plan/promotion-total")
class BasesAlone(Engine):
    """Only layers of the base kinds are ever called uniform, not those of kinds derived from them."""

    def is_uniform_type(self, specs: Sequence[Spec]) -> bool:
        return all(BASES.get(spec.kind) == spec.kind for spec in specs) and super().is_uniform_type(specs)


@breaks(
    "uniform/symmetric",
    "uniform/same-tokens",
    "uniform/same-blocks-kept",
    "plan/order-free",
    "plan/promotion-total",
    "uniform/registered-base",
)
class AskedOfTheFirstLayer(Engine):
    """The first layer is asked whether the others are instances of its class."""

    def is_uniform_type(self, specs: Sequence[Spec]) -> bool:
        return all(isinstance(spec, type(specs[0])) for spec in specs)


@breaks("uniform/same-tokens", "uniform/same-blocks-kept")
class WindowsNotCompared(Engine):
    """Windowed layers are called uniform whatever their windows."""

    def is_uniform_type(self, specs: Sequence[Spec]) -> bool:
        windowed = [replace(spec, sliding_window=1) for spec in specs if isinstance(spec, SlidingWindow)]
        return super().is_uniform_type(windowed if len(windowed) == len(specs) else specs)


@breaks("uniform/same-tokens", "uniform/same-blocks-kept")
class RetainedTokensNotCompared(Engine):
    """Layers of one window are called uniform though they retain different numbers of tokens below it."""

    def is_uniform_type(self, specs: Sequence[Spec]) -> bool:
        return super().is_uniform_type(
            [
                replace(spec, extra_retained_tokens=0) if isinstance(spec, SlidingWindow) else spec
                for spec in specs
            ]
        )


@breaks("uniform/same-tokens", "uniform/same-blocks-kept")
class BlockSizesNotCompared(Engine):
    """Layers are called uniform though their blocks are of different lengths."""

    def is_uniform_type(self, specs: Sequence[Spec]) -> bool:
        return super().is_uniform_type([replace(spec, block_size=1) for spec in specs])


@breaks("uniform/same-tokens", "uniform/same-blocks-kept")
class SpeculativeBlocksNotCompared(Engine):
    """States are called uniform though they keep different numbers of speculative blocks."""

    def is_uniform_type(self, specs: Sequence[Spec]) -> bool:
        return super().is_uniform_type(
            [replace(spec, num_speculative_blocks=0) if isinstance(spec, Mamba) else spec for spec in specs]
        )


@breaks("uniform/same-blocks-kept")
class ReferenceWindowTakenForFull(Engine):
    """A reference sliding layer is called uniform with full ones, which free no block."""

    def is_uniform_type(self, specs: Sequence[Spec]) -> bool:
        return super().is_uniform_type([plain_full(spec) for spec in specs])


def plain_full(spec: Spec) -> Spec:
    """A reference sliding layer as a full one of the same fields."""
    if not isinstance(spec, ReferenceSlidingWindow):
        return spec
    return as_full(spec)


def as_full(spec: Spec) -> FullAttention:
    """A full layer of the same block size; what it stores is any."""
    return FullAttention(block_size=spec.block_size, num_kv_heads=1, head_size=64, dtype="bfloat16")


@breaks("uniform/total")
class FirstLayerNeeded(Engine):
    """The first layer is looked at before anybody asks whether there is one."""

    def is_uniform_type(self, specs: Sequence[Spec]) -> bool:
        return specs[0].block_size > 0 and super().is_uniform_type(specs)


@breaks("uniform/unregistered-refused")
class StrangerTakenForFull(Engine):
    """A layer of a kind that nobody registered is planned as full attention."""

    def get_kv_cache_groups(self, layers: Layers, deployment: Deployment) -> Groups:
        known = {
            name: spec if self.registry.base_of(spec.kind) is not None else as_full(spec)
            for name, spec in layers.items()
        }
        return super().get_kv_cache_groups(known, deployment)


@breaks("uniform/registered-base", "plan/promotion-total")
class RegistrationsForgotten(Engine):
    """Kinds are compared, not the bases that they were registered with."""

    def is_uniform_type(self, specs: Sequence[Spec]) -> bool:
        return len({spec.kind for spec in specs}) < 2 and super().is_uniform_type(specs)
