"""The views of one plan: each rank's, the scheduler's, wrapped and not (FACTS section 9.6 to 9.10)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from kvconform.properties.drawn_models import WRAPPED, Model, memory, model
from kvconform.properties.given import Given
from kvconform.properties.law import ensure, ensure_equal, law
from kvconform.properties.laws.plan_groups import planned, with_or_without_manager
from kvconform.reference.grouping import KVCacheGroupSpec
from kvconform.reference.interface import Implementation, Refused
from kvconform.reference.planning import KVCacheConfig
from kvconform.reference.specs import AttentionSpec, Mamba, Spec, UniformType
from kvconform.reference.zeroing import inner_specs

CONFIGS = ("get_kv_cache_configs",)
SEVERAL = ("pipeline", "tensor", "empty stage")


@law("plan/own-layers-only", severity="safety", needs=CONFIGS, reports=("vllm#54711",))
def own_layers_only(implementation: Implementation, given: Given) -> None:
    """A rank's tensors name exactly its own layers.

    A tensor for a layer that lives elsewhere is memory lost; a layer without one has none.
    """
    whole = model(given, partitions=SEVERAL)
    configs = planned(implementation, given, whole, memory(given, whole))
    for index, (rank, config) in enumerate(zip(whole.ranks, configs, strict=True)):
        named = {name for tensor in config.kv_cache_tensors for name in tensor.names()}
        strangers = sorted(named - set(rank))
        missing = sorted(set(rank) - named)
        ensure(
            not strangers and not missing,
            f"rank {index}: tensors name {strangers} of other ranks and leave out {missing}",
        )


@law("plan/ranks-agree", severity="safety", needs=CONFIGS, reports=("vllm#23883", "vllm#54711"))
def ranks_agree(implementation: Implementation, given: Given) -> None:
    """All ranks have the same groups and number of blocks; a rank owning none of a group still plans.

    One scheduler hands out block ids for all of them.
    """
    whole = model(given, partitions=SEVERAL, pages=("dividing",))
    available = memory(given, whole)
    try:
        configs = implementation.get_kv_cache_configs(whole.handed_over(), whole.deployment, available)
    except Refused as refusal:
        joined = Model(ranks=(whole.layers(),), deployment=whole.deployment)
        planned(implementation, given, joined, [sum(available)])
        plenty = [bytes_ * 4 + (1 << 40) for bytes_ in available]
        try:
            configs = implementation.get_kv_cache_configs(whole.handed_over(), whole.deployment, plenty)
        except Refused:
            ensure(False, f"planned on one rank, but refused on {len(whole.ranks)}: {refusal}")
    ensure_equal(len(configs), len(whole.ranks), "configurations", "one for each rank")
    first = configs[0]
    for rank, config in enumerate(configs):
        ensure_equal(config.num_blocks, first.num_blocks, f"blocks of rank {rank}", "blocks of rank 0")
        ensure_equal(
            [outline(group) for group in config.kv_cache_groups],
            [outline(group) for group in first.kv_cache_groups],
            f"groups of rank {rank} (base kind, block size)",
            "groups of rank 0",
        )


def outline(group: KVCacheGroupSpec) -> tuple[str, int]:
    """What a group is to the scheduler: kept by attention or as a state, in blocks of so many tokens."""
    kind = inner_specs(group.kv_cache_spec)[0]
    return "mamba" if isinstance(kind, Mamba) else "attention", group.kv_cache_spec.block_size


@law(
    "plan/leaves-inputs",
    severity="agreement",
    needs=(*CONFIGS, "get_kv_cache_groups", "estimate_max_model_len", "generate_scheduler_kv_cache_config"),
)
def leaves_inputs(implementation: Implementation, given: Given) -> None:
    """Planning, checking and estimating change neither specs nor configuration.

    Asked again after all of them, the planner gives the same plan.
    """
    whole = with_or_without_manager(given)
    available = memory(given, whole)
    ranks, before = whole.handed_over(), whole.handed_over()
    layers = whole.layers()
    try:
        configs = implementation.get_kv_cache_configs(ranks, whole.deployment, available)
    except Refused:
        given.reject()
    unchanged(ranks, before, "planning")
    scheduler = implementation.generate_scheduler_kv_cache_config(configs)
    implementation.get_kv_cache_groups(layers, whole.deployment)
    unchanged([layers], [{name: spec for rank in before for name, spec in rank.items()}], "grouping")
    shorter = [bytes_ // 2 + 1 for bytes_ in available]
    with suppress(Refused):  # nothing may fit that little
        implementation.estimate_max_model_len(ranks, whole.deployment, shorter)
    unchanged(ranks, before, "estimating the longest length")
    again = planned_again(implementation, whole, available)
    ensure(again == configs, "planned again after grouping and estimating: got another plan, wanted the same")
    ensure(
        implementation.generate_scheduler_kv_cache_config(configs) == scheduler,
        "the scheduler's view made again from the same configurations differs",
    )


def unchanged(ranks: Sequence[dict[str, Spec]], before: Sequence[dict[str, Spec]], what: str) -> None:
    """Ensure that the layers handed over are those that were handed over."""
    for rank, wanted in zip(ranks, before, strict=True):
        changed = [name for name in {**rank, **wanted} if rank.get(name) != wanted.get(name)]
        ensure(not changed, f"{what} changed the specs of {changed} that it was given")


def planned_again(
    implementation: Implementation, whole: Model, available: Sequence[int]
) -> tuple[KVCacheConfig, ...] | str:
    """The configurations, or the refusal where the first time there was none."""
    try:
        return implementation.get_kv_cache_configs(whole.handed_over(), whole.deployment, available)
    except Refused as refusal:
        return str(refusal)


@law(
    "plan/wrapping-free",
    severity="safety",
    needs=(
        *CONFIGS,
        "generate_scheduler_kv_cache_config",
        "needs_kv_cache_zeroing",
        "max_blocks_per_request",
        "max_num_blocks_per_req",
        "get_max_concurrency",
        "resolve_kv_cache_block_sizes",
    ),
)
def wrapping_free(implementation: Implementation, given: Given) -> None:
    """Wrapping in a uniform_type, projecting to a rank or making the scheduler's view changes nothing.

    Kind, zeroing, table width, concurrency, block sizes and the draft flag are those of the layers
    themselves: what reads one view must act as what reads another.
    """
    whole = model(given, hybrids=WRAPPED)
    if given.flag("wider_last"):
        name, spec = list(whole.layers().items())[-1]
        if isinstance(spec, AttentionSpec):
            whole = whole.with_layers({name: replace(spec, num_kv_heads=2 * spec.num_kv_heads)})
    configs = planned(implementation, given, whole, memory(given, whole))
    scheduler = implementation.generate_scheduler_kv_cache_config(configs)
    for rank, config in enumerate(configs):
        compare_views(implementation, whole, scheduler, config, f"rank {rank}")
        unwrapped = opened(config)
        ensure_equal(
            implementation.needs_kv_cache_zeroing(config),
            implementation.needs_kv_cache_zeroing(unwrapped),
            f"needs_kv_cache_zeroing of rank {rank}",
            "the answer for the same layers outside any uniform_type",
        )


def opened(config: KVCacheConfig) -> KVCacheConfig:
    """The configuration with each layer of a uniform_type as a group of its own."""
    groups: list[KVCacheGroupSpec] = []
    for group in config.kv_cache_groups:
        if isinstance(group.kv_cache_spec, UniformType):
            groups += [
                KVCacheGroupSpec(layer_names=(name,), kv_cache_spec=spec)
                for name, spec in group.kv_cache_spec.kv_cache_specs
            ]
        else:
            groups.append(group)
    return replace(config, kv_cache_groups=tuple(groups))


def compare_views(
    implementation: Implementation, whole: Model, scheduler: KVCacheConfig, config: KVCacheConfig, where: str
) -> None:
    """Ensure that the scheduler's view of a plan and a rank's agree in every property."""
    deployment = whole.deployment
    for what, ask in (
        ("needs_kv_cache_zeroing", implementation.needs_kv_cache_zeroing),
        ("concurrency", lambda view: implementation.get_max_concurrency(view, deployment)),
        ("block sizes", lambda view: implementation.resolve_kv_cache_block_sizes(view, deployment)),
    ):
        ensure_equal(ask(config), ask(scheduler), f"{what} by the view of {where}", "the scheduler's view")
    groups, views = config.kv_cache_groups, scheduler.kv_cache_groups
    flagged = any(group.is_eagle_group for group in groups)
    ensure_equal(len(groups), len(views), f"groups of {where}", "groups of the scheduler's view")
    for index, (group, seen) in enumerate(zip(groups, views, strict=True)):
        spec, view = group.kv_cache_spec, seen.kv_cache_spec
        kinds = {layer.kind for layer in inner_specs(spec)} | {
            whole.layers()[name].kind for name in group.layer_names
        }
        named = f"group {index} of {where}"
        ensure(
            {layer.kind for layer in inner_specs(view)} & kinds != set(),
            f"{named} holds {sorted(kinds)} and the scheduler takes it for {view.kind}",
        )
        ensure_equal(group.is_eagle_group, seen.is_eagle_group, f"draft flag of {named}", "the scheduler's")
        drafts = set(deployment.draft_layers) & set(group.layer_names)
        ensure(
            not drafts or group.is_eagle_group or not flagged,
            f"{named} holds the draft layers {sorted(drafts)} and another group is flagged for them",
        )
        length = deployment.max_model_len
        widths = {
            implementation.max_num_blocks_per_req(layer, deployment, length) for layer in inner_specs(spec)
        }
        for which, one in (("as planned", spec), ("as the scheduler sees it", view)):
            width = implementation.max_num_blocks_per_req(one, deployment, length)
            ensure(
                {width} == widths,
                f"table width of {named} {which}: got {width}, wanted that of its layers {sorted(widths)}",
            )
        bounds = [implementation.max_blocks_per_request(layer, deployment) for layer in inner_specs(spec)]
        for which, one in (("as planned", spec), ("as the scheduler sees it", view)):
            got = implementation.max_blocks_per_request(one, deployment)
            ensure_equal(got, max(bounds), f"blocks per request of {named} {which}", "the most of any layer")


@law(
    "plan/lengths-match",
    severity="agreement",
    needs=(*CONFIGS, "generate_scheduler_kv_cache_config", "resolve_kv_cache_block_sizes"),
)
def lengths_match(implementation: Implementation, given: Given) -> None:
    """After planning, block sizes of all groups are compatible with one scheduler block.

    It is their least common multiple, attention blocks times the ranks of decode context
    parallelism; hashes are made at a length that divides every group's block, or at the scheduler
    block itself.
    """
    whole = model(given)
    if all(spec.kind in ALL_TOKENS for spec in whole.layers().values()):
        whole = whole.deployed(decode_context_parallel=given.choice("decode_context_parallel", (1, 2, 3)))
    configs = planned(implementation, given, whole, memory(given, whole))
    view = implementation.generate_scheduler_kv_cache_config(configs)
    blocks = []
    for group in configs[0].kv_cache_groups:
        attention = isinstance(inner_specs(group.kv_cache_spec)[0], AttentionSpec)
        ranks = whole.deployment.decode_context_parallel if attention else 1
        blocks.append(group.kv_cache_spec.block_size * ranks)
    scheduler, unit = implementation.resolve_kv_cache_block_sizes(view, whole.deployment)
    ensure_equal(scheduler, math.lcm(*blocks), "scheduler block size", f"least common multiple of {blocks}")
    ensure(
        unit == scheduler or all(block % unit == 0 for block in blocks),
        f"hash block size: got {unit}, wanted one that divides all of {blocks}",
    )


ALL_TOKENS = ("full_attention", "mla_attention")
"""Kinds that keep every token, so that their tokens can be split over ranks."""
