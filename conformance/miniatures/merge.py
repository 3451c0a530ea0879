"""Faults in merging the layers of a group (FACTS section 7)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kvconform.conformance.miniatures.engine import Engine
from kvconform.conformance.miniatures.registry import breaks
from kvconform.reference.interface import Refused
from kvconform.reference.specs import (
    LATENT,
    AttentionSpec,
    FullAttention,
    SinkFullAttention,
    SlidingWindow,
    Spec,
)


def alike(specs: Sequence[Spec], **fields: Any) -> list[Spec]:
    """The specs with some fields set alike."""
    return [replace(spec, **fields) for spec in specs]


@breaks(
    "merge/idempotent",
    "merge/associative",
    "merge/keeps-every-field",
    "plan/pages-unified",
    "plan/promotion-keeps-storage",
)
class ModeForgottenOnMerge(Engine):
    """The merged spec is built field by field, and the quantisation mode is not among them."""

    def merge(self, specs: Sequence[Spec], kind: str | None = None) -> Spec:
        merged = super().merge(specs, kind)
        return replace(merged, kv_quant_mode="NONE") if isinstance(merged, AttentionSpec) else merged


@breaks(
    "merge/idempotent",
    "merge/associative",
    "merge/keeps-every-field",
    "plan/pages-unified",
    "plan/promotion-keeps-storage",
)
class StrideFlagForgotten(Engine):
    """The merged spec does not say that the backend reads pages by block stride."""

    def merge(self, specs: Sequence[Spec], kind: str | None = None) -> Spec:
        merged = super().merge(specs, kind)
        if isinstance(merged, AttentionSpec):
            return replace(merged, indexes_kv_by_block_stride=False)
        return merged


@breaks(
    "merge/idempotent",
    "merge/associative",
    "merge/keeps-every-field",
    "merge/keeps-page",
    "plan/backs-every-block",
    "plan/blocks-apart",
    "plan/maximal",
    "plan/one-stride",
    "plan/pages-unified",
)
class PaddingForgotten(Engine):
    """The merged spec has no padding."""

    def merge(self, specs: Sequence[Spec], kind: str | None = None) -> Spec:
        merged = super().merge(specs, kind)
        return replace(merged, page_size_padded=None) if isinstance(merged, AttentionSpec) else merged


@breaks("merge/commutative", "merge/keeps-every-field")
class SinksOfTheFirst(Engine):
    """Sink lengths are not compared: the group has the first layer's."""

    def merge(self, specs: Sequence[Spec], kind: str | None = None) -> Spec:
        sinks = [spec.sink_len for spec in specs if isinstance(spec, SinkFullAttention)]
        every = bool(sinks) and len(sinks) == len(specs)
        return super().merge(alike(specs, sink_len=sinks[0]) if every else specs, kind)


@breaks("merge/commutative", "merge/keeps-every-field", "merge/keeps-page")
class HeadsOfTheFirst(Engine):
    """Latents are merged without comparing heads: the group has the first layer's."""

    def merge(self, specs: Sequence[Spec], kind: str | None = None) -> Spec:
        heads = [spec.num_kv_heads for spec in specs if isinstance(spec, LATENT)]
        every = bool(heads) and len(heads) == len(specs)
        return super().merge(alike(specs, num_kv_heads=heads[0]) if every else specs, kind)


@breaks("merge/keeps-every-field", "merge/keeps-page")
class LargestPaddingWins(Engine):
    """Layers of different paddings are merged, and the group has the largest."""

    def merge(self, specs: Sequence[Spec], kind: str | None = None) -> Spec:
        padded = [getattr(spec, "page_size_padded", None) for spec in specs]
        known = [page for page in padded if page is not None]
        return super().merge(alike(specs, page_size_padded=max(known)) if known else specs, kind)


@breaks("merge/associative")
class MergedWithTheFirstOnly(Engine):
    """Each layer is merged with the first alone, so that of three the second is forgotten."""

    def merge(self, specs: Sequence[Spec], kind: str | None = None) -> Spec:
        merged = super().merge(specs[:1], kind)
        for other in specs[1:]:
            merged = super().merge([specs[0], other], kind)
        return merged


@breaks("merge/covers-bound", "merge/keeps-every-field", "merge/refuses-conflicts")
class SmallestWindowWins(Engine):
    """Layers of different windows are merged, and the group keeps the smallest."""

    def merge(self, specs: Sequence[Spec], kind: str | None = None) -> Spec:
        windows = [spec.sliding_window for spec in specs if isinstance(spec, SlidingWindow)]
        every = bool(windows) and len(windows) == len(specs)
        return super().merge(alike(specs, sliding_window=min(windows)) if every else specs, kind)


@breaks("merge/refuses-conflicts")
class LargestRecordedWindowWins(Engine):
    """Full layers that record different windows are merged, and the group records the largest."""

    def merge(self, specs: Sequence[Spec], kind: str | None = None) -> Spec:
        windows = [spec.sliding_window or 0 for spec in specs if isinstance(spec, FullAttention)]
        if len(windows) != len(specs) or not any(windows):
            return super().merge(specs, kind)
        return super().merge(alike(specs, sliding_window=max(windows)), kind)


@breaks("merge/refuses-conflicts")
class WindowBesideChunk(Engine):
    """A group may record a window of one layer and a chunk of another."""

    def merge(self, specs: Sequence[Spec], kind: str | None = None) -> Spec:
        full = [spec for spec in specs if isinstance(spec, FullAttention)]
        windowed = any(spec.sliding_window is not None for spec in full)
        chunks = {spec.attention_chunk_size for spec in full} - {None}
        if len(full) != len(specs) or not windowed or len(chunks) != 1:
            return super().merge(specs, kind)
        merged = super().merge(alike(specs, attention_chunk_size=None), kind)
        return replace(merged, attention_chunk_size=chunks.pop())  # type: ignore[call-arg]


@breaks("merge/refuses-conflicts")
class KindOfTheFirst(Engine):
    """Layers of another kind than the first are left out of the comparison."""

    def merge(self, specs: Sequence[Spec], kind: str | None = None) -> Spec:
        return super().merge([spec for spec in specs if spec.kind == specs[0].kind], kind)


@breaks("merge/refuses-without-asserts")
class RefusedByAssert(Engine):
    """A difference is found by an assertion, which an optimised interpreter skips."""

    def merge_without_asserts(self, specs: Sequence[Spec]) -> Spec:
        return self.construct(specs[0])


@breaks("merge/non-causal-spreads")
class NonCausalIfAllAre(Engine):
    """A group is non-causal only when all of its layers are."""

    def merge(self, specs: Sequence[Spec], kind: str | None = None) -> Spec:
        merged = super().merge(specs, kind)
        flags = [spec.non_causal for spec in specs if isinstance(spec, FullAttention)]
        return replace(merged, non_causal=all(flags)) if isinstance(merged, FullAttention) else merged


@breaks("merge/non-causal-spreads", "merge/commutative")
class NonCausalIfTheFirstIs(Engine):
    """A group is non-causal when its first layer is."""

    def merge(self, specs: Sequence[Spec], kind: str | None = None) -> Spec:
        first = specs[0].non_causal if specs and isinstance(specs[0], FullAttention) else False
        merged = super().merge(specs, kind)
        return replace(merged, non_causal=first) if isinstance(merged, FullAttention) else merged


@breaks("merge/leaves-inputs")
class FirstMemberReturned(Engine):
    """Equal layers are not copied: the group's spec is the first layer's own."""

    def merge(self, specs: Sequence[Spec], kind: str | None = None) -> Spec:
        merged = super().merge(specs, kind)
        return specs[0] if merged == specs[0] else merged


@breaks("merge/empty-refused")
class NothingHasAFirst(Engine):
    """The first layer is looked up before anybody asks whether there is one."""

    def merge(self, specs: Sequence[Spec], kind: str | None = None) -> Spec:
        return super().merge([specs[0], *specs[1:]], kind)


@breaks("merge/empty-refused")
class NothingRefusedWithoutReason(Engine):
    """Merging nothing is refused, but nobody is told why."""

    def merge(self, specs: Sequence[Spec], kind: str | None = None) -> Spec:
        if not specs:
            raise Refused
        return super().merge(specs, kind)
