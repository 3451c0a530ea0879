"""How many blocks are planned, and what they promise (FACTS section 9.5 to 9.7)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from kvconform.properties.drawn_models import HYBRIDS, Model, memory, model
from kvconform.properties.given import Given
from kvconform.properties.law import ensure, ensure_equal, law
from kvconform.properties.laws.plan_groups import planned
from kvconform.reference.arithmetic import cdiv
from kvconform.reference.deployment import Deployment
from kvconform.reference.interface import Implementation, Refused, Undocumented
from kvconform.reference.layout import allocated_bytes
from kvconform.reference.planning import NULL_BLOCKS, KVCacheConfig
from kvconform.reference.residency import held_blocks
from kvconform.reference.specs import AttentionSpec, CrossAttention, SinkFullAttention, Spec
from kvconform.reference.zeroing import inner_specs

CONFIGS = ("get_kv_cache_configs",)
COUNTED = (*CONFIGS, "max_blocks_per_request")
ONE_RANK = ("one rank",)
SCALES = (1, 10**3, 10**6, 10**9, 10**15)
BOUNDED = tuple(
    name
    for name, kinds in HYBRIDS.items()
    if not {"full_attention", "mla_attention", "hidden_state_cache"}.issuperset(kinds)
)
"""Models in which not every layer holds a request's whole length: where a bound may be too small."""

TOO_LITTLE = (0, -1, -2, -1)
"""Blocks more or less than one request takes: startup must tell them apart."""


def blocks_of_request(implementation: Implementation, config: KVCacheConfig, whole: Model) -> int:
    """Blocks that one request of max length may hold, over all groups of a configuration."""
    return sum(
        implementation.max_blocks_per_request(group.kv_cache_spec, whole.deployment)
        for group in config.kv_cache_groups
    )


def withheld(config: KVCacheConfig) -> tuple[int, str]:
    """Blocks of the pool that no request is given, and why."""
    sinks = sum(
        max(sink_blocks(spec) for spec in inner_specs(group.kv_cache_spec))
        for group in config.kv_cache_groups
    )
    return NULL_BLOCKS + sinks, f"{NULL_BLOCKS} null block" + (f" and {sinks} for sinks" if sinks else "")


def sink_blocks(spec: Spec) -> int:
    """Blocks that a layer's sinks take outside any request's table."""
    if isinstance(spec, SinkFullAttention) and spec.sink_len is not None:
        return cdiv(spec.sink_len, spec.block_size)
    return 0


@law(
    "plan/within-budget",
    severity="safety",
    needs=CONFIGS,
    reports=("vllm.cpp#357",),
    proved=True,
)
def within_budget(implementation: Implementation, given: Given) -> None:
    """All tensors together fit the memory given, on every rank.

    One byte more and the allocation fails, or takes what was kept free for activations.
    """
    whole = model(given)
    available = memory(given, whole)
    for rank, config in enumerate(planned(implementation, given, whole, available)):
        taken = allocated_bytes(config)
        ensure(
            taken <= available[rank],
            f"rank {rank}: tensors of {config.num_blocks} blocks take {taken} bytes, wanted at most the "
            f"{available[rank]} bytes given",
        )


@law(
    "plan/maximal",
    severity="economy",
    needs=CONFIGS,
    reports=("tpu-inference#757",),
    proved=True,
)
def maximal(implementation: Implementation, given: Given) -> None:
    """One more block would not fit, on some rank.

    Otherwise memory lies idle that requests could use.
    """
    whole = model(given)
    available = memory(given, whole)
    configs = planned(implementation, given, whole, available)
    rests = []
    for rank, config in enumerate(configs):
        taken = allocated_bytes(config)
        per_block = cdiv(taken, config.num_blocks)
        rests.append((available[rank] - taken, per_block))
    ensure(
        any(left < per_block for left, per_block in rests),
        f"{configs[0].num_blocks} blocks planned, and every rank has room for one more: (bytes left, bytes "
        f"per block) {rests}; wanted one rank without",
    )


@law("plan/monotone", severity="agreement", needs=CONFIGS, proved=True)
def monotone(implementation: Implementation, given: Given) -> None:
    """More memory never gives fewer blocks.

    Whoever adds memory to serve more must not serve less.
    """
    whole = model(given)
    available = memory(given, whole)
    # From single bytes to more blocks than 32 bits count.
    more = given.integer("more", at_least=1, at_most=1 << 20) * given.choice("of_bytes", SCALES)
    ampler = [bytes_ + more for bytes_ in available]
    fewer = planned(implementation, given, whole, available)[0].num_blocks
    try:
        got = implementation.get_kv_cache_configs(whole.handed_over(), whole.deployment, ampler)[0].num_blocks
    except Refused as refusal:
        ensure(False, f"planned with {available} bytes but refused with {more} more: {refusal}")
    ensure(got >= fewer, f"blocks: got {got} with {more} bytes more a rank, wanted at least {fewer}")


@law(
    "plan/override-checked",
    severity="safety",
    needs=COUNTED,
    reports=("vllm-metal#526", "vllm#27181"),
)
def override_checked(implementation: Implementation, given: Given) -> None:
    """An override of the number of blocks is what is allocated and what is checked.

    Checked against the memory instead, it promises requests that its blocks cannot hold.
    """
    whole = model(given)
    available = memory(given, whole)
    beyond = given.choice("override.of_request", (4096, -1, -2, 0))
    needed = blocks_of_request(implementation, planned(implementation, given, whole, available)[0], whole)
    blocks = needed + beyond
    given.assume(blocks >= 1)
    overridden = whole.deployed(num_gpu_blocks_override=blocks)
    try:
        configs = implementation.get_kv_cache_configs(whole.handed_over(), overridden.deployment, available)
    except Refused as refusal:
        ensure(blocks < needed + 4096, f"refused an override of {blocks} blocks, {needed} needed: {refusal}")
        return
    ensure(blocks >= needed, f"planned an override of {blocks} blocks, fewer than a request's {needed}")
    for rank, config in enumerate(configs):
        ensure_equal(config.num_blocks, blocks, f"blocks of rank {rank}", "the override")
        taken = allocated_bytes(config)
        ensure(
            taken % blocks == 0 and taken > 0,
            f"rank {rank}: tensors of {taken} bytes are not {blocks} blocks, wanted the override allocated",
        )


@law("plan/check-counts-all", severity="safety", needs=COUNTED, reports=("vllm#47272",))
def check_counts_all(implementation: Implementation, given: Given) -> None:
    """The startup check counts every group, filler layers, the null block and blocks kept for sinks.

    In the pool's own unit, blocks: what it lets pass must serve one request of max length.
    """
    whole = model(given)
    available = memory(given, whole, spare_blocks=given.choice("spare_blocks", TOO_LITTLE))
    config = planned(implementation, given, whole, available)[0]
    needed = blocks_of_request(implementation, config, whole)
    taken, why = withheld(config)
    ensure(
        config.num_blocks - taken >= needed,
        f"startup accepted {config.num_blocks} blocks, {why} withheld, wanted {needed} left = blocks "
        f"of a request of {whole.deployment.max_model_len} tokens over {len(config.kv_cache_groups)} groups",
    )


@law(
    "plan/startup-implies-admission",
    severity="safety",
    needs=(*CONFIGS, "generate_scheduler_kv_cache_config", "max_admission_blocks_per_request"),
    reports=("vllm#39734", "vllm#47272"),
    proved=True,
)
def startup_implies_admission(implementation: Implementation, given: Given) -> None:
    """A request that startup accepts is admitted on an empty pool and gets every block it needs.

    The null block is counted: it is in the pool and never handed out. A request that fails this is
    never scheduled, or stops in the middle with nobody to wait for.
    """
    # Two batches at once: a bound that forgets one of them is too small.
    whole = model(given, hybrids=BOUNDED).deployed(max_concurrent_batches=2)
    available = memory(given, whole, spare_blocks=given.choice("spare_blocks", TOO_LITTLE))
    left = given.tokens("left", at_most=whole.deployment.max_model_len)
    configs = planned(implementation, given, whole, available)
    config = configs[0]
    deployment = whole.deployment
    taken, why = withheld(config)
    usable = config.num_blocks - taken
    view = implementation.generate_scheduler_kv_cache_config(configs)
    try:
        asked = sum(
            implementation.max_admission_blocks_per_request(group.kv_cache_spec, deployment)
            for group in view.kv_cache_groups
        )
    except Undocumented:
        # A manager that cannot be built is for hold/constructs to report.
        given.reject()
    except Refused as refusal:
        ensure(False, f"startup accepted the model, and then nothing can be admitted to it: {refusal}")
    ensure(
        asked <= usable,
        f"admission asks for {asked} blocks, wanted at most {usable} = {config.num_blocks} less {why}",
    )
    # With all in flight that may be, and at the end: what keeps every token holds most then.
    running = max(deployment.max_model_len - deployment.in_flight_tokens - left, 0)
    for settled in (running, deployment.max_model_len):
        held = sum(
            max(held_at(spec, settled, deployment) for spec in inner_specs(group.kv_cache_spec))
            for group in config.kv_cache_groups
        )
        ensure(
            held <= usable,
            f"a request holds {held} blocks with {settled} tokens settled and {deployment.in_flight_tokens} "
            f"in flight, wanted at most {usable} = {config.num_blocks} less {why}",
        )


def held_at(spec: Spec, settled: int, deployment: Deployment) -> int:
    """Blocks that a request holds in a layer's group with so many tokens settled and all others in flight.

    The encoder's states are there as a whole before the first token is.
    """
    if isinstance(spec, CrossAttention):
        return held_blocks(spec, deployment.max_encoder_tokens, 0, deployment.max_encoder_tokens)
    return held_blocks(spec, settled, deployment.in_flight_tokens, deployment.max_model_len)


@law(
    "plan/cheaper-is-not-worse",
    severity="economy",
    needs=(*CONFIGS, "get_max_concurrency"),
    reports=("vllm#55196",),
)
def cheaper_is_not_worse(implementation: Implementation, given: Given) -> None:
    """A smaller page in any layer never gives fewer blocks or fewer requests.

    A cache of a narrower type that serves less than the wide one defeats its purpose.
    """
    whole = model(given, pages=("dividing",), partitions=ONE_RANK, precisions=("16-bit",))
    # Enough that whole blocks lost to rounding do not decide.
    available = memory(given, whole, spare_blocks=given.integer("spare_blocks", at_least=0, at_most=1 << 20))
    layers = whole.layers()
    chosen = given.choice("narrowed", tuple(layers))
    spec = layers[chosen]
    given.assume(isinstance(spec, AttentionSpec))
    assert isinstance(spec, AttentionSpec)
    narrow = replace(spec, dtype="uint8")
    whole_kind = given.flag("its_whole_kind")
    cheaper = whole.with_layers(
        {name: narrow for name, other in layers.items() if name == chosen or (whole_kind and other == spec)}
    )
    wide = planned(implementation, given, whole, available)[0]
    try:
        small = implementation.get_kv_cache_configs(cheaper.handed_over(), cheaper.deployment, available)[0]
    except Refused as refusal:
        ensure(False, f"planned with {spec.dtype} pages but refused with smaller ones in {chosen}: {refusal}")
    ensure(
        small.num_blocks >= wide.num_blocks,
        f"blocks: got {small.num_blocks} with a smaller page in {chosen}, wanted at least {wide.num_blocks}",
    )
    before = implementation.get_max_concurrency(wide, whole.deployment)
    after = implementation.get_max_concurrency(small, cheaper.deployment)
    ensure(
        after >= before,
        f"requests: got {float(after)} with a smaller page in {chosen}, wanted at least {float(before)}",
    )


@law(
    "plan/concurrency",
    severity="agreement",
    needs=(*COUNTED, "get_max_concurrency"),
    reports=("vllm#40691", "vllm#43308"),
)
def concurrency(implementation: Implementation, given: Given) -> None:
    """Concurrency at max length is blocks / sum over groups of blocks per request.

    It is what the engine tells its operator, and must not depend on how layers were grouped.
    """
    whole = model(given)
    config = planned(implementation, given, whole, memory(given, whole))[0]
    needed = blocks_of_request(implementation, config, whole)
    ensure(
        needed > 0, f"a request of {whole.deployment.max_model_len} tokens takes {needed} blocks, wanted some"
    )
    wanted = Fraction(config.num_blocks, needed)
    got = implementation.get_max_concurrency(config, whole.deployment)
    ensure(
        got == (float(wanted) if isinstance(got, float) else wanted),
        f"concurrency: got {got}, wanted {config.num_blocks} blocks / {needed} blocks per request",
    )


@law("plan/longest-fits", severity="agreement", needs=(*CONFIGS, "estimate_max_model_len"))
def longest_fits(implementation: Implementation, given: Given) -> None:
    """The longest length estimated to fit does fit, and one more token does not.

    Operators set the length they are told; it must start, and be worth setting.
    """
    whole = model(given)
    # Memory for a shorter request than the longest asked for, most of the time.
    shorter = given.tokens("shorter", at_least=1, at_most=whole.deployment.max_model_len)
    available = memory(given, whole.deployed(max_model_len=shorter))
    try:
        longest = implementation.estimate_max_model_len(whole.handed_over(), whole.deployment, available)
    except Refused:
        given.reject()
    asked = whole.deployment.max_model_len
    ensure(0 <= longest <= asked, f"longest length: got {longest}, wanted at most the {asked} asked for")
    if longest > 0:
        starts, why = starts_with(implementation, whole, longest, available)
        ensure(starts, f"longest length: got {longest}, but that is refused: {why}")
    if longest < asked:
        starts, _ = starts_with(implementation, whole, longest + 1, available)
        ensure(not starts, f"longest length: got {longest}, but {longest + 1} tokens are planned too")


def starts_with(
    implementation: Implementation, whole: Model, length: int, available: Sequence[int]
) -> tuple[bool, str]:
    """Whether the model is planned for requests of a length, and why not."""
    deployment = replace(whole.deployment, max_model_len=length)
    try:
        implementation.get_kv_cache_configs(whole.handed_over(), deployment, available)
    except Refused as refusal:
        return False, str(refusal)
    return True, ""


@law("plan/no-layers", severity="formula", needs=CONFIGS)
def no_layers(implementation: Implementation, given: Given) -> None:
    """A model without cache plans one block and no tensors.

    The pool always needs its null block; there is nothing else to hold.
    """
    whole = Model(
        ranks=({},) * given.choice("ranks", (1, 2)),
        deployment=Deployment(max_model_len=given.tokens("max_model_len", at_least=1)),
    )
    available = [given.integer(f"rank.{index}.bytes", at_least=1) for index in range(len(whole.ranks))]
    configs = implementation.get_kv_cache_configs(whole.handed_over(), whole.deployment, available)
    for config in configs:
        ensure_equal(config.num_blocks, 1, "blocks of a model without cache", "the null block alone")
        ensure_equal(len(config.kv_cache_tensors), 0, "tensors of a model without cache", "nothing to hold")
