"""What a block manager did, altered in one place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from kvconform.reference.deployment import Deployment
from kvconform.reference.plain import Plain
from kvconform.reference.planning import KVCacheConfig
from kvconform.reference.schedules import Moment, Schedule, Trace

Alter = Callable[[Trace], Trace]


class Altered(Plain):
    """Says something else than what the reference's manager did."""

    def __init__(self, alter: Alter) -> None:
        super().__init__()
        self.alter = alter

    def follow_schedule(self, config: KVCacheConfig, deployment: Deployment, schedule: Schedule) -> Trace:
        return self.alter(super().follow_schedule(config, deployment, schedule))


def at(index: int, change: Callable[[Moment], Moment]) -> Alter:
    """Alter one moment."""

    def alter(trace: Trace) -> Trace:
        moments = list(trace.moments)
        moments[index] = change(moments[index])
        return replace(trace, moments=tuple(moments))

    return alter


def said(index: int, **more: int) -> Alter:
    """So much more said of a moment."""
    return at(index, lambda m: replace(m, **{name: getattr(m, name) + by for name, by in more.items()}))


def put(index: int, place: tuple[int, int, int], *blocks: int, freed: int = 0) -> Alter:
    """Other blocks from a place of request, group and block on, and more free ones."""

    def change(moment: Moment) -> Moment:
        request, group, first = place
        tables: Any = [[list(table) for table in groups] for groups in moment.tables]
        tables[request][group][first : first + max(1, len(blocks))] = blocks
        frozen = tuple(tuple(tuple(table) for table in groups) for groups in tables)
        return replace(moment, tables=frozen, free_blocks=moment.free_blocks + freed)

    return at(index, change)


def falls(trace: Trace) -> Trace:
    """Ends at the second step."""
    fall = replace(trace.moments[1], outcome="fell", reason="KeyError: 5")
    return replace(trace, moments=(*trace.moments[:2], fall))
