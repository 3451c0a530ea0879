"""Which laws and kinds a run is about."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import TypeVar

from kvconform.conformance.report.document import Shard
from kvconform.properties.law import CATALOGUE, NO_KIND, SEVERITIES, Law
from kvconform.properties.laws.device import DEVICE_LAWS, HOW_TO_RUN, SECOND_SOURCE, DeviceLaw
from kvconform.reference.specs import KINDS

Pair = tuple[Law, str]

L = TypeVar("L", bound=Law | DeviceLaw)


class SelectionError(Exception):
    """What was selected does not exist; one line names what was meant, perhaps."""


def find_laws(globs: str = "*") -> tuple[Law, ...]:
    """The laws whose ids match one of the comma-separated globs, in catalogue order.

    The name of an area stands for all of it. Raises SelectionError for a glob that matches none.
    """
    # Laws register themselves when their module is imported.
    importlib.import_module("kvconform.properties.laws")
    return _matching(globs, CATALOGUE)


def find_every_law(globs: str = "*") -> tuple[Law | DeviceLaw, ...]:
    """Laws as `find_laws` chooses them, among those that are checked on a device as well.

    Area by area. Raises SelectionError for a glob that matches none.
    """
    importlib.import_module("kvconform.properties.laws")
    known: dict[str, Law | DeviceLaw] = {**CATALOGUE, **DEVICE_LAWS}
    areas = list(dict.fromkeys(law.area for law in known.values()))
    return _matching(globs, dict(sorted(known.items(), key=lambda entry: areas.index(entry[1].area))))


def find_device_laws(globs: str) -> tuple[str, ...]:
    """The ids of the laws, of those that are checked on a device, that the globs match.

    Raises SelectionError for a glob that matches none.
    """
    importlib.import_module("kvconform.properties.laws")
    sampled = {id: CATALOGUE[id] for id in SECOND_SOURCE}
    known: dict[str, Law | DeviceLaw] = {**sampled, **DEVICE_LAWS}
    return tuple(law.id for law in _matching(globs, known))


def _matching(globs: str, known: Mapping[str, L]) -> tuple[L, ...]:
    areas = dict.fromkeys(law.area for law in known.values())
    chosen: set[str] = set()
    for glob in _split(globs, "law"):
        pattern = f"{glob}/*" if glob in areas else glob
        matching = [id for id in known if fnmatchcase(id, pattern)]
        if not matching:
            raise SelectionError(f"no law matches {glob!r}{_meant(glob, [*known, *areas])}")
        chosen.update(matching)
    return tuple(law for law in known.values() if law.id in chosen)


def _meant(glob: str, known: list[str]) -> str:
    """What to do instead, behind the message that no law matches."""
    on_device = [law for law in DEVICE_LAWS.values() if law.id not in known]
    if any(glob == law.area or fnmatchcase(law.id, glob) for law in on_device):
        return f": it is about real memory, which {HOW_TO_RUN} checks"
    return near(glob, known)


def find_pairs(globs: str = "*", kinds: str | None = None) -> tuple[Pair, ...]:
    """Every selected law with every kind that it is about and that is selected, in catalogue order.

    ``kinds`` are separated by commas; ``-`` stands for laws that are about no kind. Raises
    SelectionError for an unknown law or kind, or when no selected law is about a selected kind.
    """
    found = find_laws(globs)
    wanted = {NO_KIND, *KINDS} if kinds is None else set(_split(kinds, "kind"))
    for kind in sorted(wanted - {NO_KIND, *KINDS}):
        raise SelectionError(f"unknown kind {kind!r}{near(kind, [*KINDS])}; the kinds: {', '.join(KINDS)}")
    pairs = tuple((law, kind) for law in found for kind in law.kinds if kind in wanted)
    if not pairs:
        raise SelectionError(f"no law that matches {globs!r} is about {kinds}")
    return pairs


def find_severities(names: str) -> tuple[str, ...]:
    """The severities named, separated by commas, worst first. Raises SelectionError for another."""
    wanted = _split(names, "severity")
    for name in wanted:
        if name not in SEVERITIES:
            raise SelectionError(f"unknown severity {name!r}; the severities: {', '.join(SEVERITIES)}")
    return tuple(name for name in SEVERITIES if name in wanted)


def _split(text: str, what: str) -> list[str]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise SelectionError(f"no {what} named")
    return parts


def near(name: str, known: list[str]) -> str:
    """What was meant, perhaps, in brackets behind a space; empty if nothing known is like it."""
    alike = get_close_matches(name, known, n=3)
    inside = [one for one in known if name in one]
    likely = list(dict.fromkeys(alike + inside))[:3]
    return f" (did you mean {' or '.join(likely)}?)" if likely else ""


def find_shard(text: str) -> Shard:
    """The shard written ``i/n``. Raises SelectionError when it is none."""
    number, slash, of = text.partition("/")
    if not slash or not number.isdecimal() or not of.isdecimal() or not 1 <= int(number) <= int(of):
        raise SelectionError(f"shard {text!r}: write i/n with i from 1 to n, such as 1/4")
    return Shard(int(number), int(of))


def take_shard(pairs: Sequence[Pair], shard: Shard) -> tuple[Pair, ...]:
    """Every nth pair from the ith on. Raises SelectionError when there are fewer pairs than shards."""
    if shard.of > len(pairs):
        raise SelectionError(f"shard {shard.number}/{shard.of}: only {len(pairs)} pairs of law and kind")
    return tuple(pairs[shard.number - 1 :: shard.of])
