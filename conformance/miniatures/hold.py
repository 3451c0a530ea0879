"""Faults of handing out what was planned (FACTS section 6)."""

from __future__ import annotations

from dataclasses import replace

from kvconform.conformance.miniatures.engine import Engine
from kvconform.conformance.miniatures.registry import breaks
from kvconform.reference.allocation import (
    NULL_BLOCK,
    BlockManager,
    BlockPool,
    Holder,
    Table,
    follow_schedule,
)
from kvconform.reference.arithmetic import cdiv
from kvconform.reference.deployment import Deployment
from kvconform.reference.interface import Undocumented
from kvconform.reference.planning import KVCacheConfig
from kvconform.reference.residency import skipped_tokens
from kvconform.reference.schedules import Event, Moment, Progress, Schedule, Trace
from kvconform.reference.specs import (
    ChunkedLocalAttention,
    Mamba,
    SinkFullAttention,
    SlidingWindow,
    Spec,
)


@breaks("hold/constructs")
class NoManagerForSinks(Engine):
    """The manager of sink layers is built without an argument that all others were given since."""

    def max_admission_blocks_per_request(self, spec: Spec, deployment: Deployment) -> int:
        if isinstance(spec, SinkFullAttention):
            raise Undocumented("TypeError: SinkManager() got an unexpected keyword argument 'needs_zeroing'")
        return super().max_admission_blocks_per_request(spec, deployment)


class Falling(BlockManager):
    """A manager of an engine: it falls over an event by raising, and does nothing more then."""

    def trace(self) -> Trace:
        whole = super().trace()
        outcomes = [moment.outcome for moment in whole.moments]
        done = outcomes.index("fell") + 1 if "fell" in outcomes else len(outcomes)
        return replace(whole, moments=whole.moments[:done])

    def moment(self, event: Event) -> Moment:
        try:
            return super().moment(event)
        except (KeyError, ValueError) as fall:
            return Moment(
                outcome="fell",
                free_blocks=len(self.pool.free),
                tables=tuple(tuple(map(tuple, holder.tables)) for holder in self.holders),
                computed_tokens=self.holders[event.request].progress.computed,
                reason=f"{type(fall).__name__}: {fall}",
            )


class Allocator(Engine):
    """An engine that has a manager of its own."""

    Manager: type[BlockManager]

    def follow_schedule(self, config: KVCacheConfig, deployment: Deployment, schedule: Schedule) -> Trace:
        return follow_schedule(config, deployment, schedule, self.Manager)


# Too many or too few blocks


@breaks("hold/within-bound")
class PassedBlocksKeptToTheEnd(Allocator):
    """Blocks that a window has passed are given back when the request ends, and not before."""

    class Manager(Falling):
        def skip(self, spec: Spec, table: Table, settled: int, progress: Progress) -> list[int]:
            if isinstance(spec, Mamba) or not progress.admitted:
                return super().skip(spec, table, settled, progress)
            return []


@breaks("hold/within-bound")
class EveryStateKept(Allocator):
    """A state of mode align is kept at every boundary, as if others were to find it there."""

    class Manager(Falling):
        def skip(self, spec: Spec, table: Table, settled: int, progress: Progress) -> list[int]:
            return [] if isinstance(spec, Mamba) else super().skip(spec, table, settled, progress)


@breaks("hold/keeps-what-is-read")
class FirstBlockOfTheWindowFreed(Allocator):
    """A block that a window or chunk begins within is freed with those before it."""

    class Manager(Falling):
        def skip(self, spec: Spec, table: Table, settled: int, progress: Progress) -> list[int]:
            gone = super().skip(spec, table, settled, progress)
            if progress.admitted and isinstance(spec, SlidingWindow | ChunkedLocalAttention):
                # Never the one that is written next.
                last = min(cdiv(skipped_tokens(spec, settled), spec.block_size), settled // spec.block_size)
                gone += free_before(last, table)
            return gone


@breaks("hold/keeps-what-is-read")
class StateFreedWhereABlockEnds(Allocator):
    """A state at the end of a block is freed for the next step, which goes on from it."""

    class Manager(Falling):
        def skip(self, spec: Spec, table: Table, settled: int, progress: Progress) -> list[int]:
            gone = super().skip(spec, table, settled, progress)
            aligned = isinstance(spec, Mamba) and spec.mamba_cache_mode == "align"
            if aligned and progress.computed % spec.block_size == 0:
                gone += free_before(progress.computed // spec.block_size, table)
            return gone


def free_before(last: int, table: Table) -> list[int]:
    """Put the null block in place of all before that one; gives the blocks it replaced."""
    gone = [block for block in table[:last] if block != NULL_BLOCK]
    table[:last] = [NULL_BLOCK] * min(last, len(table))
    return gone


@breaks("hold/keeps-what-is-read")
class DraftsTakenForSettled(Allocator):
    """A window frees on the count of scheduled tokens, though drafts among them may be taken back."""

    class Manager(Falling):
        def skip(self, spec: Spec, table: Table, settled: int, progress: Progress) -> list[int]:
            return super().skip(spec, table, max(settled, progress.computed), progress)


# Blocks lost, and blocks in two hands


class FreedWhileShared(BlockPool):
    """Forgets whose hands a block is in."""

    def give_back(self, block: int) -> None:
        self.hands[block] = 0
        if block not in self.free:
            self.free.append(block)


@breaks("hold/conserves")
class SharedBlockFreedByTheFirst(Allocator):
    """A block that two requests share is free as soon as one of them gives it back."""

    class Manager(Falling):
        pool_class = FreedWhileShared


class NullBlockFree(BlockPool):
    """Has the null block among the free ones."""

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self.free.insert(0, NULL_BLOCK)
        self.hands[NULL_BLOCK] = 0


@breaks("hold/conserves", "hold/keeps-what-is-read", "hold/returns-all", "hold/withholds-reserved")
class NullBlockHandedOut(Allocator):
    """The null block is handed out like any other."""

    class Manager(Falling):
        pool_class = NullBlockFree


@breaks("hold/conserves", "hold/returns-all")
class TailBlockLeaked(Allocator):
    """A request that ends gives back whole blocks alone, and loses the last one."""

    class Manager(Falling):
        def end(self, holder: Holder) -> None:
            for spec, table in zip(self.specs, holder.tables, strict=False):
                if holder.progress.computed % spec.block_size and table:
                    table.pop()
            super().end(holder)


@breaks("hold/returns-all")
class EndedInFlight(Allocator):
    """A request that is ended with steps in flight waits for them to settle, which they never do."""

    class Manager(Falling):
        def end(self, holder: Holder) -> None:
            if holder.progress.in_flight:
                holder.progress.end()
            elif not holder.progress.ended:
                super().end(holder)


# What is found necessary


@breaks("hold/reserves-what-it-takes", "hold/total")
class ExternalTokensNotCounted(Allocator):
    """Blocks for tokens brought from elsewhere are not counted, and may not be there to take."""

    class Manager(Falling):
        brought = 0

        def step(self, holder: Holder, event: Event) -> dict[str, object]:
            progress = holder.progress
            self.brought = 0 if progress.admitted else progress.request.external_tokens
            return super().step(holder, event)

        def necessary(self, wanted: list[list[bool]], pinned: list[int]) -> int:
            own = [
                entries[self.brought // spec.block_size :]
                for spec, entries in zip(self.specs, wanted, strict=True)
            ]
            return super().necessary(own, pinned)


@breaks("hold/reserves-what-it-takes")
class SharedHitsCounted(Allocator):
    """Hits are counted among the blocks to take even where another request holds them."""

    class Manager(Falling):
        def necessary(self, wanted: list[list[bool]], pinned: list[int]) -> int:
            return super().necessary(wanted, []) + len(pinned)


@breaks("hold/reserves-what-it-takes")
class SkippedBlocksCounted(Allocator):
    """Entries that a window has passed are counted among the blocks to take."""

    class Manager(Falling):
        def necessary(self, wanted: list[list[bool]], pinned: list[int]) -> int:
            return super().necessary([[True] * len(entries) for entries in wanted], pinned)


# Hits


@breaks("hold/hits-are-pinned")
class FreeHitsTakenAnew(Allocator):
    """A hit that is free counts as computed, and any free block is taken for it."""

    class Manager(Falling):
        def fill(self, tables: list[Table], wanted: list[list[bool]], pinned: list[int]) -> None:
            free = {block for block in pinned if self.pool.hands[block] == 0}
            for table in tables:
                table[:] = [self.pool.take(1)[0] if block in free else block for block in table]
            super().fill(tables, wanted, [block for block in pinned if block not in free])


class LastFreedFirst(BlockPool):
    """Hands out anew what was freed last, as it may."""

    def give_back(self, block: int) -> None:
        super().give_back(block)
        if self.hands[block] == 0:
            self.free.insert(0, self.free.pop())


@breaks("hold/hits-are-pinned")
class HitsPinnedGroupByGroup(Allocator):
    """Each group pins its hits and takes new blocks before the next, whose hits may be among them."""

    class Manager(Falling):
        pool_class = LastFreedFirst

        def fill(self, tables: list[Table], wanted: list[list[bool]], pinned: list[int]) -> None:
            lost: set[int] = set()
            for entries, table in zip(wanted, tables, strict=True):
                hits = [block for block in table if block in pinned and block not in lost]
                for block in hits:
                    self.pool.touch(block)
                table[:] = [self.pool.take(1)[0] if block in lost else block for block in table]
                super().fill([table], [entries], [])
                lost |= set(table).difference(hits, [NULL_BLOCK])


# Withheld blocks


@breaks("hold/withholds-reserved")
class SinksNotWithheld(Allocator):
    """The pool withholds no blocks for sinks."""

    class Manager(Falling):
        def __init__(self, config: KVCacheConfig, deployment: Deployment, schedule: Schedule) -> None:
            super().__init__(config, deployment, schedule)
            for block in self.withheld:
                self.pool.give_back(block)
            self.withheld = []


@breaks("hold/withholds-reserved", "hold/conserves")
class SinksLeftFree(Allocator):
    """Blocks for sinks are chosen, but left among the free ones."""

    class Manager(Falling):
        def __init__(self, config: KVCacheConfig, deployment: Deployment, schedule: Schedule) -> None:
            super().__init__(config, deployment, schedule)
            for block in reversed(self.withheld):
                self.pool.give_back(block)
                self.pool.free.insert(0, self.pool.free.pop())


@breaks("hold/withholds-reserved", "hold/keeps-what-is-read")
class PassedWhileWritten(Allocator):
    """A chunk of a prompt longer than the window gets no blocks for what its end has passed."""

    class Manager(Falling):
        def wanted(
            self, spec: Spec, table: Table, settled: int, placed: int, progress: Progress
        ) -> list[bool]:
            ahead = max(settled, min(placed, progress.request.prompt_tokens))
            return super().wanted(spec, table, ahead, placed, progress)


# Falling over an event


@breaks("hold/total")
class FallsWhenShort(Allocator):
    """A step that there are too few free blocks for raises, and is not answered."""

    class Manager(Falling):
        def necessary(self, wanted: list[list[bool]], pinned: list[int]) -> int:
            blocks = super().necessary(wanted, pinned)
            if blocks > len(self.pool.free):
                raise ValueError(f"no {blocks} blocks are free")
            return blocks


@breaks("hold/total")
class FallsOverUnequalBlocks(Allocator):
    """The prefix cache takes it for granted that blocks of all groups are equally long."""

    class Manager(Falling):
        def longest_hit(self, progress: Progress) -> tuple[int, list[Table]]:
            if self.schedule.prefix_caching and len({spec.block_size for spec in self.specs}) > 1:
                raise ValueError("groups have blocks of more than one size")
            return super().longest_hit(progress)
