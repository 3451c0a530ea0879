"""Implementations in other processes: what one of them does wrong costs one case, and is named."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import TESTS, kvconform
from kvconform.conformance import process as process_module
from kvconform.conformance.cases import Case
from kvconform.conformance.implementations import AddressError, prepare
from kvconform.conformance.messages import Job
from kvconform.conformance.process import BrokenExchange, Fell, ProcessImplementation
from kvconform.conformance.report.document import Result
from kvconform.conformance.running import OpeningError, Run, replay, run
from kvconform.conformance.selection import find_pairs
from kvconform.properties.sampling import TooSlow, time_limit
from kvconform.reference.interface import Refused, Unsupported
from kvconform.reference.specs import FullAttention, Mamba, SlidingWindow

SCRIPT = TESTS / "misbehaving.py"
BREAKING = "page/real-is-unpadded"
LAWS = f"page/positive,page/padding-is-exact,{BREAKING}"
KINDS = "full_attention,sliding_window"
SPEC = FullAttention(block_size=16, num_kv_heads=2, head_size=64, dtype="float16")
PAGE = 16 * 2 * 128 * 2


def address(mode: str, *more: str) -> str:
    return f"process:{shlex.join([sys.executable, str(SCRIPT), mode, *more])}"


def job(mode: str, *more: str) -> Job:
    return Job(implementation=prepare(address(mode, *more)), examples=10, seconds_per_run=1.0)


def run_some(mode: str, *more: str, jobs: int = 1) -> Run:
    return run(job(mode, *more), find_pairs(LAWS, KINDS), jobs=jobs)


def verdicts(done: Run) -> dict[tuple[str, str], str]:
    return {(result.law, result.kind): result.verdict for result in done.results}


def broken(done: Run) -> Result:
    return next(result for result in done.results if result.verdict == "broken")


@pytest.fixture
def opened(request: pytest.FixtureRequest) -> Iterator[ProcessImplementation]:
    """The misbehaving adapter in the mode of the parameter."""
    implementation = ProcessImplementation([sys.executable, str(SCRIPT), request.param], seconds_per_ask=5)
    yield implementation
    implementation.kill()


BREAKS = {
    "dies": "the process ended with exit status 3",
    "killed": "the process was killed by SIGSEGV",
    "hangs": "no answer within 0.6 s",
    "stops_in_half": "the process ended with exit status 0 in the middle of a line",
    "closes_output": "the process closed its output",
    "floods_for_ever": "no answer within 0.6 s",
    "rubbish": "no JSON: JSON is malformed: invalid character (byte 0)",
    "bytes": "no JSON: JSON is malformed: invalid character (byte 0)",
    "out_of_order": "an answer to ask ",
    "no_id": "no result: Object missing required field `id`",
    "no_outcome": "no reply: wanted one of result, refused, unsupported, error, got none",
    "two_outcomes": "no reply: wanted one of result, refused, unsupported, error, got result and refused",
    "more": "no result: Object contains unknown field `extra`",
    "list": "no JSON object",
}


@pytest.mark.parametrize("mode", BREAKS)
def test_what_breaks_an_exchange_costs_its_law_and_is_named(mode: str) -> None:
    done = run_some(mode)
    assert {law for (law, _), verdict in verdicts(done).items() if verdict == "broken"} == {BREAKING}
    assert [verdict for (law, _), verdict in verdicts(done).items() if law != BREAKING] == ["held"] * 4
    result = broken(done)
    assert result.message.startswith("BrokenExchange: ask ")
    assert f"(real_page_size_bytes): {BREAKS[mode]}" in result.message
    assert '; sent {"command":"ask","id":' in result.message
    assert result.asked[-1].operation == "real_page_size_bytes"
    assert result.asked[-1].answer == "no answer"
    assert result.asked[-1].location == "misbehaving.py:1"
    assert not result.crashed
    if mode == "dies":
        again = replay(job(mode), Case(result.law, result.kind, result.case)).results[0]
        assert (again.verdict, again.case) == ("broken", result.case)
        assert "last words" in done.stderr[f"{BREAKING} full_attention"]


def test_an_answer_too_many_is_met_by_the_next_question() -> None:
    done = run_some("says_twice")
    assert len(done.results) == 6
    assert "an answer to ask " in broken(done).message


FALLS = {
    "float": "Malformed: real_page_size_bytes: wanted an integer, got ",
    "beyond": "wanted integers beyond 2^53 as decimal strings, got the number 9007199254740993",
    "null": "real_page_size_bytes: wanted an integer, got None",
    "error": "Fell: ZeroDivisionError: by zero",
}


@pytest.mark.parametrize("mode", FALLS)
def test_an_error_or_an_answer_of_another_type_is_broken_and_made_small(mode: str) -> None:
    done = run_some(mode)
    assert {law for (law, _), verdict in verdicts(done).items() if verdict == "broken"} == {BREAKING}
    result = broken(done)
    assert FALLS[mode] in result.message
    assert result.case["spec.block_size"] == 1
    # What an adapter garbles says nothing of the implementation behind it.
    assert result.crashed == (mode == "error")


def test_questions_are_counted_alike_on_any_number_of_workers() -> None:
    done = run_some("right")
    # Each run of a law asks at least once.
    assert done.questions >= sum(result.examples for result in done.results) > 0
    assert run_some("right", jobs=2).questions == done.questions
    assert done.seconds > 0


def test_refusals_and_lacks_are_answers() -> None:
    refusing = run_some("refuses")
    assert {law for (law, _), verdict in verdicts(refusing).items() if verdict == "violated"} == {BREAKING}
    lacking = [result for result in run_some("lacks").results if result.law == BREAKING]
    assert {(result.verdict, result.message) for result in lacking} == {("unsupported", "mode NONE")}


def test_standard_error_is_drained_and_is_no_verdict() -> None:
    done = run_some("floods")
    assert set(verdicts(done).values()) == {"held"}
    assert done.stderr == {}


def test_one_death_is_one_broken_law(tmp_path: Path) -> None:
    done = run_some("once", str(tmp_path / "died"))
    assert sorted(verdicts(done).values()) == ["broken", "held", "held", "held", "held", "held"]
    assert "held when asked again" in broken(done).message


STARTS = {
    "start_version": "start: it speaks protocol 2, and kvconform 1",
    "start_error": "start: it cannot begin: no licence",
    "start_kind": "start: unknown kind 'full_atention' (did you mean full_attention?)",
    "start_operation": "start: unknown operation 'page_size_byte' (did you mean page_size_bytes?)",
    "start_field": "start: full_attention has no field 'width'",
    "start_lacking": "start: full_attention lacks the field 'num_kv_heads', which every one has",
    "start_more": "start: no capabilities: Object contains unknown field `more`",
    "start_dies": "start: the process ended with exit status 3: last words",
}


@pytest.mark.parametrize("mode", STARTS)
def test_what_does_not_start_is_broken_and_named(mode: str) -> None:
    with pytest.raises(OpeningError) as caught:
        run_some(mode)
    assert STARTS[mode] in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_start_that_is_never_answered_is_given_up() -> None:
    with pytest.raises(BrokenExchange, match=r"start: no answer within 0.3 s"):
        ProcessImplementation([sys.executable, str(SCRIPT), "start_hangs"], opening_seconds=0.3)


@pytest.mark.parametrize("opened", ["dies"], indirect=True)
def test_no_more_starts_are_tried_after_some_that_failed(opened: ProcessImplementation) -> None:
    opened.command = (sys.executable, str(SCRIPT), "start_dies")
    with pytest.raises(BrokenExchange, match="real_page"):
        opened.real_page_size_bytes(SPEC)
    for _ in range(process_module.MOST_FAILED_STARTS):
        with pytest.raises(BrokenExchange, match="start"):
            opened.page_size_bytes(SPEC)
    opened.command = ("nothing", "of", "this", "name")
    with pytest.raises(BrokenExchange, match="start"):
        opened.page_size_bytes(SPEC)


@pytest.mark.parametrize("opened", ["hangs"], indirect=True)
def test_an_interrupted_question_leaves_no_late_answer(opened: ProcessImplementation) -> None:
    started = time.monotonic()
    with pytest.raises(TooSlow), time_limit(0.2):
        opened.real_page_size_bytes(SPEC)
    assert time.monotonic() - started < 2
    assert opened.page_size_bytes(SPEC) == PAGE


@pytest.mark.parametrize("opened", ["dies"], indirect=True)
def test_starting_anew_is_not_on_the_clock_of_a_run(opened: ProcessImplementation) -> None:
    late = f"import runpy, time; time.sleep(0.6); runpy.run_path({str(SCRIPT)!r}, run_name='__main__')"
    opened.command = (sys.executable, "-c", late, "right")
    with pytest.raises(BrokenExchange):
        opened.real_page_size_bytes(SPEC)
    signs: list[float] = []
    with time_limit(0.5):
        opened.revive(lambda: signs.append(time.monotonic()))
        assert opened.page_size_bytes(SPEC) == PAGE
    assert signs


@pytest.mark.parametrize("opened", ["right"], indirect=True)
def test_only_what_it_has_is_asked(opened: ProcessImplementation) -> None:
    mamba = Mamba(block_size=16, shapes=((2, 3),), dtypes=("float32",))
    slid = SlidingWindow(block_size=16, num_kv_heads=1, head_size=8, dtype="float16", sliding_window=8)
    with pytest.raises(Unsupported, match=r"^kind mamba$"):
        opened.page_size_bytes(mamba)
    with pytest.raises(Unsupported, match=r"^operation construct$"):
        opened.construct(SPEC)
    with pytest.raises(Unsupported, match=r"^field sliding_window.extra_retained_tokens$"):
        opened.page_size_bytes(SlidingWindow(**{**vars(slid), "extra_retained_tokens": 1}))
    assert opened.page_size_bytes(slid) == 16 * 16 * 2
    assert opened.ask_all([("page_size_bytes", {"spec": SPEC}), ("construct", {"spec": SPEC})])[0] == PAGE


@pytest.mark.parametrize("opened", ["batch_reversed", "refuses", "error"], indirect=True)
def test_a_batch_is_answered_in_order(opened: ProcessImplementation, request: pytest.FixtureRequest) -> None:
    asks = [("page_size_bytes", {"spec": SPEC}), ("real_page_size_bytes", {"spec": SPEC})]
    if request.node.callspec.id == "batch_reversed":
        with pytest.raises(BrokenExchange, match=r"batch, ask 1 \(page_size_bytes\): an answer to ask 2"):
            opened.ask_all(asks)
        return
    page, odd = opened.ask_all(asks)
    assert page == PAGE
    assert isinstance(odd, Refused | Fell)
    assert opened.ask_all([]) == []


@pytest.mark.parametrize("opened", ["stays"], indirect=True)
def test_a_process_that_does_not_stop_is_ended(
    opened: ProcessImplementation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvconform.conformance.channel.GRACE_SECONDS", 1.0)
    with pytest.raises(BrokenExchange, match="stop: no answer within 1 s"):
        opened.close()


@pytest.mark.parametrize("opened", ["never_ends_a_line"], indirect=True)
def test_a_line_without_end_does_not_fill_the_memory(
    opened: ProcessImplementation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvconform.conformance.channel.LONGEST_LINE", 1 << 22)
    with pytest.raises(BrokenExchange, match="bytes without an end of line"):
        opened.real_page_size_bytes(SPEC)


def test_a_process_is_told_to_stop_when_a_run_ends(tmp_path: Path) -> None:
    assert set(verdicts(run_some("saves", str(tmp_path / "saved"))).values()) == {"held"}
    assert (tmp_path / "saved").exists()


def test_a_run_leaves_no_process_behind(tmp_path: Path) -> None:
    # By this argument they are told from those of tests that run beside this one.
    mark = str(tmp_path / "mark")
    for mode in ("right", "closes_output"):
        assert len(run_some(mode, mark).results) == 6
    time.sleep(0.1)
    left = [
        entry
        for entry in Path("/proc").iterdir()
        if entry.name.isdecimal() and mark.encode() in _command_line(entry)
    ]
    for entry in left:
        os.kill(int(entry.name), signal.SIGKILL)
    assert left == []


def _command_line(entry: Path) -> bytes:
    try:
        return (entry / "cmdline").read_bytes()
    except OSError:
        return b""


@pytest.mark.parametrize(
    ("named", "options", "message"),
    [
        ("process:", {}, "write process:COMMAND"),
        ("process:'", {}, "No closing quotation"),
        ("process:no-such-program x", {}, "no program 'no-such-program' can be run"),
        ("process:true", {"imports": ["x"]}, "not for process:COMMAND"),
        ("process:true", {"python": "python3"}, "not for process:COMMAND"),
        ("reference", {"python": "python3"}, "--python is for vllm"),
        ("vllm", {"python": "/no/python"}, "--python: no program '/no/python' can be run"),
        ("reference", {"imports": ["a-b"]}, "--import a-b: not the name of a module"),
    ],
)
def test_what_cannot_be_had_is_said_in_a_line(named: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(AddressError) as caught:
        prepare(named, **options)  # type: ignore[arg-type]
    assert message in str(caught.value)


def test_a_module_is_imported_first_and_is_in_the_line_that_reproduces(tmp_path: Path) -> None:
    (tmp_path / "patching.py").write_text(
        "from kvconform.reference.plain import Plain\n"
        "Plain.real_page_size_bytes = lambda self, spec: self.unpadded_page_size_bytes(spec) + 1\n"
    )
    few = ("--laws", BREAKING, "--kinds", "full_attention", "--examples", "3")
    ended = kvconform("run", "reference", "--import", "patching", *few, cwd=tmp_path)
    assert ended.returncode == 1, ended.stderr
    line = next(line for line in ended.stdout.splitlines() if line.startswith("kvconform replay"))
    assert line.startswith("kvconform replay reference --import patching '{")
    again = kvconform(*shlex.split(line)[1:], cwd=tmp_path)
    assert again.returncode == 1, again.stderr
    absent = kvconform("run", "reference", "--import", "absent", *few, cwd=tmp_path)
    assert (absent.returncode, absent.stderr) == (
        2,
        "kvconform: --import absent: No module named 'absent'\n",
    )
