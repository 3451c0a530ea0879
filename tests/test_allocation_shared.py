"""The reference's block manager with requests that share a pool and its prefix cache, worked out by hand.

Blocks are of 2 tokens unless a test says so. They are handed out from 1 upwards; 0 is the null
block.
"""

from __future__ import annotations

import pytest
from driving import (
    attention,
    caching,
    finish,
    mamba,
    prompt,
    settle,
    step,
    traced,
)
from kvconform.reference.specs import Spec

FULL = attention()


def test_what_two_prompts_share_is_found() -> None:
    alike = (prompt(5), prompt(5), prompt(4), prompt(5, prefix=1))
    first, second, shorter, other = caching(FULL, alike, step(5), step(5, 1), step(5, 2), step(5, 3))
    assert (first.hit_tokens, first.hit_blocks, first.tables[0]) == (0, ((),), ((1, 2, 3),))
    # Its last block is not whole, and has a token that is computed.
    assert (second.hit_tokens, second.hit_blocks, second.tables[1]) == (4, ((1, 2),), ((1, 2, 4),))
    assert (second.computed_tokens, second.reserved_blocks, second.taken_blocks) == (5, 1, 1)
    # The last token of the prompt is always computed, and whole blocks are found.
    assert (shorter.hit_tokens, shorter.hit_blocks, shorter.tables[2]) == (2, ((1,),), ((1, 5),))
    assert (other.hit_tokens, other.tables[3]) == (0, ((6, 7, 8),))


def test_nothing_is_found_without_a_prefix_cache() -> None:
    trace = traced(FULL, (prompt(5), prompt(5)), step(5), step(5, 1))
    assert trace.moments[1].tables == (((1, 2, 3),), ((4, 5, 6),))


def test_a_window_needs_only_its_last_blocks_found() -> None:
    # After 6 tokens the window of 2 reads token 5 on, in block 2.
    window = attention("sliding_window", sliding_window=2)
    _, moment = caching(window, (prompt(7), prompt(7)), step(7), step(7, 1))
    assert (moment.hit_tokens, moment.hit_blocks) == (6, ((0, 0, 3),))
    assert moment.tables[1] == ((0, 0, 3, 5),)


def test_the_longest_hit_is_common_to_groups() -> None:
    # Blocks of 2 tokens in the one group, of 4 in the other, where the window of 3 reads block 1
    # alone after 8 tokens.
    groups = (FULL, attention("sliding_window", block_size=4, sliding_window=3))
    first, second, third = caching(groups, (prompt(9), prompt(9), prompt(8)), step(9), step(9, 1), step(9, 2))
    assert first.tables[0] == ((1, 2, 3, 4, 5), (6, 7, 8))
    assert (second.hit_tokens, second.hit_blocks) == (8, ((1, 2, 3, 4), (0, 7)))
    assert second.tables[1] == ((1, 2, 3, 4, 9), (0, 7, 10))
    # The first group has 6 tokens of its prompt, the second whole blocks of 4 only.
    assert (third.hit_tokens, third.hit_blocks) == (4, ((1, 2), (6,)))
    assert third.tables[2] == ((1, 2, 11, 12), (6, 13))


def test_what_one_group_has_lost_is_no_hit_of_the_other() -> None:
    # The first request's window of 2 gives 5, 6 and 7 back, and another prompt is put into them.
    groups = (FULL, attention("sliding_window", sliding_window=2))
    requests = (prompt(7), prompt(3, prefix=1), prompt(3))
    events = (step(7), settle(), step(), step(3, 1), finish(1), step(3, 2))
    trace = traced(groups, requests, *events, prefix_caching=True, num_blocks=10)
    assert trace.moments[0].tables[0] == ((1, 2, 3, 4), (5, 6, 7, 8))
    assert trace.moments[2].tables[0] == ((1, 2, 3, 4), (0, 0, 0, 8))
    # Free: 9, 5, 6, 7, and after it has ended 5, 9, 7, 6.
    assert trace.moments[3].tables[1] == ((9, 5), (6, 7))
    # Full attention alone would find 2 tokens in block 1.
    last = trace.moments[5]
    assert (last.hit_tokens, last.hit_blocks, last.tables[2]) == (0, ((), ()), ((5, 9), (7, 6)))


def test_external_tokens_that_a_window_has_passed_have_no_block() -> None:
    # 6 of 9 tokens are brought. The window of 3 reads from token 4 on, so blocks 0 and 1 are null.
    window = attention("sliding_window", sliding_window=3)
    trace = traced(window, (prompt(9, external_tokens=6),), step(9))
    (moment,) = trace.moments
    assert moment.tables == (((0, 0, 1, 2, 3),),)
    assert (moment.computed_tokens, moment.reserved_blocks, moment.taken_blocks) == (9, 3, 3)


def test_external_tokens_follow_a_hit_and_may_pass_it() -> None:
    # 4 tokens are found and 3 brought: block 2 of the first request is read after 4 tokens, and not
    # after 7, where the window of 3 begins at token 5.
    window = attention("sliding_window", sliding_window=3)
    _, moment = caching(window, (prompt(5), prompt(9, external_tokens=3)), step(5), step(9, 1))
    assert (moment.hit_tokens, moment.hit_blocks) == (4, ((0, 2),))
    assert moment.tables[1] == ((0, 0, 4, 5, 6),)
    assert (moment.computed_tokens, moment.reserved_blocks, moment.taken_blocks) == (9, 3, 3)
    # Block 2 stays the first request's.
    assert moment.free_blocks == 9


def test_the_last_token_of_a_prompt_is_computed_whatever_is_brought() -> None:
    trace = traced(FULL, (prompt(3, external_tokens=9),), step(9))
    assert (trace.moments[0].computed_tokens, trace.moments[0].tables) == (3, (((1, 2),),))


def test_a_free_hit_is_counted_and_pinned() -> None:
    alike = (prompt(5), prompt(5), prompt(5))
    events = (step(5), finish(), step(5, 1), step(5, 2), finish(1), finish(2))
    trace = traced(FULL, alike, *events, prefix_caching=True, num_blocks=6)
    _, finished, again, beside, one, both = trace.moments
    assert finished.free_blocks == 5
    # Free: 4, 5, 3, 2, 1. Blocks 1 and 2 are found there and taken out, 4 is new.
    assert (again.tables[1], again.reserved_blocks, again.taken_blocks) == (((1, 2, 4),), 3, 3)
    assert again.free_blocks == 2
    # In hands already, they take nothing.
    assert (beside.tables[2], beside.reserved_blocks, beside.taken_blocks) == (((1, 2, 5),), 1, 1)
    # Until both have let them go they are not free.
    assert (one.free_blocks, both.free_blocks) == (2, 5)


def test_hits_may_be_too_many_for_the_pool() -> None:
    # Of 3 free blocks 2 are hits, and 2 new ones are needed beside them.
    alike = (prompt(5), prompt(7))
    trace = traced(FULL, alike, step(5), finish(), step(7, 1), prefix_caching=True, num_blocks=4)
    last = trace.moments[2]
    assert (last.outcome, last.hit_tokens, last.hit_blocks) == ("short", 4, ((1, 2),))
    assert (last.free_blocks, last.tables) == (3, ((), ()))


def test_a_block_that_is_handed_out_anew_is_forgotten() -> None:
    alike = (prompt(5), prompt(5, prefix=1), prompt(5))
    events = (step(5), finish(), step(5, 1), finish(1), step(5, 2))
    trace = traced(FULL, alike, *events, prefix_caching=True, num_blocks=5)
    # Free: 4, 3, 2, 1. Another prompt goes into 4, 3 and 2, so that of the first one 1 is left.
    assert trace.moments[2].tables[1] == ((4, 3, 2),)
    assert (trace.moments[4].hit_tokens, trace.moments[4].hit_blocks) == (2, ((1,),))


def test_of_states_the_last_one_must_be_found() -> None:
    first, second = caching(mamba("all"), (prompt(5), prompt(5)), step(5), step(5, 1))
    assert first.tables[0] == ((1, 2, 3),)
    assert (second.hit_tokens, second.hit_blocks, second.tables[1]) == (4, ((0, 2),), ((0, 2, 4),))


def test_an_aligned_state_is_found_where_a_step_left_it() -> None:
    alike = (prompt(5), prompt(5), prompt(4))
    events = (step(4), settle(), step(1), step(5, 1), step(4, 2))
    first, _, _, second, third = caching(mamba("align"), alike, *events)
    assert first.tables[0] == ((0, 1),)
    assert (second.hit_tokens, second.hit_blocks, second.tables[1]) == (4, ((0, 1),), ((0, 1, 3),))
    # No step ended at 2 tokens.
    assert (third.hit_tokens, third.tables[2]) == (0, ((0, 4),))


def test_a_state_within_a_block_is_not_found() -> None:
    # Steps ended at 3 and 5 tokens: block 1 has the state after 3, not after 4.
    alike = (prompt(5), prompt(5))
    first, _, _, second = caching(mamba("align"), alike, step(3), settle(), step(2), step(5, 1))
    assert first.tables[0] == ((0, 1),)
    assert (second.hit_tokens, second.tables[1]) == (0, ((0, 0, 3),))


def test_what_is_generated_is_not_found() -> None:
    # The first request's block 1 holds the last token of its prompt and one that is its own.
    *_, second = caching(FULL, (prompt(3), prompt(5)), step(3), settle(), step(), settle(), step(5, 1))
    assert (second.hit_tokens, second.hit_blocks) == (2, ((1,),))


def test_of_two_blocks_of_the_same_tokens_the_first_is_found() -> None:
    # A prompt of one block is computed by both: its last token always is.
    first, second, third = caching(FULL, (prompt(2), prompt(2), prompt(3)), step(2), step(2, 1), step(3, 2))
    assert (first.tables[0], second.tables[1]) == (((1,),), ((2,),))
    assert third.hit_blocks == ((1,),)


@pytest.mark.parametrize("spec", [mamba("none"), attention("cross_attention")])
def test_what_is_never_found_again_keeps_all_groups_from_it(spec: Spec) -> None:
    alike = (prompt(5, encoder_tokens=2), prompt(5, encoder_tokens=2))
    _, second = caching((FULL, spec), alike, step(5), step(5, 1))
    assert (second.hit_tokens, second.hit_blocks) == (0, ((), ()))
    assert second.tables[1] == ((5, 6, 7), (8,))


def test_who_is_to_be_admitted_and_finds_too_few_blocks_is_given_up() -> None:
    # 3 blocks beside the null block: the second prompt needs 2 of 1.
    trace = traced(FULL, (prompt(4), prompt(4)), step(4), step(4, 1), finish(), step(4, 1), num_blocks=4)
    assert [moment.outcome for moment in trace.moments] == ["scheduled", "short", "nothing", "nothing"]
    assert [moment.tables for moment in trace.moments] == [
        (((1, 2),), ()),
        (((1, 2),), ()),
        ((), ()),
        ((), ()),
    ]
    assert trace.moments[-1].free_blocks == 3


def test_who_runs_out_of_blocks_later_gives_all_back() -> None:
    one = (step(), settle())
    trace = traced(FULL, (prompt(4),), step(4), settle(), *one, *one, step(), num_blocks=4)
    # Tokens 5 and 6 go into the last block, token 7 would need a fourth.
    assert trace.moments[-2].tables == (((1, 2, 3),),)
    assert (trace.moments[-1].outcome, trace.moments[-1].tables) == ("short", ((),))
    assert trace.moments[-1].free_blocks == 3


def test_blocks_of_sinks_are_withheld() -> None:
    sinks = attention("sink_full_attention", sink_len=3)
    trace = traced(sinks, (prompt(3),), step(3), num_blocks=5)
    assert (trace.withheld_blocks, trace.free_blocks) == ((1, 2), 2)
    assert trace.moments[0].tables == (((3, 4),),)
    # A pool may hold nothing else, and then serves no one.
    full = traced(sinks, (prompt(3),), step(3), num_blocks=3)
    assert (full.free_blocks, full.moments[0].outcome) == (0, "short")
