"""Schedules and traces leave this process and come back as they were, and are asked of another one."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from driving import attention, configuration, deployed, finish, mamba, prompt, schedule_of, settle, step
from hypothesis import given, settings
from hypothesis import strategies as st
from kvconform.conformance.adapters import serve, vllm_process
from kvconform.conformance.implementations import prepare
from kvconform.conformance.messages import Job
from kvconform.conformance.process import ProcessImplementation
from kvconform.conformance.protocol import Failure, Question
from kvconform.conformance.running import run
from kvconform.conformance.selection import find_pairs
from kvconform.conformance.values import read_arguments, read_result, to_wire
from kvconform.properties.law import CATALOGUE
from kvconform.properties.sampling import sample
from kvconform.reference.deployment import Deployment
from kvconform.reference.interface import Refused
from kvconform.reference.plain import Plain
from kvconform.reference.planning import KVCacheConfig
from kvconform.reference.schedules import ACTIONS, Event, Moment, Request, Schedule, Trace
from kvconform.reference.wire import (
    schedule_from_wire,
    schedule_to_wire,
    trace_from_wire,
    trace_to_wire,
)

SERVED = ("-P", "-m", "kvconform.conformance.adapters.serve", "reference")

CONFIG = configuration(attention(), mamba("all"))
SCHEDULE = schedule_of(
    (prompt(5), prompt(5)),
    *(step(5), settle(), step(drafts=2), settle(rejected=1), step(3, 1), finish()),
    prefix_caching=True,
)

sizes = st.integers(0, 9) | st.sampled_from((2**53 - 1, 2**53, 2**64, 10**30))
requests = st.builds(Request, prompt_tokens=sizes, prefix=sizes, external_tokens=sizes, encoder_tokens=sizes)
events = st.builds(
    Event,
    action=st.sampled_from(ACTIONS),
    request=sizes,
    tokens=sizes,
    drafts=sizes,
    lookahead=sizes,
    rejected=sizes,
)
schedules = st.builds(
    Schedule,
    requests=st.lists(requests, max_size=3).map(tuple),
    events=st.lists(events, max_size=4).map(tuple),
    prefix_caching=st.booleans(),
)
tables = st.lists(st.lists(sizes, max_size=3).map(tuple), max_size=2).map(tuple)
moments = st.builds(
    Moment,
    outcome=st.sampled_from(("scheduled", "short", "nothing", "fell")),
    free_blocks=sizes,
    tables=st.lists(tables, max_size=2).map(tuple),
    computed_tokens=sizes,
    reserved_blocks=sizes | sizes.map(lambda blocks: -blocks),
    taken_blocks=sizes,
    hit_tokens=sizes,
    hit_blocks=tables,
    reason=st.sampled_from(("", "KeyError: é", "12345678901234567890")),
)
traces = st.builds(
    Trace,
    null_block=sizes,
    withheld_blocks=st.lists(sizes, max_size=2).map(tuple),
    free_blocks=sizes,
    moments=st.lists(moments, max_size=3).map(tuple),
)


def as_json(wire: Any) -> Any:
    """The value as it arrives elsewhere."""
    return json.loads(json.dumps(wire))


@given(schedule=schedules)
@settings(max_examples=25, deadline=None)
def test_schedules_go_there_and_back(schedule: Schedule) -> None:
    assert schedule_from_wire(as_json(schedule_to_wire(schedule))) == schedule
    arguments = {"config": CONFIG, "deployment": deployed(), "schedule": schedule}
    wire = as_json(to_wire(arguments))
    assert read_arguments("follow_schedule", wire) == arguments
    # The stand-alone loop for vLLM reads the same.
    assert vllm_process.to_wire(vllm_process.from_wire(wire)) == wire
    assert schedule_from_wire(vllm_process.from_wire(wire)["schedule"]) == schedule


@given(trace=traces)
@settings(max_examples=25, deadline=None)
def test_traces_go_there_and_back(trace: Trace) -> None:
    assert trace_from_wire(as_json(trace_to_wire(trace))) == trace
    assert read_result("follow_schedule", as_json(to_wire(trace))) == trace
    assert vllm_process.to_wire(trace_to_wire(trace)) == to_wire(trace)


def test_what_is_at_its_default_may_be_left_out() -> None:
    wire = {"requests": [{"prompt_tokens": 3}], "events": [{"action": "finish", "request": 0}]}
    assert schedule_from_wire(wire) == schedule_of((prompt(3),), finish())
    least = {"outcome": "nothing", "free_blocks": 1, "tables": []}
    trace = {"null_block": 0, "withheld_blocks": [], "free_blocks": 1, "moments": [least]}
    assert read_result("follow_schedule", trace).moments == (
        Moment(outcome="nothing", free_blocks=1, tables=()),
    )


@pytest.fixture(scope="module")
def served() -> Iterator[ProcessImplementation]:
    """The reference in another process."""
    implementation = ProcessImplementation((sys.executable, *SERVED), seconds_per_ask=20)
    yield implementation
    implementation.close()


def test_another_process_is_asked_as_this_one(served: ProcessImplementation) -> None:
    trace = served.follow_schedule(CONFIG, deployed(), SCHEDULE)
    assert trace == Plain().follow_schedule(CONFIG, deployed(), SCHEDULE)
    assert [moment.outcome for moment in trace.moments].count("scheduled") == 3


REFUSED: dict[str, tuple[Schedule, Deployment]] = {
    "a schedule without requests": (schedule_of((), step()), deployed()),
    "event 0: action 'go', wanted one of schedule, settle, finish": (
        schedule_of((prompt(1),), Event(action="go", request=0)),
        deployed(),
    ),
    "event 1: request 2, wanted one of 0 to 1": (
        replace(SCHEDULE, events=(step(), step(1, 2))),
        deployed(),
    ),
    "event 0: tokens -1, wanted at least 1": (schedule_of((prompt(1),), step(-1)), deployed()),
    "request 0: prompt_tokens 5, wanted at most 4 = max_model_len": (SCHEDULE, deployed(max_model_len=4)),
    "schedules are of one rank": (SCHEDULE, deployed(decode_context_parallel=2)),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_makes_no_sense_is_refused_over_the_wire(reason: str, served: ProcessImplementation) -> None:
    schedule, deployment = REFUSED[reason]
    with pytest.raises(Refused) as refusal:
        served.follow_schedule(CONFIG, deployment, schedule)
    assert str(refusal.value) == reason


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ({"events": []}, "Object missing required field `requests` - at `$.schedule`"),
        (
            {"requests": [{"prompt_tokens": 1}], "events": [{"action": "finish"}]},
            "Object missing required field `request` - at `$.schedule.events[0]`",
        ),
        (
            {"requests": [{"prompt_tokens": 1, "width": 1}], "events": []},
            "Object contains unknown field `width` - at `$.schedule.requests[0]`",
        ),
        (
            {"requests": [{"prompt_tokens": 1.5}], "events": []},
            "wanted an integer, got 1.5 - at `$.schedule.requests[0].prompt_tokens`",
        ),
        (
            {"requests": [], "events": [{"action": 1, "request": 0}]},
            "Expected `str`, got `int` - at `$.schedule.events[0].action`",
        ),
    ],
)
def test_what_is_no_schedule_is_said_with_its_place(schedule: Any, message: str) -> None:
    wire = to_wire({"config": CONFIG, "deployment": deployed()})
    reply = serve.answer(Plain(), Question(1, "follow_schedule", {**wire, "schedule": schedule}))
    assert isinstance(reply, Failure)
    assert reply.error == f"ValueError: {message}"


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("moments", [{"outcome": "nothing", "tables": []}], "missing required field `free_blocks`"),
        ("null_block", "none", "wanted an integer, got 'none' - at `$.null_block`"),
        (
            "moments",
            [{"outcome": "nothing", "free_blocks": 1, "tables": [[1]]}],
            "Expected `array`, got `int` - at `$.moments[0].tables[0][0]`",
        ),
    ],
)
def test_what_is_no_trace_is_said_with_its_place(field: str, value: Any, message: str) -> None:
    wire = to_wire(Plain().follow_schedule(CONFIG, deployed(), SCHEDULE))
    with pytest.raises(ValueError) as caught:
        read_result("follow_schedule", {**wire, field: value})
    assert message in str(caught.value)


def test_the_reference_in_another_process_holds_what_it_holds_here() -> None:
    address = f"process:{shlex.join([sys.executable, *SERVED])}"
    pairs = find_pairs("hold/*", None)
    done = run(Job(implementation=prepare(address), examples=8), pairs, jobs=1)
    assert {(result.law, result.kind) for result in done.results} == {(law.id, kind) for law, kind in pairs}
    assert {result.verdict for result in done.results} == {"held"}
    assert len(pairs) == 9 * len(CATALOGUE["hold/total"].kinds)


class Forgetful(Plain):
    """Leaves out the last moment."""

    def follow_schedule(self, config: KVCacheConfig, deployment: Deployment, schedule: Schedule) -> Trace:
        trace = super().follow_schedule(config, deployment, schedule)
        return replace(trace, moments=trace.moments[:-1])


def test_a_trace_of_another_schedule_is_no_violation() -> None:
    outcome = sample(CATALOGUE["hold/total"], Forgetful(), "full_attention", examples=5, seed_number=1)
    assert outcome.verdict == "broken"
    assert re.fullmatch(r"ValueError: \d+ moments of \d+ events", outcome.message)
