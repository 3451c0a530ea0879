"""Miniatures: each breaks the laws it names and no other, and the gate profile always finds it.

A law depends on its draws and on what the implementation answers. So the draws of a law are made
once, as an engine without a fault is sampled, and then put to every miniature: as long as none has failed,
sampling the miniature itself would make the same ones. Nearly so where the fault decides whether a run
meets a law's assumptions, so one test samples the miniature itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import product
from typing import Any

import pytest
from kvconform.conformance.cases import BadCase, ReplayGiven
from kvconform.conformance.miniatures import MINIATURES, miniature
from kvconform.conformance.miniatures.engine import Engine
from kvconform.conformance.profiles import PROFILES
from kvconform.properties import laws as _laws  # noqa: F401 (fills the catalogue)
from kvconform.properties.given import Rejected
from kvconform.properties.law import CATALOGUE, Law, Violation
from kvconform.properties.sampling import Fault, run_law, sample
from kvconform.reference.interface import Implementation
from listening import Listening, Question, made, may_differ

LAWS = tuple(CATALOGUE.values())
GATE = PROFILES["gate"].examples
SEEDS = range(20)

Case = dict[str, Any]


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


def questions(law: Law, kind: str, case: Case) -> frozenset[Question] | None:
    """What an engine without a fault is asked in a case that it passes.

    None where the case lacks draws: Hypothesis gives up some runs half-way.
    """
    listening = Listening()
    try:
        if fails(law, listening, kind, case) is None:
            return frozenset(listening.asked)
    except BadCase:
        pass
    return None


class AllCaught(BaseException):
    """Nothing is left to look for; not an `Exception`, so that Hypothesis lets it through."""


def undetected(law: Law, kind: str, names: list[str], seed: int) -> list[str]:
    """Which of the miniatures the law does not catch on the kind, in a gate of that seed."""
    left = dict.fromkeys(names)
    begun: list[Case] = []

    def put(case: Case) -> None:
        asked = questions(law, kind, case)
        for name in list(left) if asked is not None else ():
            if may_differ(name, asked) and fails(law, made(name), kind, case) is not None:
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


def drawn_for(law: Law, kind: str) -> Iterator[tuple[Case, frozenset[Question]]]:
    """The gate's complete runs of a law on a kind, and what an engine without a fault is asked in each."""
    begun: list[Case] = []
    outcome = sample(law, Engine(), kind, examples=GATE, seed_number=0, trace=begun.append)
    assert outcome.verdict == "held", outcome.message
    for case in begun:
        asked = questions(law, kind, case)
        if asked is not None:
            yield case, asked


def naming(law: Law) -> list[str]:
    return [name for name, each in MINIATURES.items() if law.id in each.breaks]


def identify(law: Law) -> str:
    return law.id


def test_there_are_more_than_laws() -> None:
    assert len(MINIATURES) > len(LAWS)


@pytest.mark.parametrize("law", LAWS, ids=identify)
def test_every_law_is_broken_by_one(law: Law) -> None:
    assert naming(law)


@pytest.mark.parametrize("name", MINIATURES)
def test_it_says_what_is_wrong(name: str) -> None:
    engine = miniature(name)
    assert engine.name == f"miniature:{name}"
    assert engine is not miniature(name)
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
    others = [name for name, each in MINIATURES.items() if law not in each.breaks]
    tried = 0
    for case, asked in drawn_for(CATALOGUE[law], kind):
        tried += 1
        for name in others:
            if may_differ(name, asked):
                message = fails(CATALOGUE[law], made(name), kind, case)
                assert message is None, f"{name} also breaks {law}: {message}"
    assert tried


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
    for law, kind in breaking(name):
        expected = not undetected(CATALOGUE[law], kind, [name], seed=0)
        outcome = sample(CATALOGUE[law], miniature(name), kind, examples=GATE, seed_number=0)
        assert outcome.verdict == ("violated" if expected else "held"), outcome.message
        if expected:
            return
    pytest.fail(f"{name} breaks none of its laws")
