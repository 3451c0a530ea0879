"""Whether what is planned can be held: an allocator driven step by step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

from kvconform.properties import drawn
from kvconform.properties.drawn_schedules import Pool, pool
from kvconform.properties.given import Given
from kvconform.properties.law import ensure, ensure_equal, law
from kvconform.reference.arithmetic import cdiv
from kvconform.reference.interface import Implementation, Refused, Undocumented
from kvconform.reference.residency import freed_range
from kvconform.reference.schedules import Event, Moment, Progress, Trace, follow
from kvconform.reference.specs import (
    ATTENTION_KINDS,
    ChunkedLocalAttention,
    CrossAttention,
    Mamba,
    SinkFullAttention,
    SlidingWindow,
    Spec,
)

MANAGED = (*(kind for kind in ATTENTION_KINDS if kind != "encoder_only_attention"), "mamba")
"""Kinds whose blocks a manager hands out: layers without cache have none."""


@law(
    "hold/constructs",
    severity="agreement",
    kinds=MANAGED,
    needs=("max_admission_blocks_per_request",),
)
def constructs(implementation: Implementation, given: Given) -> None:
    """The manager of every registered kind can be built by the coordinator, and asked for admission.

    A kind that planning accepts and no manager can be made for ends the server after its memory has
    been taken.
    """
    spec = drawn.spec(given, padding=("none",))
    if isinstance(spec, SinkFullAttention) and "sink_len" in implementation.fields(spec.kind):
        # What a pool withholds for sinks is whole blocks.
        spec = replace(spec, sink_len=spec.block_size * given.choice("sink_blocks", (1, 2)))
    deployment = drawn.deployment(given, encoder=True)
    fall = ""
    try:
        implementation.max_admission_blocks_per_request(spec, deployment)
    except Undocumented as undocumented:
        fall = str(undocumented)
    except Refused:
        given.reject()
    ensure(not fall, f"no manager for a {spec.kind} layer: {fall}")


DRIVEN = ("follow_schedule",)
"""What a block manager is asked. The group of the kind under test is the first of its pool."""


def _driven(implementation: Implementation, given: Given, **limits: bool) -> tuple[Pool, Trace]:
    """A drawn pool, and what the implementation's manager does with its schedule."""
    driven = pool(given, **limits)
    return driven, _trace(implementation, given, driven)


def _trace(implementation: Implementation, given: Given, driven: Pool) -> Trace:
    """What the implementation's manager does with the pool's schedule; a refusal gives up the run."""
    try:
        return implementation.follow_schedule(*driven)
    except Refused:
        given.reject()


DID = {
    "scheduled": "scheduled",
    "short": "given up for want of free blocks",
    "fell": "to be scheduled",
    "nothing": "not scheduled",
}
"""What became of a request that was to schedule a step."""


def _steps(driven: Pool, trace: Trace) -> Iterator[tuple[str, Event, Moment, list[Progress]]]:
    """Each event in words, and as `follow` gives it."""
    for index, (event, moment, progress) in enumerate(follow(driven.schedule, trace, driven.deployment)):
        yield _seen(event, moment, index), event, moment, progress


def _seen(event: Event, moment: Moment, index: int) -> str:
    """Which event it was, for a message."""
    did = DID[moment.outcome] if event.action == "schedule" else f"to {event.action}"
    upto = f" up to token {moment.computed_tokens}" if moment.outcome == "scheduled" else ""
    return f"event {index}, request {event.request} {did}{upto}"


@law("hold/total", severity="agreement", kinds=MANAGED, needs=DRIVEN)
def total(implementation: Implementation, given: Given) -> None:
    """A manager that can be made follows every schedule, and never falls over an event of it.

    What groups it cannot serve it refuses when it is made; later, it takes the server with it.
    """
    driven, trace = _driven(implementation, given)
    for seen, _, moment, _ in _steps(driven, trace):
        ensure(moment.outcome != "fell", f"{seen}: the manager fell over it: {moment.reason}")


@law("hold/within-bound", severity="safety", kinds=MANAGED, needs=(*DRIVEN, "max_blocks_per_request"))
def within_bound(implementation: Implementation, given: Given) -> None:
    """At every step of any schedule a request holds at most its bound.

    Startup sizes the pool by the bound, and admission takes in requests by it. Slots that
    speculation reserves past a step are left to bound/lookahead-counts, and chunks that are not whole
    blocks to bound/chunk-suffices.
    """
    driven, trace = _driven(implementation, given, lookahead=False)
    spec = driven.specs[0]
    if isinstance(spec, ChunkedLocalAttention):
        given.assume(spec.attention_chunk_size % spec.block_size == 0)
    try:
        bound = implementation.max_blocks_per_request(spec, driven.deployment)
    except Refused:
        given.reject()
    for seen, event, moment, _ in _steps(driven, trace):
        for table in moment.tables[event.request][:1]:
            held = len({*table} - {trace.null_block})
            ensure(
                held <= bound,
                f"{seen}: holds {held} blocks of {spec.kind}, wanted at most {bound} = bound of a request",
            )


@law("hold/conserves", severity="safety", kinds=MANAGED, needs=DRIVEN)
def conserves(implementation: Implementation, given: Given) -> None:
    """Free, held, withheld and null blocks are the whole pool at every step, and no block is in two hands.

    Requests may share a block of the prompt that they have in common, at the same place of the same
    group.
    """
    driven, trace = _driven(implementation, given)
    for seen, _, moment, _ in _steps(driven, trace):
        hands = _hands(moment, trace.null_block)
        withheld = len(trace.withheld_blocks)
        ensure_equal(
            moment.free_blocks + len(hands) + withheld + 1,
            driven.config.num_blocks,
            f"{seen}: {moment.free_blocks} free + {len(hands)} held + {withheld} withheld + 1 null",
            "blocks of the pool",
        )
        for block, places in hands.items():
            first, *others = places
            ensure(
                all(_may_share(driven, first, other) for other in others),
                f"{seen}: block {block} is held as {', '.join(map(_place, places))}",
            )


Place = tuple[int, int, int]
"""Request, group, and block of the request."""


def _hands(moment: Moment, null: int) -> dict[int, list[Place]]:
    """Where each block is held."""
    hands: dict[int, list[Place]] = defaultdict(list)
    for request, tables in enumerate(moment.tables):
        for group, table in enumerate(tables):
            for index, block in enumerate(table):
                if block != null:
                    hands[block].append((request, group, index))
    return hands


def _may_share(driven: Pool, first: Place, other: Place) -> bool:
    mine, theirs = driven.schedule.requests[first[0]], driven.schedule.requests[other[0]]
    end = (first[2] + 1) * driven.specs[first[1]].block_size
    return (
        first[1:] == other[1:]
        and mine.prefix == theirs.prefix
        and end <= min(mine.prompt_tokens, theirs.prompt_tokens)
    )


def _place(place: Place) -> str:
    return "block {2} of request {0} in group {1}".format(*place)


@law("hold/keeps-what-is-read", severity="safety", kinds=MANAGED, needs=DRIVEN)
def keeps_what_is_read(implementation: Implementation, given: Given) -> None:
    """No block that a later step still reads is freed, and none is put in another's place.

    Steps run in their order, so what is read is what the newest step and those after it read: from
    its first token on, or from before it by the drafts then in flight, which may be taken back.
    Tokens that are retained below a window are never attended to.
    """
    driven, trace = _driven(implementation, given)
    spec = driven.specs[0]
    before: dict[tuple[int, int], int] = {}
    for seen, _, moment, progress in _steps(driven, trace):
        if moment.outcome == "fell":
            # It had freed for a step that was then not scheduled; hold/total reports it.
            break
        kept: dict[tuple[int, int], int] = {}
        for request, tables in enumerate(moment.tables):
            if not tables or progress[request].ended:
                continue
            for place in _read(spec, progress[request]):
                entry = tables[0][place] if place < len(tables[0]) else trace.null_block
                ensure(
                    entry != trace.null_block,
                    f"{seen}: block {place} of request {request} is freed, wanted it kept = read by "
                    f"{spec.kind} from {progress[request].first_read} tokens on",
                )
                kept[request, place] = entry
                was = before.get((request, place), entry)
                ensure_equal(entry, was, f"{seen}: block {place} of request {request}", "as before")
        before = kept


def _read(spec: Spec, progress: Progress) -> list[int]:
    """Blocks that a request had before its newest step and that are read from there on."""
    if isinstance(spec, CrossAttention):
        return list(range(cdiv(progress.request.encoder_tokens, spec.block_size)))
    start = progress.first_read
    blocks = cdiv(start, spec.block_size)
    if isinstance(spec, Mamba):
        # The state after the last token before the step; a single one is never at another place.
        return [0 if spec.mamba_cache_mode == "none" else blocks - 1] if start else []
    attended = replace(spec, extra_retained_tokens=0) if isinstance(spec, SlidingWindow) else spec
    first, last = freed_range(attended, start, progress.request.prompt_tokens)
    return [block for block in range(blocks) if not first <= block < last]


@law("hold/returns-all", severity="safety", kinds=MANAGED, needs=DRIVEN)
def returns_all(implementation: Implementation, given: Given) -> None:
    """Finishing every request returns every block to the pool.

    A block that no request holds and that is not free is lost until the server restarts.
    """
    driven = pool(given)
    endings = tuple(Event(action="finish", request=index) for index in range(len(driven.schedule.requests)))
    schedule = replace(driven.schedule, events=(*driven.schedule.events, *endings))
    driven = driven._replace(schedule=schedule)
    trace = _trace(implementation, given, driven)
    *_, (_, _, last, _) = _steps(driven, trace)
    if last.outcome == "fell":
        # hold/total reports it.
        given.reject()
    ensure_equal(last.free_blocks, trace.free_blocks, "free blocks after all requests", "before them")


@law("hold/reserves-what-it-takes", severity="safety", kinds=MANAGED, needs=DRIVEN)
def reserves_what_it_takes(implementation: Implementation, given: Given) -> None:
    """The blocks found necessary before a step equal those it takes, hits and external tokens included.

    Never fewer than none. Finding too few lets a step begin that the pool cannot serve; finding too
    many keeps requests waiting.
    """
    driven, trace = _driven(implementation, given)
    for seen, _, moment, _ in _steps(driven, trace):
        ensure(
            moment.reserved_blocks >= 0,
            f"{seen}: found {moment.reserved_blocks} blocks necessary, wanted at least 0",
        )
        ensure_equal(
            moment.taken_blocks,
            moment.reserved_blocks,
            f"{seen}: blocks taken",
            "those found necessary before",
        )


@law("hold/hits-are-pinned", severity="safety", kinds=MANAGED, needs=DRIVEN)
def hits_are_pinned(implementation: Implementation, given: Given) -> None:
    """Blocks that the prefix cache has for a request are its own before any group takes new ones.

    A hit that is free until then may be handed out as new to another group, which writes over it.
    Hits that the request never reads, since a window has passed them, need not be kept.
    """
    driven, trace = _driven(implementation, given, alike=True)
    for seen, event, moment, progress in _steps(driven, trace):
        if moment.outcome != "scheduled" or not moment.hit_blocks:
            continue
        tables = moment.tables[event.request]
        read = [
            {place for place in _read(spec, progress[event.request]) if place < len(found)}
            for spec, found in zip(driven.specs, moment.hit_blocks, strict=True)
        ]
        hits = {moment.hit_blocks[group][place] for group, places in enumerate(read) for place in places}
        for group, (table, found) in enumerate(zip(tables, moment.hit_blocks, strict=True)):
            new = hits.intersection(table[len(found) :])
            ensure(
                not new,
                f"{seen}: group {group} takes {sorted(new)} as new, wanted blocks other than the hits "
                f"{sorted(hits)}",
            )
            for place in sorted(read[group]):
                got = table[place] if place < len(table) else trace.null_block
                ensure_equal(got, found[place], f"{seen}: block {place} in group {group}", "the hit")


@law("hold/withholds-reserved", severity="safety", kinds=MANAGED, needs=DRIVEN)
def withholds_reserved(implementation: Implementation, given: Given) -> None:
    """What a step writes goes to blocks of its own, never to the null block or one withheld for sinks.

    Layers read those outside any request's table, or have all that was freed point to them.
    """
    driven, trace = _driven(implementation, given)
    spec = driven.specs[0]
    sinks = cdiv(spec.sink_len or 0, spec.block_size) if isinstance(spec, SinkFullAttention) else 0
    ensure(
        len(set(trace.withheld_blocks)) >= sinks,
        f"{len(set(trace.withheld_blocks))} blocks withheld, wanted at least {sinks} for sinks",
    )
    reserved = {trace.null_block, *trace.withheld_blocks}
    for seen, event, moment, progress in _steps(driven, trace):
        if moment.outcome != "scheduled":
            continue
        mine = progress[event.request]
        start = mine.computed - mine.in_flight[-1][0]
        table = moment.tables[event.request][0]
        for place in _written(spec, start, mine):
            entry = table[place] if place < len(table) else trace.null_block
            ensure(
                entry not in reserved,
                f"{seen}: writes block {place}, got block {entry}, wanted none of {sorted(reserved)} = "
                "null and withheld blocks",
            )


def _written(spec: Spec, start: int, progress: Progress) -> range:
    """Blocks of a request that the step at ``start`` writes; of states the one it leaves."""
    if isinstance(spec, CrossAttention):
        return range(cdiv(progress.request.encoder_tokens, spec.block_size))
    last = cdiv(progress.computed, spec.block_size)
    if isinstance(spec, Mamba):
        return range(1) if spec.mamba_cache_mode == "none" else range(last - 1, last)
    return range(start // spec.block_size, last)
