"""Which layers are planned together, and what becomes of their specs (FACTS section 9.1 to 9.3, 9.8)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

from kvconform.properties.drawn_models import BESIDE_FULL, HYBRIDS, WITH_EMPTY, Model, memory, model
from kvconform.properties.given import Given
from kvconform.properties.law import ensure, ensure_equal, law
from kvconform.reference import grouping, pages
from kvconform.reference.arithmetic import cdiv
from kvconform.reference.grouping import KVCacheGroupSpec
from kvconform.reference.interface import Implementation, Refused, Undocumented, Unsupported
from kvconform.reference.planning import KVCacheConfig
from kvconform.reference.promotion import full_kind
from kvconform.reference.specs import AttentionSpec, FullAttention, Spec, UniformType, field_names
from kvconform.reference.uniform import Registry

GROUPS = ("get_kv_cache_groups",)
CONFIGS = ("get_kv_cache_configs",)
ONE_RANK = ("one rank",)


def groups_of(implementation: Implementation, given: Given, whole: Model) -> tuple[KVCacheGroupSpec, ...]:
    """The groups of a model; a refusal gives up the run."""
    try:
        return implementation.get_kv_cache_groups(whole.layers(), whole.deployment)
    except Refused:
        given.reject()


def planned(
    implementation: Implementation, given: Given, whole: Model, available: Sequence[int]
) -> tuple[KVCacheConfig, ...]:
    """The configurations of a model in so much memory; a refusal gives up the run."""
    try:
        return implementation.get_kv_cache_configs(whole.handed_over(), whole.deployment, available)
    except Refused:
        given.reject()


def planned_layers(groups: tuple[KVCacheGroupSpec, ...]) -> dict[str, Spec]:
    """Each layer's spec as planned."""
    return {name: spec for group in groups for name, spec in group.layer_specs().items()}


@law(
    "plan/every-layer-once",
    severity="safety",
    needs=CONFIGS,
    reports=("vllm-metal#505", "sglang#29857"),
)
def every_layer_once(implementation: Implementation, given: Given) -> None:
    """Each layer is in exactly one group and backed by exactly one tensor.

    A layer left out has no memory; one in two groups is written through two block tables.
    """
    whole = model(given, partitions=WITH_EMPTY)
    configs = planned(implementation, given, whole, memory(given, whole))
    for index, (rank, config) in enumerate(zip(whole.ranks, configs, strict=True)):
        in_groups = [name for group in config.kv_cache_groups for name in group.layer_names]
        in_tensors = [name for tensor in config.kv_cache_tensors for name in tensor.names()]
        for what, named in (("groups", in_groups), ("tensors", in_tensors)):
            ensure(
                sorted(named) == sorted(rank),
                f"rank {index}: {what} name {sorted(named)}, wanted each of its layers once: {sorted(rank)}",
            )


@law("plan/total", severity="agreement", needs=CONFIGS, reports=("vllm#46480",))
def total(implementation: Implementation, given: Given) -> None:
    """Every set of layers is planned, or refused with the planner's own documented refusal.

    With the hybrid manager, memory for a request and pages that divide one another there is nothing
    to refuse. Elsewhere a refusal is an answer, an exception from the depths of the planner is none.
    """
    whole = with_or_without_manager(given)
    available = memory(given, whole)
    try:
        implementation.get_kv_cache_configs(whole.handed_over(), whole.deployment, available)
    except Undocumented as fall:
        ensure(False, f"the planner fell over: {fall}")
    except Refused as refusal:
        if not whole.deployment.hybrid_kv_cache_manager or not pages_divide(whole):
            return
        try:
            grouping_of_reference(whole)
        except Refused:
            return
        # The reference plans it. So much memory leaves room for any other way of counting blocks.
        plenty = [4 * bytes_ + (1 << 40) for bytes_ in available]
        try:
            implementation.get_kv_cache_configs(whole.handed_over(), whole.deployment, plenty)
        except Refused:
            ensure(False, f"refused a model that can be planned: {refusal}")
    except Unsupported:
        raise
    except Exception as error:
        ensure(False, f"the planner fell over: {type(error).__name__}: {error}")


def with_or_without_manager(given: Given) -> Model:
    """A model planned with the hybrid manager, or without, mostly one of those in which that matters."""
    if given.flag("without_hybrid_manager"):
        return model(given, hybrids=(*BESIDE_FULL * 3, *HYBRIDS)).deployed(hybrid_kv_cache_manager=False)
    return model(given)


def pages_divide(whole: Model) -> bool:
    """Whether every layer's page divides the largest one."""
    sizes = {pages.page_size_bytes(spec) for spec in whole.layers().values()}
    return all(max(sizes) % size == 0 for size in sizes)


def grouping_of_reference(whole: Model) -> tuple[KVCacheGroupSpec, ...]:
    """The groups that the reference makes of the model; raises `Refused` where it cannot."""
    return grouping.get_kv_cache_groups(whole.layers(), whole.deployment, Registry())


@law("plan/promotion-keeps-storage", severity="safety", needs=GROUPS)
def promotion_keeps_storage(implementation: Implementation, given: Given) -> None:
    """With the hybrid manager off, a promoted layer keeps its bytes, V head size, mode and stride flag.

    Only which tokens are kept changes; the layer's kernels still read the same states at the same places.
    """
    whole = model(given, hybrids=BESIDE_FULL, partitions=ONE_RANK).deployed(hybrid_kv_cache_manager=False)
    if given.flag("stored_alike"):
        whole = whole.with_layers(stored_alike(whole))
    if given.flag("narrow_v_heads"):
        narrower: dict[str, Spec] = {
            name: replace(spec, head_size_v=8)
            for name, spec in whole.layers().items()
            if isinstance(spec, AttentionSpec)
            and spec.kind == "sliding_window"
            and "head_size_v" in implementation.fields(spec.kind)
        }
        whole = whole.with_layers(narrower)
    planned = planned_layers(groups_of(implementation, given, whole))
    for name, spec in whole.layers().items():
        assert isinstance(spec, AttentionSpec)
        promoted = planned[name]
        has = implementation.fields(spec.kind) & frozenset(field_names(promoted.kind))
        for field in STORED:
            if field in has:
                before = getattr(spec, field)
                what = f"{field} of {name} as planned"
                ensure_equal(getattr(promoted, field), before, what, f"that of {spec.kind}")
        wanted = pages.page_size_bytes(pages.copy_with_new_block_size(spec, promoted.block_size))
        ensure_equal(
            pages.page_size_bytes(promoted),
            wanted,
            f"page bytes of {name} as planned",
            f"page of the {spec.kind} layer at block size {promoted.block_size}",
        )


def stored_alike(whole: Model) -> dict[str, Spec]:
    """The local layers, each stored like the first full one: promoted, they merge with it."""
    full = next(spec for spec in whole.layers().values() if isinstance(spec, FullAttention))
    return {
        name: replace(spec, **{field: getattr(full, field) for field in ALIKE})
        for name, spec in whole.layers().items()
        if full_kind(spec).kind == full.kind != spec.kind
    }


ALIKE = ("num_kv_heads", "head_size", "dtype", "kv_quant_mode", "indexes_kv_by_block_stride")

STORED = (
    "num_kv_heads",
    "head_size",
    "head_size_v",
    "dtype",
    "kv_quant_mode",
    "indexes_kv_by_block_stride",
    "num_head_slots",
    "state_content_bytes",
    "cache_dtype_str",
    "alignment",
    "compress_ratio",
    "model_version",
)
"""Fields that say how a state is stored."""


@law("plan/promotion-total", severity="agreement", needs=GROUPS)
def promotion_total(implementation: Implementation, given: Given) -> None:
    """With the hybrid manager off, every local kind beside full layers is planned into one group.

    Layers that differ only in what they compute share one table: a window, a chunk or a block size
    is no reason to refuse, since every token is kept for all of them.
    """
    whole = model(given, hybrids=BESIDE_FULL, partitions=ONE_RANK).deployed(hybrid_kv_cache_manager=False)
    if given.flag("local_blocks_half"):
        halved = {
            name: replace(spec, block_size=spec.block_size // 2)
            for name, spec in whole.layers().items()
            if spec.kind.startswith("sliding_window")
        }
        whole = whole.with_layers(halved)
    try:
        groups = implementation.get_kv_cache_groups(whole.layers(), whole.deployment)
    except Refused as refusal:
        ensure(False, f"refused full layers beside local ones: {refusal}")
    ensure_equal(len(groups), 1, "groups", "one table for layers that all keep every token")


@law("plan/unify-waste", severity="economy", needs=GROUPS, reports=("vllm#54458",))
def unify_waste(implementation: Implementation, given: Given) -> None:
    """Unifying wastes less than one page of the smaller attention layer per block.

    As many whole pages of the smaller layer as fit belong into the larger page; only what is left
    over may be padding.
    """
    whole = model(given, layouts=("shared",), partitions=ONE_RANK)
    planned = planned_layers(groups_of(implementation, given, whole))
    for name, spec in whole.layers().items():
        if isinstance(spec, AttentionSpec):
            page = implementation_page(implementation, planned[name])
            smaller = implementation_page(implementation, spec)
            used = smaller * planned[name].block_size // spec.block_size
            ensure(
                page - used < smaller,
                f"{name}: unified from {smaller} to {page} bytes a block, of which {used} are used; "
                f"wanted less than {smaller} wasted",
            )


def implementation_page(implementation: Implementation, spec: Spec) -> int:
    """The page of a spec as the implementation counts it, where it can be asked."""
    if "page_size_bytes" in implementation.operations():
        return implementation.page_size_bytes(spec)
    return pages.page_size_bytes(spec)


@law("plan/pages-unified", severity="safety", needs=GROUPS, reports=("vllm#40128", "vllm#43626"))
def pages_unified(implementation: Implementation, given: Given) -> None:
    """Growing a block or padding ends with equal pages and keeps every other field.

    Tensors are shared page by page: groups of unequal pages would run into one another. A local
    layer may be planned as its full kind instead, and keeps the fields of that.
    """
    whole = model(given, layouts=("shared",), partitions=ONE_RANK)
    groups = groups_of(implementation, given, whole)
    planned = planned_layers(groups)
    if len(groups) > 1 and not any(isinstance(group.kv_cache_spec, UniformType) for group in groups):
        sizes = {name: implementation_page(implementation, spec) for name, spec in planned.items()}
        ensure(len(set(sizes.values())) == 1, f"pages of layers that share tensors: got {sizes}, not equal")
    for name, spec in whole.layers().items():
        kept = spec if planned[name].kind == spec.kind else full_kind(spec)
        has = implementation.fields(kept.kind)
        changed = [
            field.name
            for field in fields(kept)
            if field.name in has
            and getattr(kept, field.name) != getattr(planned[name], field.name, None)
            and field.name not in ("block_size", "page_size_padded")
        ]
        ensure(
            kept.kind == planned[name].kind and not changed,
            f"{name}: planned as {planned[name].kind} with {', '.join(changed) or 'no field'} changed, "
            f"wanted {kept.kind} with nothing but block size and padding changed",
        )


@law("plan/order-free", severity="agreement", needs=CONFIGS)
def order_free(implementation: Implementation, given: Given) -> None:
    """The order in which layers are listed does not change the number of blocks.

    Models list the same layers in many orders; none of them deserves less memory.
    """
    whole = model(given, partitions=ONE_RANK)
    available = memory(given, whole)
    names = list(whole.layers())
    reordered = {
        "reversed": names[::-1],
        "turned": names[1:] + names[:1],
        "by name from the end": sorted(names, key=lambda name: name[::-1]),
    }
    chosen = given.choice("reordered", tuple(reordered))
    layers = whole.layers()
    again = replace(whole, ranks=({name: layers[name] for name in reordered[chosen]},))
    try:
        (one,) = implementation.get_kv_cache_configs(whole.handed_over(), whole.deployment, available)
        (other,) = implementation.get_kv_cache_configs(again.handed_over(), again.deployment, available)
    except Refused:
        given.reject()
    ensure_equal(
        other.num_blocks, one.num_blocks, f"blocks with the layers {chosen}", "blocks in the model's order"
    )


@law("plan/filler-bounded", severity="economy", needs=GROUPS, reports=("vllm#29303",))
def filler_bounded(implementation: Implementation, given: Given) -> None:
    """Filler layers never exceed the documented rule.

    Groups are as large as the smallest bucket of mergeable layers, or as the largest when that is
    less than half as large again; only the last slots of a bucket's groups stay empty.
    """
    whole = model(given, layouts=("shared",), partitions=ONE_RANK)
    groups = groups_of(implementation, given, whole)
    given.assume(not any(isinstance(group.kv_cache_spec, UniformType) for group in groups))
    counts = [len(names) for names in grouping.buckets(planned_layers(groups))]
    size = max(len(group.layer_names) for group in groups)
    filler = sum(size - len(group.layer_names) for group in groups)
    allowed = grouping.filler_layers(counts)
    wanted = grouping.group_size(counts)
    ensure(
        filler <= allowed,
        f"filler layers: got {filler} in {len(groups)} groups of {size}, wanted at most {allowed} = groups "
        f"of {wanted} for buckets of {counts} layers, {[cdiv(n, wanted) for n in counts]} groups each",
    )
