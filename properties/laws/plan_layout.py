"""Where planned pages lie in memory (FACTS section 9.4)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations

from kvconform.properties.drawn_models import Model, memory, model
from kvconform.properties.given import Given
from kvconform.properties.law import ensure, ensure_equal, law
from kvconform.properties.laws.plan_groups import implementation_page, planned
from kvconform.reference.interface import Implementation
from kvconform.reference.layout import Placement, by_allocation, overlap, page_range, placements
from kvconform.reference.planning import KVCacheConfig
from kvconform.reference.specs import LATENT, Spec

CONFIGS = ("get_kv_cache_configs",)


def placed(
    implementation: Implementation, given: Given, whole: Model
) -> Iterator[tuple[int, KVCacheConfig, tuple[Placement, ...]]]:
    """Each rank's configuration and where its layers lie.

    A plan whose tensors name another rank's layers gives up the run: plan/own-layers-only is about
    those, and here they have no page.
    """
    for rank, config in enumerate(planned(implementation, given, whole, memory(given, whole))):
        owned = {name for group in config.kv_cache_groups for name in group.layer_names}
        given.assume(all(name in owned for tensor in config.kv_cache_tensors for name in tensor.names()))
        yield rank, config, placements(config, lambda spec: implementation_page(implementation, spec))


def some_blocks(config: KVCacheConfig) -> tuple[int, ...]:
    """Block ids at both ends of the pool and in its middle: strides are the same between all others."""
    last = config.num_blocks - 1
    return tuple(sorted({0, min(1, last), last // 2, max(last - 1, 0), last}))


def at(place: Placement, block: int) -> str:
    """A page and its byte range, for a message."""
    start, end = page_range(place, block)
    return f"{place.layer} block {block} at bytes {start} to {end}"


@law("plan/blocks-aligned", severity="safety", needs=CONFIGS, proved=True)
def blocks_aligned(implementation: Implementation, given: Given) -> None:
    """Every block of a layer starts at a multiple of the layer's declared alignment, padded or not.

    Kernels that load aligned rows read garbage, or fault, at any other address.
    """
    whole = aligned_model(given, implementation)
    layers = whole.layers()
    for rank, config, places in placed(implementation, given, whole):
        for place in places:
            alignment = declared_alignment(layers[place.layer])
            if alignment is None:
                continue
            for block in some_blocks(config):
                ensure(
                    page_range(place, block)[0] % alignment == 0,
                    f"rank {rank}: {at(place, block)}, wanted a multiple of its alignment {alignment}",
                )


def aligned_model(given: Given, implementation: Implementation) -> Model:
    """A model whose latent layers declare alignments; their pages need not be multiples of them."""
    whole = model(given, hybrids=("latent", "latent, full", "latent, sliding latent", "latent, mamba"))
    latent = {spec.kind for spec in whole.layers().values() if isinstance(spec, LATENT)}
    alignments = {
        kind: given.choice(f"{kind}.alignment", (None, 512, 576, 7))
        for kind in sorted(latent)
        if "alignment" in implementation.fields(kind)
    }
    given.assume(bool(alignments))
    declaring: dict[str, Spec] = {
        name: replace(spec, alignment=alignments[spec.kind])
        for name, spec in whole.layers().items()
        if isinstance(spec, LATENT) and spec.kind in alignments
    }
    return whole.with_layers(given.alike(declaring))


def declared_alignment(spec: Spec) -> int | None:
    """The alignment in bytes that a layer asks for."""
    return spec.alignment if isinstance(spec, LATENT) else None


@law("plan/backs-every-block", severity="safety", needs=CONFIGS, reports=("tpu-inference#2366",), proved=True)
def backs_every_block(implementation: Implementation, given: Given) -> None:
    """Each layer's page of each block lies inside its tensor.

    A block id that is handed out and not backed is written past the end of the allocation.
    """
    for rank, config, places in placed(implementation, given, model(given)):
        for place in places:
            for block in (0, config.num_blocks - 1):
                start, end = page_range(place, block)
                ensure(
                    start >= 0 and end <= place.size,
                    f"rank {rank}: {at(place, block)}, wanted within the {place.size} bytes of its tensor",
                )


@law("plan/blocks-apart", severity="safety", needs=CONFIGS, proved=True)
def blocks_apart(implementation: Implementation, given: Given) -> None:
    """Different block ids never share a byte, in any layout that the planner accepts.

    A block belongs to one request at a time, whichever layers it is written by; only pages of the
    same block may lie over one another.
    """
    for rank, config, places in placed(implementation, given, model(given)):
        blocks = some_blocks(config)
        for together in by_allocation(places).values():
            # Layers of one place, one stride and one page have the same ranges.
            distinct = {(place.offset, place.stride, place.page): place for place in together}.values()
            pages = [(page_range(place, block), place, block) for place in distinct for block in blocks]
            for (one, place, block), (other, beside, another) in combinations(pages, 2):
                ensure(
                    block == another or not overlap(one, other),
                    f"rank {rank}: {at(place, block)} shares bytes with {at(beside, another)}, wanted none",
                )


@law("plan/disjoint", severity="safety", needs=CONFIGS, reports=("vllm#50276",), proved=True)
def disjoint(implementation: Implementation, given: Given) -> None:
    """Pages of two layers of one group never share a byte, nor do two blocks of one layer.

    Both are written for the same request in the same step.
    """
    for rank, config, places in placed(implementation, given, model(given)):
        for together in by_allocation(places).values():
            for place in together:
                ensure(
                    config.num_blocks == 1 or place.stride >= place.page,
                    f"rank {rank}: {at(place, 0)} runs into {at(place, 1)}",
                )
            for one, other in combinations(together, 2):
                for block in some_blocks(config) if one.group == other.group else ():
                    ensure(
                        not overlap(page_range(one, block), page_range(other, block)),
                        f"rank {rank}: {at(one, block)} shares bytes with {at(other, block)}, same group",
                    )


@law("plan/shares-across-groups-only", severity="safety", needs=CONFIGS)
def shares_across_groups_only(implementation: Implementation, given: Given) -> None:
    """Layers that share bytes are in different groups.

    The block tables of different groups never name the same block at the same time; one group's
    table names it for all layers of the group.
    """
    for rank, config, places in placed(implementation, given, model(given)):
        blocks = some_blocks(config)
        for together in by_allocation(places).values():
            for one, other in combinations(together, 2):
                if one.group == other.group:
                    shared = [
                        (block, another)
                        for block in blocks
                        for another in blocks
                        if overlap(page_range(one, block), page_range(other, another))
                    ]
                    ensure(
                        not shared,
                        f"rank {rank}: {one.layer} and {other.layer} of group {one.group} share bytes in "
                        f"blocks {shared[:1]}, wanted only layers of different groups to",
                    )


@law("plan/one-stride", severity="safety", needs=CONFIGS, reports=("kvcached#399",))
def one_stride(implementation: Implementation, given: Given) -> None:
    """Layers sharing a tensor step through it by the same padded page.

    With two strides block 5 of one layer is the middle of blocks 2 and 3 of another.
    """
    for rank, config, places in placed(implementation, given, model(given)):
        strides: dict[int, Placement] = {}
        for place in places:
            first = strides.setdefault(place.tensor, place)
            ensure_equal(
                place.stride,
                first.stride,
                f"rank {rank}: stride of {place.layer} through tensor {place.tensor}",
                f"stride of {first.layer} in the same tensor",
            )
            ensure(
                place.page <= place.stride or config.num_blocks == 1,
                f"rank {rank}: {place.layer} has pages of {place.page} bytes and steps by {place.stride}",
            )
