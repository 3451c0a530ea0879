"""Faults in where planned pages lie in memory (FACTS section 9)."""

from __future__ import annotations

import math
from dataclasses import replace

from kvconform.conformance.miniatures.engine import Engine, Groups
from kvconform.conformance.miniatures.registry import breaks
from kvconform.reference.arithmetic import round_up
from kvconform.reference.deployment import Deployment
from kvconform.reference.planning import KVCacheConfig
from kvconform.reference.specs import Spec


@breaks("plan/every-layer-once", "plan/disjoint", "plan/shares-across-groups-only", "plan/within-budget")
class FirstTensorTwice(Engine):
    """The layers of the first tensor are given a second one."""

    def config(self, groups: Groups, num_blocks: int, deployment: Deployment) -> KVCacheConfig:
        made = super().config(groups, num_blocks, deployment)
        return replace(made, kv_cache_tensors=(*made.kv_cache_tensors, *made.kv_cache_tensors[:1]))


@breaks("plan/every-layer-once", "plan/own-layers-only")
class FirstSharerEntered(Engine):
    """Of the layers that share a tensor only the first is entered into it."""

    def config(self, groups: Groups, num_blocks: int, deployment: Deployment) -> KVCacheConfig:
        made = super().config(groups, num_blocks, deployment)
        return replace(
            made,
            kv_cache_tensors=tuple(
                replace(tensor, shared_by=tensor.names()[:1])  # type: ignore[arg-type]
                for tensor in made.kv_cache_tensors
            ),
        )


@breaks("plan/backs-every-block", "plan/maximal", "plan/override-checked")
class NullBlockNotBacked(Engine):
    """Block ids count the null block, tensors do not."""

    def config(self, groups: Groups, num_blocks: int, deployment: Deployment) -> KVCacheConfig:
        if not groups or num_blocks == 1:
            return super().config(groups, num_blocks, deployment)
        return replace(super().config(groups, num_blocks - 1, deployment), num_blocks=num_blocks)


@breaks("plan/blocks-apart", "plan/shares-across-groups-only")
class StrideOfOneLayer(Engine):
    """A packed block is stepped over by the page of one layer, though it holds all layers of a group."""

    def config(self, groups: Groups, num_blocks: int, deployment: Deployment) -> KVCacheConfig:
        made = super().config(groups, num_blocks, deployment)
        specs = [spec for group in groups for spec in group.layer_specs().values()]
        if not deployment.packed_layout or not specs:
            return made
        aligned = math.lcm(*(self.alignment(spec) for spec in specs))
        stride = round_up(max(self.page_size_bytes(spec) for spec in specs), aligned)
        stepped = tuple(replace(tensor, block_stride=stride) for tensor in made.kv_cache_tensors)
        return replace(made, kv_cache_tensors=stepped)


@breaks("plan/disjoint", "plan/shares-across-groups-only", "plan/blocks-aligned")
class PagesOverlapByAByte(Engine):
    """Inside a packed block each page but the first starts on the last byte of the one before."""

    def config(self, groups: Groups, num_blocks: int, deployment: Deployment) -> KVCacheConfig:
        made = super().config(groups, num_blocks, deployment)
        return replace(
            made,
            kv_cache_tensors=tuple(
                replace(tensor, offset=max(getattr(tensor, "offset", 0) - 1, 0))
                for tensor in made.kv_cache_tensors
            ),
        )


@breaks(
    "plan/shares-across-groups-only",
    "plan/disjoint",
    "plan/backs-every-block",
    "plan/blocks-apart",
    "plan/maximal",
    "plan/one-stride",
)
class AllLayersInOneTensor(Engine):
    """All layers share the first tensor, those of one group too."""

    def config(self, groups: Groups, num_blocks: int, deployment: Deployment) -> KVCacheConfig:
        made = super().config(groups, num_blocks, deployment)
        if not made.kv_cache_tensors:
            return made
        names = tuple(name for tensor in made.kv_cache_tensors for name in tensor.names())
        return replace(made, kv_cache_tensors=(replace(made.kv_cache_tensors[0], shared_by=names),))  # type: ignore[arg-type]


@breaks("plan/one-stride", "plan/blocks-apart")
class PaddingNotSteppedOver(Engine):
    """Tensors have room for padded pages, and the layers step through them by the unpadded ones."""

    def config(self, groups: Groups, num_blocks: int, deployment: Deployment) -> KVCacheConfig:
        made = super().config(groups, num_blocks, deployment)
        unpadded = tuple(
            replace(group, kv_cache_spec=without_padding(group.kv_cache_spec)) for group in groups
        )
        return replace(made, kv_cache_groups=unpadded)


def without_padding(spec: Spec) -> Spec:
    """The spec with the padding that was asked for by hand taken off."""
    by_hand = getattr(spec, "page_size_padded", None) is not None and getattr(spec, "alignment", None) is None
    return replace(spec, page_size_padded=None) if by_hand else spec  # type: ignore[call-arg]


@breaks("plan/blocks-aligned")
class PackedWithoutAlignment(Engine):
    """Pages are packed side by side without regard to the alignments that layers declare."""

    def alignment(self, spec: Spec) -> int:
        return 1
