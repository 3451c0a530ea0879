"""Faults in the bytes of a page (FACTS section 3)."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeGuard

from kvconform.conformance.miniatures.engine import Engine
from kvconform.conformance.miniatures.registry import breaks
from kvconform.reference.arithmetic import product, round_up
from kvconform.reference.pages import head_slots, states_per_block, unpadded_page_size_bytes
from kvconform.reference.specs import (
    DTYPE_BYTES,
    LATENT,
    AttentionSpec,
    HiddenStateCache,
    Mamba,
    SinkFullAttention,
    Spec,
    UniformType,
)


def has_padding(spec: Spec) -> bool:
    """Whether the page is padded by hand or by an alignment, or is of several layers."""
    padded = getattr(spec, "page_size_padded", None) is not None
    return padded or getattr(spec, "alignment", None) is not None or isinstance(spec, UniformType)


def is_dense(spec: Spec) -> TypeGuard[AttentionSpec]:
    """Whether a page's bytes follow from heads, head size and element type alone.

    Pages that a backend reads by block stride are left out: a planner may pad those.
    """
    if not isinstance(spec, AttentionSpec) or has_padding(spec) or spec.indexes_kv_by_block_stride:
        return False
    return spec.num_head_slots is None and spec.state_content_bytes is None


@breaks("page/padded-covers-unpadded")
class ShortPaddingAccepted(Engine):
    """A padding is taken as the page even where it is less than the contents."""

    def page_size_bytes(self, spec: Spec) -> int:
        padded = getattr(spec, "page_size_padded", None)
        return super().page_size_bytes(spec) if padded is None else padded


@breaks("page/padding-is-exact", "resize/padding-share")
class PaddingRoundedUp(Engine):
    """A padding asked for by hand is rounded up to a multiple of 512, unless it is read by block stride."""

    def page_size_bytes(self, spec: Spec) -> int:
        page = super().page_size_bytes(spec)
        if not isinstance(spec, AttentionSpec) or spec.indexes_kv_by_block_stride:
            return page
        by_hand = spec.page_size_padded is not None and getattr(spec, "alignment", None) is None
        return round_up(page, 512) if by_hand else page


@breaks("page/padding-is-exact", "page/marker-is-free")
class MarkerForgetsPadding(Engine):
    """A hidden_state_cache copies its fields from an mla_attention, all but the padding."""

    def page_size_bytes(self, spec: Spec) -> int:
        marker = isinstance(spec, HiddenStateCache) and spec.alignment is None
        return unpadded_page_size_bytes(spec) if marker else super().page_size_bytes(spec)


@breaks("page/unpadded-formula")
class HeadSlotsIgnored(Engine):
    """The unpadded page counts KV heads where the backend has another number of slots."""

    def unpadded_page_size_bytes(self, spec: Spec) -> int:
        one_per_head = replace(spec, num_head_slots=None) if isinstance(spec, AttentionSpec) else spec
        return super().unpadded_page_size_bytes(one_per_head)

    def real_page_size_bytes(self, spec: Spec) -> int:
        return self.unpadded_page_size_bytes(spec)


@breaks("page/content-formula")
class ContentOverrideIgnored(Engine):
    """The content of a state is dense K and V even where the backend packs it otherwise."""

    def state_content_size_bytes(self, spec: Spec) -> int:
        assert isinstance(spec, AttentionSpec)
        return super().state_content_size_bytes(replace(spec, state_content_bytes=None))


@breaks("page/content-formula")
class ValueHeadAsWideAsKey(Engine):
    """The content of a state counts V as wide as K, where it is narrower or wider."""

    def state_content_size_bytes(self, spec: Spec) -> int:
        assert isinstance(spec, AttentionSpec)
        dense = not isinstance(spec, LATENT)
        return super().state_content_size_bytes(replace(spec, head_size_v=None) if dense else spec)


@breaks("page/format-not-kind")
class CrossAttentionNeverQuantised(Engine):
    """Cross-attention counts its page in 16-bit elements though the mode is quantised."""

    def page_size_bytes(self, spec: Spec) -> int:
        quantised = spec.kind == "cross_attention" and getattr(spec, "kv_quant_mode", "NONE") != "NONE"
        return super().page_size_bytes(spec) * (2 if quantised and not has_padding(spec) else 1)


@breaks("page/state-shapes-paired")
class ShapesPairedToTheShorter(Engine):
    """Shapes and dtypes of a state are zipped, so that an unpaired array has no bytes."""

    def page_size_bytes(self, spec: Spec) -> int:
        if not isinstance(spec, Mamba):
            return super().page_size_bytes(spec)
        pairs = min(len(spec.shapes), len(spec.dtypes))
        return super().page_size_bytes(replace(spec, shapes=spec.shapes[:pairs], dtypes=spec.dtypes[:pairs]))


@breaks("page/aligned", "resize/like-fresh", "merge/keeps-page")
class AlignedDownwards(Engine):
    """An aligned page is rounded down, though what a resized or merged spec records is rounded up."""

    def page_size_bytes(self, spec: Spec) -> int:
        if not isinstance(spec, LATENT) or spec.alignment is None or spec.page_size_padded is not None:
            return super().page_size_bytes(spec)
        return max(1, unpadded_page_size_bytes(spec) // spec.alignment) * spec.alignment


@breaks("page/aligned")
class AlignedOneTooMany(Engine):
    """A page that is aligned already gets a whole alignment on top."""

    def page_size_bytes(self, spec: Spec) -> int:
        if not isinstance(spec, LATENT) or spec.alignment is None or spec.page_size_padded is not None:
            return super().page_size_bytes(spec)
        return (unpadded_page_size_bytes(spec) // spec.alignment + 1) * spec.alignment


@breaks("page/whole-states")
class TailTokensWithoutState(Engine):
    """Compressed states in a block are counted by division, rounded down."""

    def page_size_bytes(self, spec: Spec) -> int:
        if isinstance(spec, LATENT) and spec.block_size % spec.compress_ratio:
            whole = spec.block_size // spec.compress_ratio * spec.compress_ratio
            return 0 if whole == 0 else super().page_size_bytes(replace(spec, block_size=whole))
        return super().page_size_bytes(spec)


@breaks("page/additive", "page/v-head-defaults", "plan/total", "plan/cheaper-is-not-worse")
class HeaderInEveryPage(Engine):
    """A page of more than one token starts with a header of 64 bytes."""

    def page_size_bytes(self, spec: Spec) -> int:
        header = isinstance(spec, AttentionSpec) and not has_padding(spec) and spec.block_size > 1
        return super().page_size_bytes(spec) + (64 if header else 0)


@breaks("page/monotone", "page/v-head-defaults", "resize/still-covers")
class HeadsSplitWhereDivisible(Engine):
    """Heads are counted after sharding over 8 ranks, though the spec holds a rank's own already."""

    def page_size_bytes(self, spec: Spec) -> int:
        page = super().page_size_bytes(spec)
        if is_dense(spec) and not isinstance(spec, LATENT) and spec.num_kv_heads % 8 == 0:
            return page // 8
        return page


@breaks("page/real-is-unpadded")
class RealPageIsPadded(Engine):
    """The alias of the unpadded page returns the padded one."""

    def real_page_size_bytes(self, spec: Spec) -> int:
        return self.page_size_bytes(spec)


@breaks(
    "page/v-head-defaults",
    "page/exact-at-scale",
    "resize/like-fresh",
    "resize/reaches-inside",
    "merge/keeps-page",
)
class MissingValueHeadIsNone(Engine):
    """A V head size that is left out counts as no V at all."""

    def page_size_bytes(self, spec: Spec) -> int:
        if is_dense(spec) and spec.head_size_v is None:
            return super().page_size_bytes(replace(spec, head_size_v=0))
        return super().page_size_bytes(spec)


@breaks("page/v-head-defaults", "page/exact-at-scale")
class LatentWithValues(Engine):
    """A latent's page counts a V part."""

    def page_size_bytes(self, spec: Spec) -> int:
        latent = isinstance(spec, LATENT) and is_dense(spec)
        return super().page_size_bytes(spec) * (2 if latent else 1)


@breaks("page/state-is-sum-of-parts", "resize/still-covers")
class LargestPartOfState(Engine):
    """A state's page holds its largest array only."""

    def page_size_bytes(self, spec: Spec) -> int:
        page = super().page_size_bytes(spec)
        if not isinstance(spec, Mamba) or has_padding(spec):
            return page
        pairs = zip(spec.shapes, spec.dtypes, strict=True)
        return max(product(shape) * DTYPE_BYTES[dtype] for shape, dtype in pairs)


@breaks("page/state-is-sum-of-parts")
class StateAtBothEnds(Engine):
    """A block longer than a token is counted with two states, one at either end."""

    def page_size_bytes(self, spec: Spec) -> int:
        page = super().page_size_bytes(spec)
        two = isinstance(spec, Mamba) and not has_padding(spec) and spec.block_size > 1
        return page * 2 if two else page


@breaks("page/layers-add-up", "resize/reaches-inside")
class LargestLayerOnly(Engine):
    """A uniform_type's page is its largest layer's."""

    def page_size_bytes(self, spec: Spec) -> int:
        if isinstance(spec, UniformType):
            return max(self.page_size_bytes(layer) for layer in spec.layers())
        return super().page_size_bytes(spec)


@breaks("page/marker-is-free", "page/format-not-kind", "page/v-head-defaults")
class SinksInEveryPage(Engine):
    """A page of a sink_full_attention has as much room for sinks as for the block's own tokens."""

    def page_size_bytes(self, spec: Spec) -> int:
        page = super().page_size_bytes(spec)
        sinks = isinstance(spec, SinkFullAttention) and spec.sink_len is not None
        return page * 2 if sinks and not has_padding(spec) else page


@breaks("page/positive", "page/v-head-defaults", "page/exact-at-scale", "resize/still-covers")
class ContentInWholeVectors(Engine):
    """A state's content is counted in whole vectors of 16 bytes, rounded down."""

    def page_size_bytes(self, spec: Spec) -> int:
        if is_dense(spec) and not isinstance(spec, LATENT):
            content = self.state_content_size_bytes(spec) // 16 * 16
            return head_slots(spec) * states_per_block(spec) * content
        return super().page_size_bytes(spec)


@breaks("page/exact-at-scale")
class ElementsInDoubles(Engine):
    """The elements of a token are multiplied as doubles."""

    def page_size_bytes(self, spec: Spec) -> int:
        if is_dense(spec):
            elements = int(float(spec.num_kv_heads) * (spec.head_size + spec.value_head_size))
            return elements * states_per_block(spec) * DTYPE_BYTES[spec.dtype]
        return super().page_size_bytes(spec)
