"""Faults in which layers are planned together, and what becomes of them (FACTS section 9)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kvconform.conformance.miniatures.engine import Engine, Groups, Layers
from kvconform.conformance.miniatures.registry import breaks
from kvconform.reference.deployment import Deployment
from kvconform.reference.interface import Refused, Undocumented
from kvconform.reference.promotion import full_kind
from kvconform.reference.specs import AttentionSpec, ChunkedLocalAttention, FullAttention, Mamba, Spec

# Groups


@breaks("plan/filler-bounded", "plan/cheaper-is-not-worse")
class FilledUpToTheLargest(Engine):
    """Groups are as large as the largest bucket, whatever filler the others then need."""

    def group_size(self, counts: Sequence[int]) -> int:
        return max(counts)


@breaks("plan/order-free", "plan/filler-bounded", "plan/cheaper-is-not-worse")
class GroupsOfTheFirstBucket(Engine):
    """Groups are as large as the bucket whose layers are listed first."""

    def group_size(self, counts: Sequence[int]) -> int:
        return counts[0]


# Refusals


@breaks("plan/total")
class StatesRefused(Engine):
    """A model with states is refused."""

    def get_kv_cache_groups(self, layers: Layers, deployment: Deployment) -> Groups:
        if any(isinstance(spec, Mamba) for spec in layers.values()):
            raise Refused("no state layers here")
        return super().get_kv_cache_groups(layers, deployment)


@breaks("plan/total")
class StateFailsAnAssertion(Engine):
    """A state that is not kept for every block fails an assertion beside attention layers."""

    def unify_page_sizes(self, layers: Layers) -> dict[str, Spec]:
        if any(isinstance(spec, Mamba) and spec.mamba_cache_mode != "all" for spec in layers.values()):
            raise Undocumented("AssertionError")
        return super().unify_page_sizes(layers)


# Equal pages


@breaks("plan/unify-waste")
class PaddedWithoutGrowing(Engine):
    """A page that does not divide the largest is padded, however often it would fit."""

    def unify_page_sizes(self, layers: Layers) -> dict[str, Spec]:
        return {name: ungrown(spec, layers[name]) for name, spec in super().unify_page_sizes(layers).items()}


def ungrown(spec: Spec, before: Spec) -> Spec:
    """A padded spec with the block size that it had."""
    if isinstance(spec, AttentionSpec) and spec.page_size_padded is not None:
        return replace(spec, block_size=before.block_size)
    return spec


@breaks("plan/pages-unified", "plan/unify-waste")
class HeadsGrown(Engine):
    """Pages are made equal by adding heads instead of tokens."""

    def unify_page_sizes(self, layers: Layers) -> dict[str, Spec]:
        return {
            name: with_heads(spec, layers[name]) for name, spec in super().unify_page_sizes(layers).items()
        }


def with_heads(spec: Spec, before: Spec) -> Spec:
    """A spec of the block size that it had, its page filled by heads."""
    if not isinstance(spec, AttentionSpec) or spec.block_size == before.block_size:
        return spec
    times = spec.block_size // before.block_size
    return replace(spec, block_size=before.block_size, num_kv_heads=spec.num_kv_heads * times)


# Without the hybrid manager


@breaks("plan/promotion-keeps-storage")
class ModeForgottenOnPromotion(Engine):
    """A local layer planned as a full one forgets how it is quantised."""

    def promote_local(self, layers: Layers) -> dict[str, Spec]:
        return {
            name: replace(spec, kv_quant_mode="NONE") if has_become_full(spec, layers[name]) else spec  # type: ignore[call-arg]
            for name, spec in super().promote_local(layers).items()
        }


@breaks("plan/promotion-keeps-storage")
class ValueHeadForgottenOnPromotion(Engine):
    """A local layer planned as a full one has V as wide as K."""

    def promote_local(self, layers: Layers) -> dict[str, Spec]:
        return {
            name: replace(spec, head_size_v=None) if has_become_full(spec, layers[name]) else spec  # type: ignore[call-arg]
            for name, spec in super().promote_local(layers).items()
        }


def has_become_full(spec: Spec, before: Spec) -> bool:
    """Whether a layer is planned as the full_attention that it was not."""
    return spec.kind == FullAttention.kind != before.kind


@breaks("plan/promotion-total")
class ChunksNotPromoted(Engine):
    """Without the hybrid manager a chunked layer is refused, though full ones stand beside it."""

    def promote_local(self, layers: Layers) -> dict[str, Spec]:
        if any(isinstance(spec, ChunkedLocalAttention) for spec in layers.values()):
            raise Refused("chunked layers cannot be converted")
        return super().promote_local(layers)


@breaks("plan/promotion-total")
class PromotedAtItsOwnBlockSize(Engine):
    """A local layer planned as a full one keeps its block size, so that no table fits both."""

    def promote_local(self, layers: Layers) -> dict[str, Spec]:
        return {
            name: spec if spec == layers[name] else full_kind(layers[name])
            for name, spec in super().promote_local(layers).items()
        }


@breaks("plan/leaves-inputs")
class PromotedInPlace(Engine):
    """Layers planned as full ones are written into the mapping that they came in."""

    def get_kv_cache_groups(self, layers: Layers, deployment: Deployment) -> Groups:
        if not deployment.hybrid_kv_cache_manager and isinstance(layers, dict):
            layers.update(self.promote_local(layers))
        return super().get_kv_cache_groups(layers, deployment)
