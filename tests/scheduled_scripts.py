"""Scripts of schedules that a release followed: what they print beside what it did."""

from __future__ import annotations

import ast
import re
from typing import Any

SECTION = """
    import contextlib, io
    from dataclasses import replace
    from kvconform.reference.grouping import KVCacheGroupSpec
    from kvconform.reference.planning import KVCacheConfig
    from kvconform.reference.schedules import Event, Request, Schedule
    from kvconform.reference.wire import trace_to_wire

    def printed(arguments, trace):
        script = release.script([("follow_schedule", arguments, trace)], "what was asked")
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(script, "<script>", "exec"), {"__name__": "script"})
        return [script, out.getvalue().splitlines(), trace_to_wire(trace)]

    found["followed"] = []
    for name in ("hold/conserves", "hold/hits-are-pinned"):
        law = CATALOGUE[name]
        for kind in law.kinds:
            if kind not in release.kinds() or kind == "sink_full_attention":
                continue
            calls = []
            sample(law, record(release, calls), kind, examples=3, seed_number=0)
            found["followed"] += [
                printed(call.arguments, call.answer)
                for call in calls
                if not isinstance(call.answer, Exception)
            ]

    def follow(spec):
        group = KVCacheGroupSpec(layer_names=("layer",), kv_cache_spec=spec)
        step = Event(action="schedule", request=0, tokens=16)
        events = (step, Event(action="settle", request=0), step)
        arguments = {
            "config": KVCacheConfig(num_blocks=8, kv_cache_tensors=(), kv_cache_groups=(group,)),
            "deployment": HUNDRED,
            "schedule": Schedule(requests=(Request(prompt_tokens=40),), events=events),
        }
        return arguments, release.follow_schedule(**arguments)

    arguments, trace = follow(FULL)
    moments = tuple(replace(moment, taken_blocks=moment.taken_blocks + 1) for moment in trace.moments)
    found["wrong"] = printed(arguments, replace(trace, moments=moments))
    refusal = ("follow_schedule", arguments, Refused("no manager"))
    found["refused"] = release.script([refusal], "what was asked")
    sinks = SinkFullAttention(block_size=16, num_kv_heads=1, head_size=8, dtype="bfloat16", sink_len=32)
    found["sinks"] = None
    with contextlib.suppress(Refused, Unsupported):
        found["sinks"] = printed(*follow(sinks))
"""
"""Drawn schedules, one whose trace takes more than was found necessary, and one with sinks."""

STATE = re.compile(r"(?:before|event (\d+), request \d+ .*): (\{.*\}), (-?\d+) free")
REFUSED = re.compile(r"event (\d+), request \d+ refused: (\w+)\(.*")
HITS = re.compile(r"event (\d+), request \d+ hits (\d+) tokens: (.*)")


def compare(script: str, printed: list[str], trace: dict[str, Any]) -> None:
    """Raise AssertionError unless the lines printed show the trace.

    After each event: the tables and free blocks of the last line up to it, since what is not shown
    changed nothing; where a request was admitted, its hits; where the manager fell, the error.
    """
    shown: dict[int, tuple[dict[str, Any], int]] = {}
    hits: dict[int, tuple[int, Any]] = {}
    refused: dict[int, str] = {}
    for line in printed:
        if state := STATE.fullmatch(line):
            index = int(state[1]) if state[1] else -1
            shown[index] = (ast.literal_eval(state[2]), int(state[3]))
        elif found := HITS.fullmatch(line):
            hits[int(found[1])] = (int(found[2]), ast.literal_eval(found[3]))
        elif error := REFUSED.fullmatch(line):
            refused[int(error[1])] = error[2]
    tables, free = shown[-1]
    context = f"{script}\n" + "\n".join(printed)
    assert free == trace["free_blocks"], context
    for index, moment in enumerate(trace["moments"]):
        if moment["outcome"] == "fell":
            assert moment["reason"].startswith(refused.pop(index)), context
            break
        assert index in shown or moment["outcome"] == "nothing", context
        tables, free = shown.get(index, (tables, free))
        assert free == moment["free_blocks"], f"event {index}\n{context}"
        for request, groups in enumerate(moment["tables"]):
            held = tables.get(f"request {request}", ())
            assert _plain(held) == _plain(groups), f"event {index}, request {request}\n{context}"
        if moment["hit_tokens"]:
            assert hits[index][0] == moment["hit_tokens"], context
            assert _plain(hits[index][1]) == _plain(moment["hit_blocks"]), context
    assert not refused, context


def _plain(groups: Any) -> list[list[int]]:
    return [list(group) for group in groups] if any(groups) else []


def shows(message: str, printed: list[str]) -> bool:
    """Whether the lines say of the event that a message is about what the message says of it."""
    about = re.match(r"event \d+, request \d+ ", message)
    if about is None:
        return any(STATE.fullmatch(line) for line in printed)
    said = [line for line in printed if line.startswith(about[0])]
    if fell := re.search(r"fell over it: (\w+)", message):
        return said[-1].startswith(f"{about[0]}refused: {fell[1]}(")
    held = re.search(r"holds (\d+) blocks", message)
    state = STATE.fullmatch(said[-1])
    if held is None or state is None:
        return state is not None
    groups = ast.literal_eval(state[2])[about[0].split(", ")[1].strip()]
    return any(len(set(group) - {0}) == int(held[1]) for group in groups)
