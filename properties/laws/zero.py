"""When new blocks are cleared before use (FACTS section 9)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kvconform.properties.drawn_models import HYBRIDS, PARTITIONS, WRAPPED, Model, memory, model
from kvconform.properties.given import Given
from kvconform.properties.law import ensure, ensure_equal, law
from kvconform.properties.laws.plan_groups import planned
from kvconform.reference.grouping import KVCacheGroupSpec
from kvconform.reference.interface import Implementation, Refused
from kvconform.reference.planning import KVCacheConfig
from kvconform.reference.specs import AttentionSpec, Mamba, Spec, UniformType
from kvconform.reference.zeroing import inner_specs, planned_specs, precisions

NEEDS = ("needs_kv_cache_zeroing",)
PLANNED = (*NEEDS, "get_kv_cache_configs", "generate_scheduler_kv_cache_config")


def grouped(given: Given, drawn: Model) -> KVCacheConfig:
    """A configuration of the model's layers: kinds grouped, each kind plain or as a uniform_type.

    Built by hand, so that the answer for both forms can be compared whatever a planner does.
    """
    kinds: dict[Spec, list[str]] = {}
    for name, spec in drawn.layers().items():
        kinds.setdefault(spec, []).append(name)
    groups = []
    for index, (spec, names) in enumerate(kinds.items()):
        group_spec = spec
        if given.flag(f"group.{index}.wrapped"):
            inside = tuple((name, spec) for name in names)
            group_spec = UniformType(block_size=spec.block_size, kv_cache_specs=inside)
        groups.append(KVCacheGroupSpec(layer_names=tuple(names), kv_cache_spec=group_spec))
    return KVCacheConfig(num_blocks=1, kv_cache_tensors=(), kv_cache_groups=tuple(groups))


def wrapping(config: KVCacheConfig) -> str:
    """Which groups of a configuration are uniform_types, for a message."""
    parts = []
    for group in config.kv_cache_groups:
        kinds = "+".join(sorted({spec.kind for spec in inner_specs(group.kv_cache_spec)}))
        wrapped = isinstance(group.kv_cache_spec, UniformType)
        parts.append(f"uniform_type of {kinds}" if wrapped else kinds)
    return ", ".join(parts)


@law("zero/state-read-before-write", severity="safety", needs=NEEDS, reports=("vllm#35219",))
def state_read_before_write(implementation: Implementation, given: Given) -> None:
    """Any mamba layer, wrapped in a uniform_type or not, asks for zeroing.

    Its state is read before it is first written; a block used before holds another request's.
    """
    config = grouped(given, model(given, partitions=("one rank",)))
    given.assume(any(isinstance(spec, Mamba) for spec in planned_specs(config)))
    ensure(
        implementation.needs_kv_cache_zeroing(config),
        f"needs_kv_cache_zeroing: got False for {wrapping(config)}, wanted True: a mamba layer is among them",
    )


@law("zero/mixed-precision", severity="safety", needs=NEEDS)
def mixed_precision(implementation: Implementation, given: Given) -> None:
    """Two precisions among attention layers, wrapped in a uniform_type or not, ask for zeroing.

    A block that changes groups is read under another precision: stale bytes decode to NaN.
    """
    config = grouped(given, model(given, partitions=("one rank",)))
    found = precisions(config)
    given.assume(len(found) > 1)
    ensure(
        implementation.needs_kv_cache_zeroing(config),
        f"needs_kv_cache_zeroing: got False for {wrapping(config)}, wanted True: precisions {sorted(found)}",
    )


@law("zero/only-when-needed", severity="economy", needs=NEEDS)
def only_when_needed(implementation: Implementation, given: Given) -> None:
    """Nothing but a mamba layer or a second precision asks for zeroing.

    Clearing every new block costs a write of the whole cache.
    """
    config = grouped(given, model(given, partitions=("one rank",)))
    given.assume(not any(isinstance(spec, Mamba) for spec in planned_specs(config)))
    given.assume(len(precisions(config)) == 1)
    ensure(
        not implementation.needs_kv_cache_zeroing(config),
        f"needs_kv_cache_zeroing: got True for {wrapping(config)}, wanted False: one precision, no mamba",
    )


def drawn_and_planned(
    implementation: Implementation,
    given: Given,
    hybrids: Sequence[str] = (*WRAPPED, *WRAPPED, *HYBRIDS),
    partitions: Sequence[str] = PARTITIONS,
) -> tuple[KVCacheConfig, ...]:
    """The configurations of a drawn model that the implementation plans, uniform kinds included."""
    # What is asked of uniform_types is asked often enough to be met.
    whole = model(given, hybrids=hybrids, partitions=partitions)
    if given.flag("wider_last"):
        # Layers of one kind that differ in their heads are planned as a uniform_type.
        name, spec = list(whole.layers().items())[-1]
        whole = whole.with_layers({name: wider(spec)})
    return planned(implementation, given, whole, memory(given, whole))


def wider(spec: Spec) -> Spec:
    """The spec with twice the heads, or twice the state."""
    if isinstance(spec, Mamba):
        return replace(spec, shapes=tuple((2 * size, *rest) for size, *rest in spec.shapes))
    assert isinstance(spec, AttentionSpec)
    return replace(spec, num_kv_heads=2 * spec.num_kv_heads)


@law("zero/every-view-agrees", severity="safety", needs=PLANNED)
def every_view_agrees(implementation: Implementation, given: Given) -> None:
    """Worker and scheduler configurations of one plan give the same answer.

    The scheduler reports the new blocks and the worker clears them: if one of them thinks it
    unneeded, nothing is cleared.
    """
    # Views differ where a rank's own layers would ask for less than the whole group's.
    hybrids = (*["full, full", "latent, full"] * len(WRAPPED), *WRAPPED, *HYBRIDS)
    configs = drawn_and_planned(implementation, given, hybrids, ("pipeline", "tensor"))
    view = implementation.generate_scheduler_kv_cache_config(configs)
    wanted = implementation.needs_kv_cache_zeroing(view)
    for rank, config in enumerate(configs):
        ensure_equal(
            implementation.needs_kv_cache_zeroing(config),
            wanted,
            f"needs_kv_cache_zeroing of rank {rank} ({wrapping(config)})",
            "the scheduler's answer",
        )


@law("zero/new-blocks-reported", severity="safety", needs=(*PLANNED, "records_new_block_ids"))
def new_blocks_reported(implementation: Implementation, given: Given) -> None:
    """Where zeroing is needed, the new blocks of every attention group are reported for it.

    A group whose blocks are not reported hands them to a request uncleared.
    """
    view = implementation.generate_scheduler_kv_cache_config(drawn_and_planned(implementation, given))
    kinds = {type(spec) for spec in planned_specs(view)}
    given.assume(Mamba in kinds or len(precisions(view)) > 1)
    try:
        reported = implementation.records_new_block_ids(view)
    except Refused:
        # No manager can be built for a group: plan/startup-implies-admission is about that.
        given.reject()
    ensure_equal(len(reported), len(view.kv_cache_groups), "groups answered for", "groups of the view")
    for index, (group, records) in enumerate(zip(view.kv_cache_groups, reported, strict=True)):
        attention = any(isinstance(spec, AttentionSpec) for spec in inner_specs(group.kv_cache_spec))
        ensure(
            records or not attention,
            f"group {index} of {group.kv_cache_spec.kind}: its new blocks are not reported, wanted them "
            "reported: the configuration needs zeroing",
        )
