"""Miniatures: each breaks the laws it names and no other, and the gate profile always finds it.

A law depends on its draws and on what the implementation answers. So the draws of a law are made
once, as an engine without a fault is sampled, and then put to every miniature: as long as none has failed,
sampling the miniature itself would make the same ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from itertools import product
from typing import Any

import pytest
from kvconform.conformance.cases import BadCase, ReplayGiven
from kvconform.conformance.miniatures import MINIATURES, miniature
from kvconform.conformance.miniatures.registry import Engine
from kvconform.conformance.profiles import PROFILES
from kvconform.properties import laws as _laws  # noqa: F401 (fills the catalogue)
from kvconform.properties.given import Rejected
from kvconform.properties.law import CATALOGUE, Law, Violation
from kvconform.properties.sampling import Fault, run_law, sample
from kvconform.reference.interface import Implementation

AREAS = ("quant", "page", "resize", "bound", "merge")
LAWS = tuple(law for law in CATALOGUE.values() if law.area in AREAS)
GATE = PROFILES["gate"].examples
SEEDS = range(20)

Case = dict[str, Any]


class Listening(Engine):
    """Without a fault, noting which of its attributes a law leads to."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: set[str] = set()

    def __getattribute__(self, name: str) -> Any:
        if name != "heard":
            object.__getattribute__(self, "__dict__").setdefault("heard", set()).add(name)
        return super().__getattribute__(name)


@cache
def overridden(name: str) -> frozenset[str]:
    """What a miniature has of its own: a law that leads to none of it finds nothing wrong."""
    classes = type(miniature(name)).__mro__
    own = {attribute for each in classes[: classes.index(Engine)] for attribute in vars(each)}
    return frozenset(attribute for attribute in own if not attribute.startswith("__") and attribute != "name")


def fails(law: Law, implementation: Implementation, kind: str, case: Case) -> str | None:
    """How the implementation breaks the law on the case, or None.

    Raises BadCase when the law wants draws that the case does not have.
    """
    try:
        run_law(law, implementation, ReplayGiven(implementation, kind, case))
    except Rejected:
        return None
    except Violation as violation:
        return str(violation)
    except Fault as fault:
        if isinstance(fault.__cause__, BadCase):
            raise fault.__cause__ from fault
        return str(fault)
    return None


def is_complete(law: Law, kind: str, case: Case) -> bool:
    """Whether the case has every draw: Hypothesis gives up some runs half-way."""
    try:
        return fails(law, Engine(), kind, case) is None
    except BadCase:
        return False


class AllCaught(BaseException):
    """Nothing is left to look for; not an `Exception`, so that Hypothesis lets it through."""


def undetected(law: Law, kind: str, names: list[str], seed: int) -> list[str]:
    """Which of the miniatures the law does not catch on the kind, in a gate of that seed."""
    left = dict.fromkeys(names)
    makers = {name: miniature(name) for name in names}
    begun: list[Case] = []

    def put(case: Case) -> None:
        if is_complete(law, kind, case):
            for name in list(left):
                if fails(law, makers[name], kind, case) is not None:
                    del left[name]

    def trace(case: Case) -> None:
        # The draws of a run are there once the next one begins.
        if begun:
            put(begun.pop())
        if not left:
            raise AllCaught
        begun.append(case)

    # Where a run is left off that began like an earlier one, Hypothesis says flaky instead.
    with suppress(AllCaught):
        sample(law, Engine(), kind, examples=GATE, seed_number=seed, trace=trace)
    if left:
        put(begun.pop())
    return list(left)


@cache
def drawn_for(law: str, kind: str) -> tuple[list[Case], frozenset[str]]:
    """The gate's runs of a law on a kind, and what they lead to in the implementation."""
    begun: list[Case] = []
    listening = Listening()
    outcome = sample(CATALOGUE[law], listening, kind, examples=GATE, seed_number=0, trace=begun.append)
    assert outcome.verdict == "held", outcome.message
    return [case for case in begun if is_complete(CATALOGUE[law], kind, case)], frozenset(listening.heard)


def naming(law: Law) -> list[str]:
    return [name for name, each in MINIATURES.items() if law.id in each.breaks]


def identify(law: Law) -> str:
    return law.id


def test_there_are_at_least_forty() -> None:
    assert len(MINIATURES) >= 40


@pytest.mark.parametrize("law", LAWS, ids=identify)
def test_every_law_is_broken_by_one(law: Law) -> None:
    assert naming(law)


@pytest.mark.parametrize("name", MINIATURES)
def test_it_says_what_is_wrong(name: str) -> None:
    made = miniature(name)
    assert made.name == f"miniature:{name}"
    assert made is not miniature(name)
    assert MINIATURES[name].fault.endswith(".")
    assert MINIATURES[name].fault.count(". ") == 0
    assert MINIATURES[name].breaks
    assert MINIATURES[name].breaks <= set(CATALOGUE)


def test_an_unknown_name_is_refused_with_near_ones() -> None:
    with pytest.raises(ValueError, match="did you mean window-without-plus-one"):
        miniature("window-without-plus")
    with pytest.raises(ValueError, match=r"no miniature is called 'zzzz'; there are \d+ others"):
        miniature("zzzz")


@pytest.mark.parametrize(("law", "kind"), [(law.id, kind) for law in LAWS for kind in law.kinds])
def test_no_other_law_is_broken(law: str, kind: str) -> None:
    cases, heard = drawn_for(law, kind)
    assert cases
    for name, each in MINIATURES.items():
        if law in each.breaks or not overridden(name) & heard:
            continue
        made = miniature(name)
        for case in cases:
            message = fails(CATALOGUE[law], made, kind, case)
            assert message is None, f"{name} also breaks {law}: {message}"


@pytest.mark.parametrize("law", LAWS, ids=identify)
def test_the_gate_catches_each_with_every_seed(law: Law) -> None:
    home: dict[str, str] = {}
    for seed in SEEDS:
        left = naming(law)
        # Any kind will do: each is first looked for where it was caught before.
        for at_home, kind in product((True, False), law.kinds):
            asked = [name for name in left if not at_home or home.get(name) == kind]
            if asked:
                missed = undetected(law, kind, asked, seed)
                caught = [name for name in asked if name not in missed]
                home.update(dict.fromkeys(caught, kind))
                left = [name for name in left if name not in caught]
        assert not left, f"{law.id} does not catch {', '.join(left)} with seed {seed}"


def breaking(name: str) -> Iterator[tuple[str, str]]:
    for law in sorted(MINIATURES[name].breaks):
        for kind in CATALOGUE[law].kinds:
            yield law, kind


@pytest.mark.parametrize("name", MINIATURES)
def test_sampling_the_miniature_itself_finds_the_same(name: str) -> None:
    made = miniature(name)
    for law, kind in breaking(name):
        expected = not undetected(CATALOGUE[law], kind, [name], seed=0)
        outcome = sample(CATALOGUE[law], made, kind, examples=GATE, seed_number=0)
        assert outcome.verdict == ("violated" if expected else "held"), outcome.message
        if expected:
            return
    pytest.fail(f"{name} breaks none of its laws")
