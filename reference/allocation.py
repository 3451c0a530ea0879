"""A block pool and its manager, driven by a schedule (FACTS sections 1 and 6).

Blocks are numbered from 0, which is the null block: it stands for what was freed and is never
handed out. Blocks of the free list are taken from the front and given back at the end. A block
whose tokens all belong to a prompt stays findable for others with that prefix, in hands or free,
until it is handed out anew.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from kvconform.reference.arithmetic import cdiv
from kvconform.reference.deployment import Deployment
from kvconform.reference.interface import Refused
from kvconform.reference.planning import KVCacheConfig
from kvconform.reference.residency import freed_range
from kvconform.reference.schedules import ACTIONS, Event, Moment, Progress, Request, Schedule, Trace
from kvconform.reference.specs import AttentionSpec, CrossAttention, Mamba, SinkFullAttention, Spec

NULL_BLOCK = 0

Table = list[int]
"""Block ids of one request in one group, by block of the request."""


def follow_schedule(
    config: KVCacheConfig,
    deployment: Deployment,
    schedule: Schedule,
    manager: type[BlockManager] | None = None,
) -> Trace:
    """What the manager of one pool does with a schedule; a ``manager`` may be handed in its place.

    Raises `Refused` for context parallelism, for speculative states of mamba, which no event
    writes, for a schedule that no scheduler has, and for a pool that does not hold its sinks.
    """
    refuse_malformed(schedule, deployment)
    return (manager or BlockManager)(config, deployment, schedule).trace()


class BlockPool:
    """``num_blocks`` blocks, the null block among them, and what may be found in them."""

    def __init__(self, num_blocks: int) -> None:
        self.free = list(range(1, num_blocks))
        self.hands = dict.fromkeys(self.free, 0)
        self.found: dict[tuple[int, int, int], int] = {}

    def take(self, count: int) -> list[int]:
        """Hand out free blocks; what was found in them is forgotten. Raises ValueError for too few."""
        if count > len(self.free):
            raise ValueError(f"{count} blocks wanted, {len(self.free)} are free")
        taken, self.free = self.free[:count], self.free[count:]
        self.found = {key: block for key, block in self.found.items() if block not in taken}
        for block in taken:
            self.hands[block] = 1
        return taken

    def touch(self, block: int) -> None:
        """Put a block that was found into one more hand."""
        if self.hands[block] == 0:
            self.free.remove(block)
        self.hands[block] += 1

    def give_back(self, block: int) -> None:
        """Take a block out of one hand; out of the last one it is free."""
        self.hands[block] -= 1
        if self.hands[block] == 0:
            self.free.append(block)


@dataclass
class Holder:
    """A request of the schedule, how far it is, and its tables by group."""

    progress: Progress
    tables: list[Table] = field(default_factory=list)


class BlockManager:
    """The pool of a configuration, and the tables of a schedule's requests in its groups."""

    pool_class = BlockPool

    def __init__(self, config: KVCacheConfig, deployment: Deployment, schedule: Schedule) -> None:
        if deployment.decode_context_parallel > 1:
            raise Refused("schedules are of one rank")
        self.specs = [group.kv_cache_spec for group in config.kv_cache_groups]
        if any(isinstance(spec, Mamba) and spec.num_speculative_blocks for spec in self.specs):
            raise Refused("schedules have no speculative states")
        self.deployment = deployment
        self.schedule = schedule
        self.pool = self.pool_class(config.num_blocks)
        sinks = [spec for spec in self.specs if isinstance(spec, SinkFullAttention)]
        withheld = sum(cdiv(spec.sink_len or 0, spec.block_size) for spec in sinks)
        if withheld > len(self.pool.free):
            raise Refused(f"{withheld} blocks for sinks, of {len(self.pool.free)} that the pool hands out")
        self.withheld = self.pool.take(withheld)
        self.holders = [Holder(Progress(request, deployment)) for request in schedule.requests]

    def trace(self) -> Trace:
        """What is done at each event."""
        free = len(self.pool.free)
        moments = tuple(self.moment(event) for event in self.schedule.events)
        return Trace(
            null_block=NULL_BLOCK, withheld_blocks=tuple(self.withheld), free_blocks=free, moments=moments
        )

    def moment(self, event: Event) -> Moment:
        """Do what the event says."""
        holder = self.holders[event.request]
        did: dict[str, object] = {"outcome": "nothing"}
        if event.action == "schedule":
            did = self.step(holder, event)
        elif event.action == "settle":
            holder.progress.settle(event)
        else:
            self.end(holder)
        return Moment(
            free_blocks=len(self.pool.free),
            tables=tuple(tuple(map(tuple, each.tables)) for each in self.holders),
            computed_tokens=holder.progress.computed,
            **did,  # type: ignore[arg-type]
        )

    def step(self, holder: Holder, event: Event) -> dict[str, object]:
        """Schedule the request's next step: free what no later step reads, then take what it writes."""
        progress = holder.progress
        if progress.ended:
            return {"outcome": "nothing"}
        admitted = progress.admitted
        hit, tables = (0, holder.tables) if admitted else self.longest_hit(progress)
        start = progress.computed if admitted else progress.admitted_at(hit)
        tokens, drafts = progress.next_step(event, start)
        if tokens == 0:
            return {"outcome": "nothing"}
        seen = {} if admitted else {"hit_tokens": hit, "hit_blocks": tuple(map(tuple, tables))}
        settled = progress.settled if admitted else start
        passed = [
            block
            for spec, table in zip(self.specs, tables, strict=True)
            for block in self.skip(spec, table, settled, progress)
        ]
        if admitted:
            for block in passed:
                self.pool.give_back(block)
        # Of what was found, only what lies past the skip point is taken.
        pinned = [] if admitted else [block for table in tables for block in table if block != NULL_BLOCK]
        placed = min(start + tokens + event.lookahead, self.deployment.max_model_len)
        wanted = [
            self.wanted(spec, table, settled, placed, progress)
            for spec, table in zip(self.specs, tables, strict=True)
        ]
        reserved = self.necessary(wanted, pinned)
        available = len(self.pool.free)
        if reserved > available:
            self.end(holder)
            return {"outcome": "short", **seen}
        holder.tables = tables
        self.fill(tables, wanted, pinned)
        progress.advance(start, tokens, drafts)
        if self.schedule.prefix_caching:
            self.remember(holder)
        taken = available - len(self.pool.free)
        return {"outcome": "scheduled", "reserved_blocks": reserved, "taken_blocks": taken, **seen}

    def necessary(self, wanted: list[list[bool]], pinned: list[int]) -> int:
        """Free blocks that a step needs: new ones of every group, and hits that are in no hands."""
        new = sum(entries.count(True) for entries in wanted)
        return new + sum(self.pool.hands[block] == 0 for block in pinned)

    def fill(self, tables: list[Table], wanted: list[list[bool]], pinned: list[int]) -> None:
        """Pin the hits of all groups, so that none of them is taken as new, and then take new blocks."""
        for block in pinned:
            self.pool.touch(block)
        for entries, table in zip(wanted, tables, strict=True):
            new = iter(self.pool.take(entries.count(True)))
            table += [next(new) if real else NULL_BLOCK for real in entries]

    def skip(self, spec: Spec, table: Table, settled: int, progress: Progress) -> list[int]:
        """Put the null block in place of what no later step reads; gives the blocks it replaced."""
        if isinstance(spec, Mamba):
            # All but the last state; steps run in order, so it is the newest one's that counts.
            aligned = spec.mamba_cache_mode == "align"
            first, last = 0, cdiv(progress.computed, spec.block_size) - 1 if aligned else 0
        else:
            first, last = freed_range(spec, settled, progress.request.prompt_tokens)
        gone = []
        for index in range(first, min(last, len(table))):
            if table[index] != NULL_BLOCK:
                gone.append(table[index])
                table[index] = NULL_BLOCK
        return gone

    def wanted(self, spec: Spec, table: Table, settled: int, placed: int, progress: Progress) -> list[bool]:
        """Entries that the table lacks for ``placed`` tokens: whether each is a block, or was skipped."""
        block = spec.block_size
        if isinstance(spec, CrossAttention):
            return [True] * (cdiv(progress.request.encoder_tokens, block) - len(table))
        if isinstance(spec, Mamba) and spec.mamba_cache_mode == "none":
            return [True] * (1 - len(table))
        length = cdiv(placed, block)
        if isinstance(spec, Mamba) and spec.mamba_cache_mode == "align":
            # A step leaves its state in the last block that it reaches, and nothing in those between.
            return [index == length - 1 for index in range(len(table), length)]
        if isinstance(spec, Mamba):
            return [True] * (length - len(table))
        first, last = freed_range(spec, settled, progress.request.prompt_tokens)
        return [not first <= index < last for index in range(len(table), length)]

    def longest_hit(self, progress: Progress) -> tuple[int, list[Table]]:
        """Most leading tokens of the prompt whose blocks can all be found, and those by group.

        Less than the prompt, whose last token must be computed to go on from it, and whole blocks
        of every group. Only what the next token reads need be there. What is never found again
        keeps all groups from it: encoder states, and a mamba state that is kept at no boundary.
        """
        none: list[Table] = [[] for _ in self.specs]
        if not self.schedule.prefix_caching or not all(map(is_found_again, self.specs)):
            return 0, none
        unit = math.lcm(*(spec.block_size for spec in self.specs))
        prompt = progress.request.prompt_tokens
        for tokens in range((prompt - 1) // unit * unit, 0, -unit):
            found = [self.find(group, spec, tokens, progress) for group, spec in enumerate(self.specs)]
            if all(table is not None for table in found):
                return tokens, [table for table in found if table is not None]
        return 0, none

    def find(self, group: int, spec: Spec, tokens: int, progress: Progress) -> Table | None:
        """The group's blocks that the token after ``tokens`` reads; None if one cannot be found."""
        request = progress.request
        if isinstance(spec, Mamba):
            first, last = 0, tokens // spec.block_size - 1
        else:
            first, last = freed_range(spec, tokens, request.prompt_tokens)
        table = []
        for index in range(tokens // spec.block_size):
            skipped = first <= index < last
            block = NULL_BLOCK if skipped else self.pool.found.get((group, request.prefix, index))
            if block is None:
                return None
            table.append(block)
        return table

    def remember(self, holder: Holder) -> None:
        """Let the whole blocks of the prompt that are computed be found by others."""
        progress = holder.progress
        known = min(progress.computed, progress.request.prompt_tokens)
        for group, (spec, table) in enumerate(zip(self.specs, holder.tables, strict=True)):
            whole = known // spec.block_size
            first = 0
            if isinstance(spec, Mamba) and spec.mamba_cache_mode == "align":
                # Of states only the one that a step leaves at the end of a block.
                first = whole - 1 if progress.computed == whole * spec.block_size else whole
            for index in range(max(0, first), whole):
                if index < len(table) and table[index] != NULL_BLOCK:
                    self.pool.found.setdefault((group, progress.request.prefix, index), table[index])

    def end(self, holder: Holder) -> None:
        """Give back all that the request holds, its last blocks first."""
        for table in holder.tables:
            for block in reversed(table):
                if block != NULL_BLOCK:
                    self.pool.give_back(block)
        holder.tables = []
        holder.progress.end()


def is_found_again(spec: Spec) -> bool:
    """Whether what the layers of a spec keep of a prompt is that of any request that begins with it."""
    if isinstance(spec, Mamba):
        return spec.mamba_cache_mode != "none"
    return isinstance(spec, AttentionSpec) and not isinstance(spec, CrossAttention)


LEAST_OF_A_REQUEST = {"prompt_tokens": 1, "external_tokens": 0, "encoder_tokens": 0}
LEAST_OF_AN_EVENT = {"tokens": 1, "drafts": 0, "lookahead": 0, "rejected": 0}
"""The least that a field of a request, and of an event, may be, in tokens."""


def refuse_malformed(schedule: Schedule, deployment: Deployment) -> None:
    """Raise `Refused` naming the first request or event that is none."""
    requests = len(schedule.requests)
    if requests == 0:
        raise Refused("a schedule without requests")
    for index, request in enumerate(schedule.requests):
        _refuse_below(f"request {index}", request, LEAST_OF_A_REQUEST)
        prompt, most = request.prompt_tokens, deployment.max_model_len
        if prompt > most:
            raise Refused(f"request {index}: prompt_tokens {prompt}, wanted at most {most} = max_model_len")
    for index, event in enumerate(schedule.events):
        if event.action not in ACTIONS:
            raise Refused(f"event {index}: action {event.action!r}, wanted one of {', '.join(ACTIONS)}")
        if not 0 <= event.request < requests:
            raise Refused(f"event {index}: request {event.request}, wanted one of 0 to {requests - 1}")
        _refuse_below(f"event {index}", event, LEAST_OF_AN_EVENT)


def _refuse_below(name: str, value: Request | Event, least: dict[str, int]) -> None:
    for field_name, at_least in least.items():
        got = getattr(value, field_name)
        if got < at_least:
            raise Refused(f"{name}: {field_name} {got}, wanted at least {at_least}")
