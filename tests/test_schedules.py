"""What is no schedule is refused, and what is no trace of a schedule is told."""

from __future__ import annotations

from typing import Any

import pytest
from driving import (
    attention,
    configuration,
    deployed,
    finish,
    mamba,
    prompt,
    schedule_of,
    settle,
    step,
    traced,
)
from kvconform.reference.allocation import follow_schedule
from kvconform.reference.interface import Refused
from kvconform.reference.schedules import Event, Moment, Request, Trace, follow
from kvconform.reference.specs import Spec

FULL = attention()


REFUSED: dict[str, tuple[Spec, dict[str, Any]]] = {
    "schedules are of one rank": (FULL, {"decode_context_parallel": 2}),
    "schedules have no speculative states": (mamba("align", num_speculative_blocks=1), {}),
    "2 blocks for sinks, of 1 that the pool hands out": (
        attention("sink_full_attention", sink_len=3),
        {"num_blocks": 2},
    ),
    "no skip point is defined for kind 'encoder_only_attention'": (attention("encoder_only_attention"), {}),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_no_manager_serves_is_refused(reason: str) -> None:
    spec, more = REFUSED[reason]
    with pytest.raises(Refused) as refusal:
        traced(spec, (prompt(4),), step(4), **more)
    assert str(refusal.value) == reason


MALFORMED: dict[str, tuple[tuple[Request, ...], Event]] = {
    "a schedule without requests": ((), step()),
    "request 0: prompt_tokens 0, wanted at least 1": ((prompt(0),), step()),
    "request 1: external_tokens -1, wanted at least 0": ((prompt(1), prompt(1, external_tokens=-1)), step()),
    "request 0: encoder_tokens -2, wanted at least 0": ((prompt(1, encoder_tokens=-2),), step()),
    "request 0: prompt_tokens 17, wanted at most 16 = max_model_len": ((prompt(17),), step()),
    "event 0: action 'go', wanted one of schedule, settle, finish": (
        (prompt(1),),
        Event(action="go", request=0),
    ),
    "event 0: request 1, wanted one of 0 to 0": ((prompt(1),), step(1, 1)),
    "event 0: request -1, wanted one of 0 to 0": ((prompt(1),), finish(-1)),
    "event 0: tokens 0, wanted at least 1": ((prompt(1),), step(0)),
    "event 0: drafts -1, wanted at least 0": ((prompt(1),), step(drafts=-1)),
    "event 0: lookahead -1, wanted at least 0": ((prompt(1),), step(lookahead=-1)),
    "event 0: rejected -1, wanted at least 0": ((prompt(1),), settle(rejected=-1)),
}
"""What is said of a schedule that no scheduler has."""


@pytest.mark.parametrize("reason", MALFORMED)
def test_what_is_no_schedule_is_refused(reason: str) -> None:
    requests, event = MALFORMED[reason]
    with pytest.raises(Refused) as refusal:
        traced(FULL, requests, event)
    assert str(refusal.value) == reason


SCHEDULE = schedule_of((prompt(4),), step(2), settle(), step(2))


def moment(outcome: str = "scheduled", computed: int = 2, requests: int = 1) -> Moment:
    return Moment(outcome=outcome, free_blocks=1, tables=((),) * requests, computed_tokens=computed)


def of_moments(*moments: Moment) -> Trace:
    return Trace(null_block=0, withheld_blocks=(), free_blocks=1, moments=moments)


NO_TRACES: dict[str, tuple[Moment, ...]] = {
    "4 moments of 3 events": (moment(), moment("nothing"), moment(computed=4), moment(computed=5)),
    "2 moments of 3 events": (moment(), moment("nothing")),
    "0 moments of 3 events": (),
    "schedule of request 0: the trace says 3 tokens computed, its events say 2": (
        moment(computed=3),
        moment("nothing"),
        moment(computed=4),
    ),
    "settle of request 0: the trace says 0 tokens computed, its events say 2": (
        moment(),
        moment("nothing", computed=0),
        moment(computed=4),
    ),
    "schedule of request 0: outcome 'nothing', wanted one of scheduled, short, fell": (
        moment("nothing", computed=0),
        moment("nothing", computed=0),
        moment("nothing", computed=0),
    ),
    "settle of request 0: outcome 'scheduled', wanted one of nothing, fell": (
        moment(),
        moment(),
        moment(computed=4),
    ),
    "schedule of request 0: outcome 'done', wanted one of scheduled, short, fell": (
        moment("done"),
        moment("nothing"),
        moment(computed=4),
    ),
    "tables of 2 requests, of 1": (moment(requests=2), moment("nothing"), moment(computed=4)),
}
"""What is said of traces that are none of the schedule."""


@pytest.mark.parametrize("message", NO_TRACES)
def test_a_trace_of_another_schedule_is_told(message: str) -> None:
    with pytest.raises(ValueError) as caught:
        list(follow(SCHEDULE, of_moments(*NO_TRACES[message]), deployed()))
    assert str(caught.value) == message


def test_a_trace_may_end_where_the_manager_fell() -> None:
    fell = list(follow(SCHEDULE, of_moments(moment(), moment("fell", computed=0)), deployed()))
    assert [done.outcome for _, done, _ in fell] == ["scheduled", "fell"]


def test_nothing_is_said_of_a_request_that_has_ended() -> None:
    schedule = schedule_of((prompt(4),), step(2), finish(), step(2))
    trace = of_moments(moment(), moment("nothing", computed=0), moment("nothing", computed=9))
    assert [mine.ended for _, _, (mine,) in follow(schedule, trace, deployed())][1:] == [True, True]


def test_who_is_given_up_has_ended() -> None:
    schedule = schedule_of((prompt(4),), step(2), step(2), settle())
    trace = of_moments(moment("short"), moment("nothing"), moment("nothing"))
    assert [mine.computed for _, _, (mine,) in follow(schedule, trace, deployed())] == [0, 0, 0]


def test_it_is_followed_how_far_each_request_is() -> None:
    schedule = schedule_of(
        (prompt(2, external_tokens=1), prompt(9)),
        *(step(9), settle(), step(drafts=2), step(drafts=1), settle(rejected=1), step(3, 1), finish()),
    )
    deployment = deployed(max_concurrent_batches=2)
    trace = follow_schedule(configuration(FULL), deployment, schedule)
    seen = [
        (mine.computed, mine.settled, mine.first_read, mine.ended)
        for _, _, (mine, _) in follow(schedule, trace, deployment)
    ]
    assert seen == [
        # One token is brought, so the step begins at 1.
        (2, 1, 1, False),
        (2, 2, 1, False),
        (5, 2, 2, False),
        # It begins at 5, and the 2 drafts before it may yet be taken back.
        (7, 2, 3, False),
        (6, 4, 3, False),
        (6, 4, 3, False),
        (6, 6, 3, True),
    ]
