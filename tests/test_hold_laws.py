"""Each law about holding blocks tells a trace that is right from one that is wrong in one place.

That each is broken by a manager wrong on purpose, over schedules that are drawn, is tested with the
miniatures.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from altered import Alter, Altered, falls, put, said
from driving import attention, configuration, deployed, finish, mamba, prompt, schedule_of, settle, step
from kvconform.conformance.cases import ReplayGiven
from kvconform.properties.drawn_schedules import Pool
from kvconform.properties.law import CATALOGUE, Violation
from kvconform.properties.laws import hold
from kvconform.reference.plain import Plain
from kvconform.reference.schedules import Event, Request
from kvconform.reference.specs import Spec

WINDOW = attention("sliding_window", sliding_window=3)
SINKS = attention("sink_full_attention", sink_len=2)


def pool_of(*specs: Spec) -> Pool:
    """Two requests of one prompt; laws are about the group of the first spec, or about all."""
    schedule = schedule_of(
        (prompt(5), prompt(5)),
        *(step(5), settle(), step(), step(5, 1), finish(), settle(1), step(1, 1)),
        prefix_caching=True,
    )
    return Pool(configuration(*specs, num_blocks=12), deployed(max_model_len=16), schedule)


POOL = pool_of(WINDOW, SINKS)
"""Blocks are of 2 tokens, and block 1 is withheld for sinks.

    event               request 0           request 1           free
    0 steps to 5        2 3 4, 5 6 7                            8 to 11
    2 steps to 6        0 3 4, 5 6 7                            8 to 11, 2
    3 steps to 5        0 3 4, 5 6 7        0 3 8, 5 6 9        10, 11, 2
    4 finishes                              0 3 8, 5 6 9        10, 11, 2, 4, 7
    6 steps to 6                            0 3 8, 5 6 9        10, 11, 2, 4, 7
"""

SINKS_FIRST = pool_of(SINKS, WINDOW)


def single(
    spec: Spec, *events: Event, requests: tuple[Request, ...] = (prompt(4),), batches: int = 1
) -> Pool:
    """A pool of one group."""
    schedule = schedule_of(requests, *events, prefix_caching=len(requests) > 1)
    return Pool(configuration(spec), deployed(max_concurrent_batches=batches, max_encoder_tokens=3), schedule)


DECODING = (step(4), settle(), step(), settle(), step())

STATE = single(mamba("none"), *DECODING)
ALIGNED = single(mamba("align"), step(2), settle(), step(2), settle(), step())
ENCODED = single(attention("cross_attention"), *DECODING, requests=(prompt(4, encoder_tokens=3),))
PROMPT_KEPT = single(attention("rswa", rswa_window=2), *DECODING)
RETAINING = single(attention("sliding_window", sliding_window=3, extra_retained_tokens=1), *DECODING)
TWO_IN_FLIGHT = single(attention(), step(4), step(2), requests=(prompt(6),), batches=2)
TWO_SINKS = single(attention("sink_full_attention", sink_len=3), step(4))
UNALIKE = single(attention(), step(4), step(4, 1), requests=(prompt(4), prompt(4, prefix=1)))
BROUGHT = single(WINDOW, step(5), step(9, 1), requests=(prompt(5), prompt(9, external_tokens=2)))

LAWS = [law for id, law in CATALOGUE.items() if id.startswith("hold/") and id != "hold/constructs"]

WRONG: list[tuple[str, Pool, Alter, str]] = [
    ("total", POOL, falls, "event 2, request 0 to be scheduled: the manager fell over it: KeyError: 5"),
    (
        "within-bound",
        POOL,
        put(2, (0, 0, 0), *range(20, 29)),
        "event 2, request 0 scheduled up to token 6: holds 9 blocks of sliding_window, wanted at most "
        "8 = bound of a request",
    ),
    (
        "conserves",
        POOL,
        said(1, free_blocks=1),
        "event 1, request 0 to settle: 5 free + 6 held + 1 withheld + 1 null: got 13, wanted 12 = blocks "
        "of the pool",
    ),
    (
        # Free, and held all the same.
        "conserves",
        POOL,
        put(2, (0, 0, 0), 2),
        "event 2, request 0 scheduled up to token 6: 5 free + 6 held + 1 withheld + 1 null: got 13, "
        "wanted 12 = blocks of the pool",
    ),
    (
        "conserves",
        POOL,
        put(0, (0, 1, 0), 2, freed=1),
        "event 0, request 0 scheduled up to token 5: block 2 is held as block 0 of request 0 in group 0, "
        "block 0 of request 0 in group 1",
    ),
    (
        # The last token of the prompts is alike, and what follows it in the block is not.
        "conserves",
        POOL,
        put(3, (1, 0, 2), 4, freed=1),
        "event 3, request 1 scheduled up to token 5: block 4 is held as block 2 of request 0 in group 0, "
        "block 2 of request 1 in group 0",
    ),
    (
        # The same tokens, and at another place.
        "conserves",
        POOL,
        put(3, (1, 1, 0), 6, freed=0),
        "event 3, request 1 scheduled up to token 5: block 6 is held as block 1 of request 0 in group 1, "
        "block 0 of request 1 in group 1, block 1 of request 1 in group 1",
    ),
    (
        "keeps-what-is-read",
        POOL,
        put(2, (0, 0, 1), 0),
        "event 2, request 0 scheduled up to token 6: block 1 of request 0 is freed, wanted it kept = read "
        "by sliding_window from 5 tokens on",
    ),
    (
        # Of the other request, while nothing is done to it.
        "keeps-what-is-read",
        POOL,
        put(3, (0, 0, 1), 9),
        "event 3, request 1 scheduled up to token 5: block 1 of request 0: got 9, wanted 3 = as before",
    ),
    (
        "keeps-what-is-read",
        POOL,
        put(2, (0, 0, 2)),
        "event 2, request 0 scheduled up to token 6: block 2 of request 0 is freed, wanted it kept = read "
        "by sliding_window from 5 tokens on",
    ),
    (
        "returns-all",
        POOL,
        said(-1, free_blocks=-1),
        "free blocks after all requests: got 9, wanted 10 = before them",
    ),
    (
        "reserves-what-it-takes",
        POOL,
        said(3, reserved_blocks=-1),
        "event 3, request 1 scheduled up to token 5: blocks taken: got 2, wanted 1 = those found necessary "
        "before",
    ),
    (
        "reserves-what-it-takes",
        POOL,
        said(2, reserved_blocks=-1, taken_blocks=-1),
        "event 2, request 0 scheduled up to token 6: found -1 blocks necessary, wanted at least 0",
    ),
    (
        "hits-are-pinned",
        POOL,
        put(3, (1, 1, 1), 10),
        "event 3, request 1 scheduled up to token 5: block 1 in group 1: got 10, wanted 6 = the hit",
    ),
    (
        "hits-are-pinned",
        POOL,
        put(3, (1, 0, 2), 6),
        "event 3, request 1 scheduled up to token 5: group 0 takes [6] as new, wanted blocks other than "
        "the hits [3, 5, 6]",
    ),
    (
        "withholds-reserved",
        SINKS_FIRST,
        put(0, (0, 0, 2), 1),
        "event 0, request 0 scheduled up to token 5: writes block 2, got block 1, wanted none of [0, 1] = "
        "null and withheld blocks",
    ),
    (
        "withholds-reserved",
        SINKS_FIRST,
        put(2, (0, 0, 2), 0),
        "event 2, request 0 scheduled up to token 6: writes block 2, got block 0, wanted none of [0, 1] = "
        "null and withheld blocks",
    ),
    (
        "withholds-reserved",
        SINKS_FIRST,
        lambda trace: replace(trace, withheld_blocks=()),
        "0 blocks withheld, wanted at least 1 for sinks",
    ),
    (
        "conserves",
        UNALIKE,
        put(1, (1, 0, 0), 1, freed=1),
        "event 1, request 1 scheduled up to token 4: block 1 is held as block 0 of request 0 in group 0, "
        "block 0 of request 1 in group 0",
    ),
    (
        "keeps-what-is-read",
        STATE,
        put(4, (0, 0, 0), 0),
        "event 4, request 0 scheduled up to token 6: block 0 of request 0 is freed, wanted it kept = read "
        "by mamba from 5 tokens on",
    ),
    (
        "keeps-what-is-read",
        ALIGNED,
        put(4, (0, 0, 1), 0),
        "event 4, request 0 scheduled up to token 5: block 1 of request 0 is freed, wanted it kept = read "
        "by mamba from 4 tokens on",
    ),
    (
        "keeps-what-is-read",
        ENCODED,
        put(2, (0, 0, 1), 0),
        "event 2, request 0 scheduled up to token 5: block 1 of request 0 is freed, wanted it kept = read "
        "by cross_attention from 4 tokens on",
    ),
    (
        "keeps-what-is-read",
        PROMPT_KEPT,
        put(4, (0, 0, 1), 0),
        "event 4, request 0 scheduled up to token 6: block 1 of request 0 is freed, wanted it kept = read "
        "by rswa from 5 tokens on",
    ),
    (
        # The first of the blocks that it writes.
        "withholds-reserved",
        SINKS_FIRST,
        put(0, (0, 0, 0), 0),
        "event 0, request 0 scheduled up to token 5: writes block 0, got block 0, wanted none of [0, 1] = "
        "null and withheld blocks",
    ),
    (
        "withholds-reserved",
        ALIGNED,
        put(4, (0, 0, 2), 0),
        "event 4, request 0 scheduled up to token 5: writes block 2, got block 0, wanted none of [0] = null "
        "and withheld blocks",
    ),
    (
        "withholds-reserved",
        ENCODED,
        put(2, (0, 0, 1), 0),
        "event 2, request 0 scheduled up to token 5: writes block 1, got block 0, wanted none of [0] = null "
        "and withheld blocks",
    ),
    (
        "withholds-reserved",
        TWO_SINKS,
        lambda trace: replace(trace, withheld_blocks=(1, 1)),
        "1 blocks withheld, wanted at least 2 for sinks",
    ),
]

ALLOWED: list[tuple[str, Pool, Alter]] = [
    # With 4 tokens settled a window of 3 begins at token 2; what block 0 has is only retained.
    ("keeps-what-is-read", RETAINING, put(2, (0, 0, 0), 0)),
    # Written by the step before, which is in flight.
    ("withholds-reserved", TWO_IN_FLIGHT, put(1, (0, 0, 1), 0)),
]
"""Traces other than the reference's that a law has nothing against."""


def check(id: str, pool: Pool, implementation: Plain, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask a law about a pool."""
    monkeypatch.setattr(hold, "pool", lambda given, **limits: pool)
    CATALOGUE[id].check(implementation, ReplayGiven(implementation, "sliding_window", {}))


def test_the_reference_does_what_the_table_says() -> None:
    moments = Plain().follow_schedule(*POOL).moments
    assert [moments[index].tables for index in (0, 2, 3, 6)] == [
        (((2, 3, 4), (5, 6, 7)), ()),
        (((0, 3, 4), (5, 6, 7)), ()),
        (((0, 3, 4), (5, 6, 7)), ((0, 3, 8), (5, 6, 9))),
        ((), ((0, 3, 8), (5, 6, 9))),
    ]


@pytest.mark.parametrize(
    "pool", [*{id(pool): pool for _, pool, *_ in WRONG}.values(), BROUGHT, TWO_IN_FLIGHT]
)
def test_what_the_reference_does_is_right(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes = {moment.outcome for moment in Plain().follow_schedule(*pool).moments}
    assert outcomes <= {"scheduled", "nothing"}
    for law in LAWS:
        check(law.id, pool, Plain(), monkeypatch)


@pytest.mark.parametrize(("name", "pool", "alter", "message"), WRONG)
def test_what_is_wrong_in_one_place_is_told(
    name: str, pool: Pool, alter: Alter, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Violation) as violation:
        check(f"hold/{name}", pool, Altered(alter), monkeypatch)
    assert str(violation.value) == message


@pytest.mark.parametrize(("name", "pool", "alter"), ALLOWED)
def test_what_is_not_wrong_is_not_told(
    name: str, pool: Pool, alter: Alter, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(f"hold/{name}", pool, Altered(alter), monkeypatch)


def test_every_law_is_told_something_wrong() -> None:
    assert {f"hold/{name}" for name, *_ in WRONG} == {law.id for law in LAWS}
