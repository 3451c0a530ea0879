"""The reference's block manager with one request: what it holds after each event, worked out by hand.

Blocks are of 2 tokens. They are handed out from 1 upwards; 0 is the null block.
"""

from __future__ import annotations

from typing import Any

from driving import (
    alone,
    attention,
    finish,
    mamba,
    prompt,
    settle,
    step,
    traced,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from kvconform.reference.residency import held_blocks
from kvconform.reference.schedules import Moment
from kvconform.reference.specs import FULL_KINDS, WINDOW_KINDS

FULL = attention()


def test_full_attention_grows_by_whole_blocks() -> None:
    # 3, 5, 6 and 7 tokens are 2, 3, 3 and 4 blocks. The second step ends with the prompt.
    assert alone(FULL, prompt(5), step(3), settle(), step(3), settle(), step(), settle(), step()) == [
        [1, 2],
        [1, 2],
        [1, 2, 3],
        [1, 2, 3],
        [1, 2, 3],
        [1, 2, 3],
        [1, 2, 3, 4],
    ]


def test_what_a_step_takes_is_told() -> None:
    trace = traced(FULL, (prompt(3),), step(3), settle(), step(), num_blocks=8)
    assert (trace.null_block, trace.withheld_blocks, trace.free_blocks) == (0, (), 7)
    assert trace.moments == (
        Moment(
            outcome="scheduled",
            free_blocks=5,
            tables=(((1, 2),),),
            computed_tokens=3,
            reserved_blocks=2,
            taken_blocks=2,
            hit_blocks=((),),
        ),
        Moment(outcome="nothing", free_blocks=5, tables=(((1, 2),),), computed_tokens=3),
        # The fourth token has a place in the second block.
        Moment(outcome="scheduled", free_blocks=5, tables=(((1, 2),),), computed_tokens=4),
    )


def test_what_is_given_back_comes_after_what_is_free_last_blocks_first() -> None:
    trace = traced(FULL, (prompt(5), prompt(6)), step(5), finish(), step(6, 1), num_blocks=6)
    # Free: 4, 5 and then 3, 2, 1.
    assert [moment.tables for moment in trace.moments] == [(((1, 2, 3),), ()), ((), ()), ((), ((4, 5, 3),))]
    assert [moment.free_blocks for moment in trace.moments] == [2, 5, 2]


def test_no_more_steps_are_in_flight_than_batches() -> None:
    events = (step(2), step(2), step(2), settle(), step(2))
    trace = traced(FULL, (prompt(6),), *events, max_concurrent_batches=2)
    assert [moment.outcome for moment in trace.moments] == [
        "scheduled",
        "scheduled",
        "nothing",
        "nothing",
        "scheduled",
    ]
    assert [moment.computed_tokens for moment in trace.moments] == [2, 4, 4, 4, 6]


def test_nothing_goes_past_the_longest_request() -> None:
    # Of the token and its 3 drafts there is room for 2, so one draft is taken back; then for 1, and none.
    events = (step(3), settle(), step(drafts=3), settle(rejected=3), step(drafts=3), settle(), step())
    trace = traced(FULL, (prompt(3),), *events, max_model_len=5)
    assert [moment.computed_tokens for moment in trace.moments] == [3, 3, 5, 4, 5, 5, 5]
    assert trace.moments[-1].outcome == "nothing"


def test_a_finished_request_does_nothing_more() -> None:
    trace = traced(FULL, (prompt(3),), step(3), finish(), step(), settle(), finish())
    assert [moment.outcome for moment in trace.moments[1:]] == ["nothing"] * 4
    assert {moment.free_blocks for moment in trace.moments[1:]} == {15}


def test_a_window_frees_by_what_is_settled() -> None:
    # With 4 tokens settled the window of 3 begins at token 2, so block 0 goes; by the 8 that are
    # scheduled it would be three blocks. It goes when the next step is scheduled, not before.
    events = (step(4), step(4), settle(), step(), settle(), step())
    window = attention("sliding_window", sliding_window=3)
    assert alone(window, prompt(8), *events, max_concurrent_batches=2) == [
        [1, 2],
        [1, 2, 3, 4],
        [1, 2, 3, 4],
        [0, 2, 3, 4, 5],
        [0, 2, 3, 4, 5],
        # 8 settled: the window begins at token 6.
        [0, 0, 0, 4, 5],
    ]


def test_retained_tokens_stay_below_a_window() -> None:
    # 6 settled: the window of 3 begins at token 4, what is retained at token 3, in block 1.
    window = attention("sliding_window", sliding_window=3, extra_retained_tokens=1)
    assert alone(window, prompt(6), step(6), settle(), step())[-1] == [0, 2, 3, 4]


def test_rejected_drafts_are_taken_back_and_their_blocks_kept() -> None:
    trace = traced(
        FULL,
        (prompt(2),),
        *(step(2), settle(), step(drafts=3), settle(rejected=2), step(), settle(rejected=5)),
    )
    # 6 tokens with the drafts, 4 without two of them, 5 after the next, which had no draft.
    assert [moment.computed_tokens for moment in trace.moments] == [2, 2, 6, 4, 5, 5]
    assert [moment.tables[0][0] for moment in trace.moments[2:]] == [(1, 2, 3)] * 4
    assert trace.moments[4].reserved_blocks == 0


def test_no_more_drafts_are_rejected_than_there_were() -> None:
    trace = traced(FULL, (prompt(2),), step(2), settle(), step(drafts=1), settle(rejected=2))
    assert [moment.computed_tokens for moment in trace.moments[2:]] == [4, 3]


def test_a_prompt_has_no_drafts_and_what_is_ahead_has_blocks() -> None:
    events = (step(2, drafts=2, lookahead=3), settle(rejected=2))
    trace = traced(FULL, (prompt(4),), *events, max_model_len=6)
    # 2 tokens and 3 slots: 3 blocks.
    assert [moment.computed_tokens for moment in trace.moments] == [2, 2]
    assert trace.moments[0].tables == (((1, 2, 3),),)
    # Never past the longest request of 6 tokens.
    longer = traced(FULL, (prompt(4),), step(4, lookahead=9), max_model_len=6)
    assert longer.moments[0].tables == (((1, 2, 3),),)


def test_a_reference_window_keeps_the_prompt() -> None:
    # The prompt's 3 tokens are in blocks 0 and 1. With 8 settled the window of 2 begins at token 6,
    # in block 3: block 2, of tokens 4 and 5, lies in the gap.
    one = (step(), settle())
    events = (step(3), settle(), *one, *one, *one, *one, *one, step())
    rswa = attention("rswa", rswa_window=2)
    tables = alone(rswa, prompt(3), *events)
    assert tables[-2] == [1, 2, 3, 4]
    assert tables[-1] == [1, 2, 0, 4, 5]


def test_a_chunk_is_freed_when_it_is_over() -> None:
    chunked = attention("chunked_local_attention", attention_chunk_size=4)
    assert alone(chunked, prompt(6), step(3), settle(), step(3), settle(), step()) == [
        [1, 2],
        [1, 2],
        # 3 settled: the first chunk of 4 is not over.
        [1, 2, 3],
        [1, 2, 3],
        [0, 0, 3, 4],
    ]


def test_one_state_has_one_block_for_ever() -> None:
    events = (step(6), settle(), step(), settle(), step())
    assert alone(mamba("none", block_size=16), prompt(6), *events) == [[1]] * 5


def test_states_at_all_boundaries_have_a_block_each() -> None:
    events = (step(3), settle(), step(3), settle(), step(), settle(), step())
    assert alone(mamba("all"), prompt(5), *events)[::2] == [
        [1, 2],
        [1, 2, 3],
        [1, 2, 3],
        [1, 2, 3, 4],
    ]


def test_aligned_states_are_the_last_ones() -> None:
    # A step reads the state that the one before it left, in the block of its last token, and leaves
    # its own. Older ones are given back when a step is scheduled.
    events = (step(2), settle(), step(2), settle(), step(1), settle(), step(), settle(), step())
    assert alone(mamba("align"), prompt(5), *events)[::2] == [
        [1],
        [1, 2],
        [0, 2, 3],
        [0, 0, 3],
        [0, 0, 3, 4],
    ]


def test_an_aligned_state_is_freed_by_the_steps_in_their_order() -> None:
    # Nothing is settled, and yet no step but the second reads the first one's state.
    tables = alone(mamba("align"), prompt(6), step(2), step(2), step(2), max_concurrent_batches=3)
    assert tables == [[1], [1, 2], [0, 2, 3]]


def test_an_aligned_step_over_blocks_leaves_one_state() -> None:
    assert alone(mamba("align"), prompt(6), step(6)) == [[0, 0, 1]]


def test_cross_attention_holds_the_encoder_tokens() -> None:
    cross = attention("cross_attention")
    request = prompt(1, encoder_tokens=5)
    assert alone(cross, request, step(), settle(), step(), settle(), step()) == [[1, 2, 3]] * 5


OWN: dict[str, tuple[str, ...]] = {
    "chunked_local_attention": ("attention_chunk_size",),
    "rswa": ("rswa_window",),
    **dict.fromkeys(WINDOW_KINDS, ("sliding_window", "extra_retained_tokens")),
    **dict.fromkeys((kind for kind in FULL_KINDS if kind != "rswa"), ()),
}
"""Kinds that hold what the tokens placed so far need, and their fields that say what is freed."""


@given(data=st.data(), kind=st.sampled_from(list(OWN)))
@settings(max_examples=150, deadline=None)
def test_one_request_holds_what_the_closed_form_says(data: st.DataObject, kind: str) -> None:
    small = st.integers(1, 9)
    own = {name: data.draw(small, name) for name in OWN[kind]}
    spec = attention(kind, data.draw(st.integers(1, 4), "block_size"), **own)
    longest = data.draw(st.integers(1, 40), "max_model_len")
    request = prompt(
        data.draw(st.integers(1, longest), "prompt"), external_tokens=data.draw(small, "external")
    )
    # The same slots ahead of each step, and no drafts: what is placed never shrinks.
    lookahead = data.draw(st.integers(0, 2), "lookahead")
    steps = st.builds(step, small, lookahead=st.just(lookahead))
    events = data.draw(st.lists(steps | st.just(settle()), min_size=1, max_size=30), "events")
    deployment: dict[str, Any] = {"max_model_len": longest, "max_concurrent_batches": 3, "num_blocks": 64}
    trace = traced(spec, (request,), step(2, lookahead=lookahead), *events, **deployment)
    settled = min(request.external_tokens, request.prompt_tokens - 1)
    computed = settled
    flying: list[int] = []
    for event, moment in zip((step(), *events), trace.moments, strict=True):
        if event.action == "settle" and flying:
            settled += flying.pop(0)
        if moment.outcome == "scheduled":
            flying.append(moment.computed_tokens - computed)
            computed = moment.computed_tokens
            held = [block for block in moment.tables[0][0] if block != trace.null_block]
            wanted = held_blocks(spec, settled, sum(flying), longest, lookahead, request.prompt_tokens)
            assert len(held) == wanted
    assert trace.moments[0].outcome == "scheduled"
