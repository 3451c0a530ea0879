"""What two implementations have in common: questions to both are drawn from no more."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from kvconform.reference.interface import OPERATIONS, Implementation, Unsupported

LISTS = ("quant_modes", "cache_dtypes")
"""Operations that list names: what one side alone lists is a difference of its own."""


class Common(msgspec.Struct, frozen=True):
    """What two implementations have in common, as it is told to their workers.

    ``kinds`` are the fields of each kind, ``modes`` the values of the left one's modes, and
    ``revisions`` the earlier formulas that both follow.
    """

    kinds: dict[str, tuple[str, ...]] = {}
    operations: tuple[str, ...] = ()
    modes: dict[str, int] = {}
    revisions: tuple[str, ...] = ()


class InCommon(Implementation):
    """What two implementations have in common, as something that questions can be drawn for."""

    def __init__(self, common: Common) -> None:
        self.common = common
        self._fields = {kind: frozenset(names) for kind, names in common.kinds.items()}

    def kinds(self) -> tuple[str, ...]:
        return tuple(self._fields)

    def fields(self, kind: str) -> frozenset[str]:
        return self._fields[kind]

    def operations(self) -> frozenset[str]:
        return frozenset(self.common.operations)

    def quant_modes(self) -> Mapping[str, int]:
        return self.common.modes


def in_common(left: Implementation, right: Implementation) -> Common:
    """The kinds, fields, operations, modes and revisions that both have."""
    operations = left.operations() & right.operations()
    modes: dict[str, int] = {}
    if "quant_modes" in operations:
        there = right.quant_modes()
        modes = {mode: value for mode, value in left.quant_modes().items() if mode in there}
    return Common(
        kinds={
            kind: tuple(sorted(left.fields(kind) & right.fields(kind)))
            for kind in left.kinds()
            if kind in right.kinds()
        },
        operations=tuple(name for name in OPERATIONS if name in operations),
        modes=modes,
        revisions=tuple(name for name in left.revisions() if name in right.revisions()),
    )


def one_sided(has: Implementation, lacks: Implementation) -> list[str]:
    """What the first has and the second lacks: kinds, fields, operations, modes, cache dtypes."""
    found = [f"kind {kind}" for kind in has.kinds() if kind not in lacks.kinds()]
    for kind in has.kinds():
        if kind in lacks.kinds():
            found += [f"field {kind}.{name}" for name in sorted(has.fields(kind) - lacks.fields(kind))]
    found += [f"operation {name}" for name in sorted(has.operations() - lacks.operations())]
    for operation, word in zip(LISTS, ("mode", "cache dtype"), strict=True):
        if operation in has.operations() and operation in lacks.operations():
            try:
                there = getattr(lacks, operation)()
                found += [f"{word} {name}" for name in getattr(has, operation)() if name not in there]
            except Unsupported:
                continue
    return found
