"""Running laws in worker processes: every pair is accounted for, whatever one does to its process."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from commands import TESTS
from kvconform.conformance import recording, running
from kvconform.conformance.cases import BadCase, Case
from kvconform.conformance.implementations import AddressError, prepare
from kvconform.conformance.messages import Job
from kvconform.conformance.report.document import Result
from kvconform.conformance.running import OpeningError, Run, replay, run
from kvconform.conformance.selection import SelectionError, find_laws, find_pairs, find_severities

LAWS = "page/positive,page/real-is-unpadded,resize/same-is-identity"
KINDS = "full_attention,mla_attention"
BREAKING = "page/real-is-unpadded"


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(TESTS))


def job(name: str, *, examples: int = 15, seed: int = 0, seconds: float = 1.0) -> Job:
    prepared = prepare(name if name == "reference" else f"python:faulty:{name}")
    return Job(implementation=prepared, examples=examples, seed=seed, seconds_per_run=seconds)


def run_some(name: str, *, jobs: int = 2, examples: int = 15, seed: int = 0) -> Run:
    return run(job(name, examples=examples, seed=seed), find_pairs(LAWS, KINDS), jobs=jobs)


def verdicts(done: Run) -> dict[tuple[str, str], str]:
    return {(result.law, result.kind): result.verdict for result in done.results}


def the_first(done: Run, verdict: str) -> Result:
    return next(result for result in done.results if result.verdict == verdict)


@pytest.mark.parametrize("jobs", [1, 2, 5])
def test_every_pair_is_accounted_for_in_order(jobs: int) -> None:
    pairs = find_pairs("page/p*,merge/*")
    counted: list[int] = []
    done = run(job("reference", examples=3), pairs, jobs=jobs, progress=counted.append)
    assert [(result.law, result.kind) for result in done.results] == [(law.id, kind) for law, kind in pairs]
    assert counted == list(range(1, len(pairs) + 1))
    assert (done.subject.name, done.subject.version) == ("reference", "base")
    assert not done.interrupted


def test_a_seed_finds_the_same_on_any_number_of_workers() -> None:
    once = run_some("Smaller", jobs=1, seed=3)
    assert run_some("Smaller", jobs=2, seed=3).results == once.results
    pairs = find_pairs("page/padding-is-exact,page/p*", KINDS)
    violated = run(job("Smaller", seed=3), pairs, jobs=1).results
    assert "violated" in {result.verdict for result in violated}
    assert run(job("Smaller", seed=3), tuple(reversed(pairs)), jobs=2).results == tuple(reversed(violated))


def test_another_seed_draws_other_inputs() -> None:
    pairs = find_pairs(BREAKING, "mla_attention")
    # Not shrunk, since the process ends at the first case that fails.
    cases = [run(job("Dropping", seed=seed), pairs, jobs=1).results[0].case for seed in (1, 1, 2)]
    assert cases[0] == cases[1]
    assert cases[1] != cases[2]


@pytest.mark.parametrize(
    ("name", "message", "answer"),
    [
        ("Raising", "KeyError: 'page'", "raised KeyError: 'page'"),
        ("Exiting", "the process ended with exit status 3", "no answer"),
        ("Killed", "the process was killed by SIGSEGV", "no answer"),
        ("Leaving", "SystemExit: leaving", "no answer"),
        ("Sleeping", "no answer within 1 s", "no answer"),
    ],
)
def test_what_breaks_costs_its_own_law_only(name: str, message: str, answer: str) -> None:
    done = run_some(name)
    assert {law for (law, _), verdict in verdicts(done).items() if verdict == "broken"} == {BREAKING}
    assert {verdict for (law, _), verdict in verdicts(done).items() if law != BREAKING} == {"held"}
    assert len(done.results) == 6
    broken = the_first(done, "broken")
    assert broken.message == message
    assert broken.case["spec.block_size"] == (24 if name == "Raising" else 1)
    assert [asked.answer for asked in broken.asked][-1] == answer
    assert broken.asked[-1].operation == "real_page_size_bytes"
    assert broken.reproduce.startswith(f"kvconform replay python:faulty:{name} ")
    again = replay(job(name), Case(broken.law, broken.kind, broken.case)).results[0]
    assert (again.verdict, again.message, again.case) == ("broken", message, broken.case)
    # Only an exception over a question is the implementation's own, for certain.
    assert broken.crashed == again.crashed == (name == "Raising")


def test_an_exception_of_the_law_or_of_a_wrong_signature_is_no_crash_of_the_implementation() -> None:
    for name in ("Misshapen", "Wordy"):
        result = the_first(run_some(name), "broken")
        assert result.law == BREAKING
        assert result.message.startswith("TypeError: ")
        assert not result.crashed


@pytest.mark.parametrize(
    ("file", "crash"),
    [
        ("/elsewhere/spec.py", True),
        (recording.QUESTION, False),
        (str(Path(recording.__file__).parent / "adapters" / "vllm.py"), False),
    ],
)
def test_what_an_adapter_asks_wrongly_is_no_crash_of_the_implementation(file: str, crash: bool) -> None:
    adapter = Path(recording.__file__).parent / "adapters" / "vllm.py"
    assert f'"{recording.QUESTION}", "eval"' in adapter.read_text(encoding="utf-8")
    with pytest.raises(TypeError) as raised:
        exec(compile("len(1)", file, "exec"))
    asked = [recording.Call("construct", {}), recording.Call("page_size_bytes", {}, raised.value)]
    assert recording.is_crash(raised.value, asked) == crash
    assert not recording.is_crash(raised.value, asked[:1])
    assert not recording.is_crash(raised.value, [])


def test_a_hang_that_cannot_be_interrupted_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "GRACE_SECONDS", 0.5)
    done = run_some("Deaf")
    assert {law for (law, _), verdict in verdicts(done).items() if verdict == "broken"} == {BREAKING}
    assert len(done.results) == 6
    broken = the_first(done, "broken")
    assert broken.message == "no answer within 1.5 s, and no way to interrupt it"
    assert broken.case["spec.block_size"] == 1
    assert not workers()


def workers() -> list[str]:
    """The worker processes that this one has."""
    mine = subprocess.run(
        ["ps", "--ppid", str(os.getpid()), "-o", "args"], capture_output=True, text=True, check=True
    )
    return [line for line in mine.stdout.splitlines() if "conformance.worker" in line]


def test_a_worker_that_is_slow_but_alive_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    monkeypatch.setenv("FAULTY_SLOW", str(tmp_path_factory.mktemp("slow") / "pid"))
    monkeypatch.setattr(running, "GRACE_SECONDS", 1.5)
    # Ten answers of 0.3 s: more than the limit of 2.5 s in all, less than it between two signs of life.
    done = run(job("Slow", examples=10), find_pairs("page/positive", "full_attention"), jobs=1)
    assert [result.verdict for result in done.results] == ["held"]


def test_what_is_printed_by_a_broken_law_is_kept_with_it() -> None:
    done = run_some("Exiting")
    assert done.stderr == {f"{BREAKING} {kind}": "last words\n" for kind in KINDS.split(",")}
    assert "faulty.py" in next(iter(run_some("Raising").stderr.values()))


def test_what_an_implementation_prints_disturbs_nothing() -> None:
    noisy = run_some("Noisy")
    assert set(verdicts(noisy).values()) == {"held"}
    assert noisy.stderr == {}


def test_another_answer_to_the_same_question_is_broken() -> None:
    broken = the_first(run_some("Wavering"), "broken")
    assert broken.law == BREAKING
    assert "when asked again" in broken.message or "differently" in broken.message


def test_an_answer_that_cannot_be_written_is_still_reported() -> None:
    violated = the_first(run_some("Strange"), "violated")
    assert "\\ud800" in violated.message
    assert violated.asked[0].answer == "a Unprintable that cannot be printed: ValueError"


def test_what_is_missing_is_named_and_not_asked() -> None:
    done = run(job("Poor"), find_pairs("resize/same-is-identity,page/aligned", "mla_attention"), jobs=1)
    assert [(result.verdict, result.message, result.engines) for result in done.results] == [
        ("unsupported", "field mla_attention.alignment", ("sample",)),
        ("unsupported", "operation copy_with_new_block_size", ("sample",)),
    ]


def test_an_implementation_that_cannot_say_what_it_has_is_broken() -> None:
    done = run_some("Unreadable")
    assert {result.message for result in done.results} == {"LookupError: kinds"}
    assert {result.verdict for result in done.results} == {"broken"}


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("Nameless", "Nameless does not define kinds, fields, operations"),
        ("Misspelt", "unknown operation 'page_size_byte' (did you mean page_size_bytes?)"),
        ("Widthless", "full_attention lacks the field 'head_size', which every one has"),
    ],
)
def test_what_an_implementation_says_it_has_must_be_there_to_have(name: str, why: str) -> None:
    with pytest.raises(AddressError, match=re.escape(f"python:faulty:{name}: {why}")):
        run_some(name)


def test_a_violation_carries_all_that_a_report_needs() -> None:
    pairs = find_pairs("page/padding-is-exact", "mla_attention")
    (result,) = run(job("Smaller"), pairs, jobs=1).results
    assert result.verdict == "violated"
    assert result.severity == "agreement"
    assert result.message.endswith("= padding asked for")
    assert [(asked.operation, asked.answer) for asked in result.asked] == [("page_size_bytes", "1")]
    file, _, line = result.asked[0].location.partition(":")
    assert file == "reference/pages.py"
    assert int(line) > 0
    assert result.script.startswith(f"# {result.message}\nprint('page_size_bytes', ['spec'], 1)")


def test_replaying_tells_what_holds_from_what_does_not() -> None:
    pairs = find_pairs("page/padding-is-exact", "mla_attention")
    (violated,) = run(job("Smaller"), pairs, jobs=1).results
    case = Case(violated.law, violated.kind, violated.case)
    (again,) = replay(job("Smaller"), case).results
    assert (again.verdict, again.message, again.asked, again.script) == (
        "violated",
        violated.message,
        violated.asked,
        violated.script,
    )
    (held,) = replay(job("Conforming"), case).results
    assert held.verdict == "held"


@pytest.mark.parametrize(
    ("law", "kind", "given", "why"),
    [
        ("page/nosuch", "mamba", {}, "unknown law 'page/nosuch'"),
        ("page/aligned", "mamba", {}, "page/aligned is not about mamba, but about"),
        ("page/exact-at-scale", "mamba", {}, "past: missing"),
        ("page/exact-at-scale", "mamba", {"past": 7, "extra": 0}, "past: wanted one of"),
        ("page/exact-at-scale", "mamba", {"past": 1 << 31, "extra": 0, "more": 0}, "more: in the case, but"),
        (
            "page/exact-at-scale",
            "mamba",
            {"past": 1 << 31, "extra": 1 << 21},
            "extra: wanted at most 1048576",
        ),
    ],
)
def test_a_case_that_is_none_of_the_laws_is_refused(
    law: str, kind: str, given: dict[str, int | str | bool | None], why: str
) -> None:
    find_laws()
    with pytest.raises(BadCase, match=why):
        replay(job("reference"), Case(law, kind, given))


def test_what_cannot_be_opened_says_why() -> None:
    pairs = find_pairs("page/positive", "mamba")
    for name, why in {
        "nosuch": "faulty has no attribute nosuch",
        "number": "neither an Implementation nor",
    }.items():
        with pytest.raises(AddressError, match=why):
            run(job(name), pairs, jobs=2)
    with pytest.raises(OpeningError, match=r"fell over while it was opened: ValueError: no such$"):
        run(job("fallen"), pairs, jobs=2)
    with pytest.raises(OpeningError, match=r"while it was opened, the process ended with exit status 5: bye"):
        run(job("vanish"), pairs, jobs=2)


def test_an_instance_is_as_good_as_a_class() -> None:
    done = run(job("made"), find_pairs("page/positive", "mamba"), jobs=1)
    assert set(verdicts(done).values()) == {"held"}


def test_selection() -> None:
    assert {law.area for law in find_laws("page")} == {"page"}
    assert [law.id for law in find_laws("page/positive, page/al*")] == ["page/aligned", "page/positive"]
    assert {kind for _, kind in find_pairs("page", "mamba")} == {"mamba"}
    assert len(find_pairs()) == sum(len(law.kinds) for law in find_laws())
    assert find_severities("economy,safety") == ("safety", "economy")


@pytest.mark.parametrize(
    ("laws", "kinds", "why"),
    [
        ("page/positiv", None, "no law matches 'page/positiv' .did you mean page/positive"),
        ("pages", None, "did you mean page"),
        ("page/*,zzz", None, "no law matches 'zzz'$"),
        (",", None, "no law named"),
        ("*", "mla_atention", "unknown kind 'mla_atention' .did you mean mla_attention"),
        ("*", "", "no kind named"),
        ("page/aligned", "mamba", "no law that matches 'page/aligned' is about mamba"),
    ],
)
def test_a_selection_of_what_does_not_exist_is_refused(laws: str, kinds: str | None, why: str) -> None:
    with pytest.raises(SelectionError, match=why):
        find_pairs(laws, kinds)


def test_an_unknown_severity_is_refused() -> None:
    with pytest.raises(SelectionError, match="unknown severity 'fatal'; the severities: safety"):
        find_severities("safety,fatal")
