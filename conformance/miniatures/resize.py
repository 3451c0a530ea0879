"""Faults in changing the block size (FACTS section 4)."""

from __future__ import annotations

from dataclasses import replace

from kvconform.conformance.miniatures.engine import Engine
from kvconform.conformance.miniatures.registry import breaks
from kvconform.reference.pages import unpadded_page_size_bytes
from kvconform.reference.specs import (
    LATENT,
    AttentionSpec,
    FullAttention,
    Mamba,
    SlidingWindow,
    Spec,
    UniformType,
)


@breaks("resize/like-fresh", "resize/still-covers", "resize/composes", "resize/padding-share")
class StalePadding(Engine):
    """A padding is carried over as it is, although the contents grow or shrink."""

    def copy_with_new_block_size(self, spec: Spec, block_size: int) -> Spec:
        if not isinstance(spec, AttentionSpec):
            return super().copy_with_new_block_size(spec, block_size)
        return replace(self.construct(spec), block_size=block_size)


@breaks("resize/same-is-identity")
class PaddingDropped(Engine):
    """A padding asked for is dropped when the block size changes."""

    def copy_with_new_block_size(self, spec: Spec, block_size: int) -> Spec:
        resized = super().copy_with_new_block_size(spec, block_size)
        by_hand = isinstance(spec, AttentionSpec) and getattr(spec, "alignment", None) is None
        return replace(resized, page_size_padded=None) if by_hand else resized  # type: ignore[call-arg]


@breaks("resize/padding-share")
class PaddingKeptInBytes(Engine):
    """A page keeps its bytes of padding, which weigh more in a smaller page."""

    def copy_with_new_block_size(self, spec: Spec, block_size: int) -> Spec:
        resized = super().copy_with_new_block_size(spec, block_size)
        if not isinstance(spec, AttentionSpec) or getattr(spec, "alignment", None) is not None:
            return resized
        if spec.page_size_padded is None:
            return resized
        padding = spec.page_size_padded - unpadded_page_size_bytes(spec)
        padded = unpadded_page_size_bytes(resized) + padding
        return replace(resized, page_size_padded=padded)  # type: ignore[call-arg]


@breaks("resize/like-fresh", "resize/composes", "resize/same-is-identity")
class AlignedPaddingScaled(Engine):
    """The padding that an alignment derived is scaled with the block instead of derived anew."""

    def copy_with_new_block_size(self, spec: Spec, block_size: int) -> Spec:
        if not isinstance(spec, LATENT) or spec.alignment is None:
            return super().copy_with_new_block_size(spec, block_size)
        scaled = self.page_size_bytes(spec) * block_size // spec.block_size
        return self.construct(replace(spec, block_size=block_size, page_size_padded=scaled))


@breaks("resize/keeps-the-rest", "plan/pages-unified", "plan/promotion-keeps-storage")
class ModeForgottenOnResize(Engine):
    """A resized spec is built field by field, and the quantisation mode is not among them."""

    def copy_with_new_block_size(self, spec: Spec, block_size: int) -> Spec:
        resized = super().copy_with_new_block_size(spec, block_size)
        attention = isinstance(resized, AttentionSpec)
        return replace(resized, kv_quant_mode="NONE") if attention else resized  # type: ignore[call-arg]


@breaks("resize/keeps-the-rest", "resize/same-is-identity")
class RecordedWindowForgottenOnResize(Engine):
    """A full layer forgets the window it records when its block size changes."""

    def copy_with_new_block_size(self, spec: Spec, block_size: int) -> Spec:
        resized = super().copy_with_new_block_size(spec, block_size)
        return replace(resized, sliding_window=None) if isinstance(resized, FullAttention) else resized


@breaks(
    "resize/keeps-the-rest",
    "resize/same-is-identity",
    "resize/like-fresh",
    "resize/still-covers",
    "plan/promotion-keeps-storage",
)
class ValueHeadForgottenOnResize(Engine):
    """A resized spec has V as wide as K."""

    def copy_with_new_block_size(self, spec: Spec, block_size: int) -> Spec:
        dense = isinstance(spec, AttentionSpec) and not isinstance(spec, LATENT)
        same = replace(spec, head_size_v=None) if dense else spec  # type: ignore[call-arg]
        return super().copy_with_new_block_size(same, block_size)


@breaks("resize/keeps-the-rest", "resize/composes", "plan/pages-unified")
class WindowInBlocks(Engine):
    """A window is kept in blocks, so that it changes with their size."""

    def copy_with_new_block_size(self, spec: Spec, block_size: int) -> Spec:
        resized = super().copy_with_new_block_size(spec, block_size)
        if not isinstance(spec, SlidingWindow):
            return resized
        window = max(1, spec.sliding_window * block_size // spec.block_size)
        return replace(resized, sliding_window=window)  # type: ignore[call-arg]


@breaks("resize/still-covers")
class StatePaddingScaled(Engine):
    """The padding of a state is scaled with the block, though the state does not depend on it."""

    def copy_with_new_block_size(self, spec: Spec, block_size: int) -> Spec:
        resized = super().copy_with_new_block_size(spec, block_size)
        if not isinstance(spec, Mamba) or spec.page_size_padded is None:
            return resized
        padded = spec.page_size_padded * block_size // spec.block_size
        return replace(resized, page_size_padded=padded)  # type: ignore[call-arg]


@breaks("resize/reaches-inside")
class WrapperResizedAlone(Engine):
    """Only the block size of a uniform_type changes, not its layers'."""

    def copy_with_new_block_size(self, spec: Spec, block_size: int) -> Spec:
        if isinstance(spec, UniformType):
            return replace(spec, block_size=block_size)
        return super().copy_with_new_block_size(spec, block_size)


@breaks("resize/reaches-inside")
class FirstLayerResizedAlone(Engine):
    """Of a uniform_type's layers only the first is resized."""

    def copy_with_new_block_size(self, spec: Spec, block_size: int) -> Spec:
        resized = super().copy_with_new_block_size(spec, block_size)
        if not isinstance(spec, UniformType) or not isinstance(resized, UniformType):
            return resized
        return replace(resized, kv_cache_specs=(*resized.kv_cache_specs[:1], *spec.kv_cache_specs[1:]))
