"""The command line as a person meets it: what it prints, where, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commands import environment, kvconform
from kvconform.conformance.selection import find_laws, find_pairs

FEW = (
    "--laws",
    "page/padding-is-exact,page/positive,resize/same-is-identity",
    "--kinds",
    "mla_attention,mamba",
)
QUICK = (*FEW, "--examples", "10")


def test_what_conforms_ends_with_0(tmp_path: Path) -> None:
    ended = kvconform("run", "python:faulty:Conforming", *QUICK, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""
    lines = [line.split() for line in ended.stdout.splitlines()]
    assert ["page/padding-is-exact", "mamba,", "mla_attention", "20"] in lines or [
        *("page/padding-is-exact", "mla_attention,", "mamba", "20")
    ] in lines
    assert "python:faulty:Conforming (conforming 1.2): conforms\n6 of 6 pairs" in ended.stdout
    assert os.listdir(tmp_path) == []


def test_a_violation_can_be_pasted_to_see_it_again(tmp_path: Path) -> None:
    ended = kvconform("run", "python:faulty:Smaller", *QUICK, cwd=tmp_path)
    assert ended.returncode == 1
    (law,) = find_laws("page/padding-is-exact")
    assert law.sentence in ended.stdout
    got = next(
        line.strip() for line in ended.stdout.splitlines() if line.strip().startswith("page bytes: got")
    )
    assert got.endswith("= padding asked for")
    (line,) = (line for line in ended.stdout.splitlines() if line.startswith("kvconform replay "))
    pasted = subprocess.run(
        line, shell=True, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False
    )
    assert pasted.returncode == 1
    assert pasted.stderr == ""
    # The same in every word: law, sentence, got and wanted, case, what was asked, line and script.
    assert pasted.stdout.rstrip() in ended.stdout
    held = subprocess.run(
        line.replace(":Smaller", ":Conforming"),
        shell=True,
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert held.returncode == 0
    assert held.stdout.startswith("HELD  page/padding-is-exact")


def test_what_breaks_ends_with_4_and_the_rest_is_judged(tmp_path: Path) -> None:
    selected = ("--laws", "page/real-is-unpadded,page/positive", "--kinds", "mamba,mla_attention")
    ended = kvconform(
        "run", "python:faulty:Exiting", *selected, "--examples", "5", "--json", "r", cwd=tmp_path
    )
    assert ended.returncode == 4
    assert "BROKEN  page/real-is-unpadded  (agreement)  mla_attention" in ended.stdout
    assert "last words" in ended.stdout
    report = json.loads((tmp_path / "r").read_text())
    assert [result["verdict"] for result in report["results"]] == ["broken", "held", "held"]
    assert (report["complete"], report["exit"]) == (True, 4)
    replayed = subprocess.run(
        report["results"][0]["reproduce"],
        shell=True,
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert replayed.returncode == 4
    assert "the process ended with exit status 3" in replayed.stdout


def test_severities_that_do_not_count_do_not_fail(tmp_path: Path) -> None:
    ended = kvconform("run", "python:faulty:Smaller", *QUICK, "--fail-on", "safety", cwd=tmp_path)
    assert ended.returncode == 0
    assert "VIOLATED  page/padding-is-exact  (agreement)" in ended.stdout
    assert "agreement*" in ended.stdout


def test_the_report_alone_on_standard_output(tmp_path: Path) -> None:
    ended = kvconform("run", "python:faulty:Noisy", *QUICK, "--json", "-", cwd=tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    report = json.loads(ended.stdout)
    assert len(report["results"]) == report["selected"] == 6
    assert report["implementation"]["address"] == "python:faulty:Noisy"


def test_two_runs_write_the_same_report(tmp_path: Path) -> None:
    for name, jobs in {"a": "1", "b": "2"}.items():
        run = ("run", "python:faulty:Smaller", *QUICK, "--seed", "5", "--jobs", jobs, "--json", name)
        assert kvconform(*run, cwd=tmp_path).returncode == 1
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_replay_reads_files_and_standard_input(tmp_path: Path) -> None:
    case = '{"law":"page/exact-at-scale","kind":"mamba","given":{"past":2147483648,"extra":0}}'
    (tmp_path / "case.json").write_text(case)
    from_file = kvconform("replay", "reference", "case.json", cwd=tmp_path)
    from_stdin = kvconform("replay", "reference", "-", cwd=tmp_path, stdin=case)
    assert from_file.returncode == from_stdin.returncode == 0
    assert from_file.stdout == from_stdin.stdout
    assert from_file.stdout.startswith("HELD  page/exact-at-scale")


def test_replaying_what_cannot_be_asked_is_inconclusive(tmp_path: Path) -> None:
    case = '{"law":"page/aligned","kind":"mla_attention","given":{}}'
    ended = kvconform("replay", "python:faulty:Poor", case, cwd=tmp_path)
    assert ended.returncode == 3
    assert "field mla_attention.alignment" in ended.stdout


CASE = '{"law":"page/exact-at-scale","kind":"mamba","given":{"past":7,"extra":0}}'


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ([], "name a command"),
        (["frobnicate"], "No such command 'frobnicate'"),
        (["run"], "Missing argument 'IMPLEMENTATION'"),
        (["run", "reference", "more"], "unexpected extra argument"),
        (["run", "reference", "--frob"], "No such option: --frob"),
        (["run", "nosuch"], "unknown implementation 'nosuch'; use reference, vllm, "),
        (["run", ""], "unknown implementation ''"),
        (["run", "vllm==zero"], "'zero' is not a version of vLLM"),
        (["run", "vllm=="], "is not a version of vLLM"),
        (["run", "vllm@nowhere"], "nowhere holds no vllm package"),
        (["run", "process:no-such-program"], "no program 'no-such-program' can be run"),
        (["run", "miniature:window-without-plus"], "did you mean window-without-plus-one"),
        (["run", "python:faulty"], "write python:MODULE:ATTRIBUTE"),
        (["run", "python::x"], "write python:MODULE:ATTRIBUTE"),
        (["run", "python:../x:y"], "write python:MODULE:ATTRIBUTE"),
        (["run", "python:nosuchmodule:x"], "No module named 'nosuchmodule'"),
        (["run", "python:faulty:nosuch"], "faulty has no attribute nosuch"),
        (["run", "python:faulty:number"], "number is neither an Implementation nor"),
        (["run", "reference", "--laws", "page/positiv"], "did you mean page/positive"),
        (
            ["run", "reference", "--kinds", "mla"],
            "unknown kind 'mla' (did you mean sliding_window_mla or mla_attention?); the kinds: full_",
        ),
        (["run", "reference", "--laws", "page/aligned", "--kinds", "mamba"], "is about mamba"),
        (["run", "reference", "--fail-on", "fatal"], "unknown severity 'fatal'"),
        (
            ["run", "reference", "--profile", "slow"],
            "unknown profile 'slow'; the profiles: quick, gate, deep",
        ),
        (["run", "reference", "--engine", "guess"], "unknown engine 'guess'"),
        (["run", "reference", "--examples", "0"], "'--examples'"),
        (["run", "reference", "--seed", "x"], "'--seed'"),
        (["run", "reference", "--jobs", "-1"], "'--jobs'"),
        (["run", "reference", "--json", "no/such/file"], "no/such/file: the report cannot be written there"),
        (["run", "reference", "--json", "."], ".: the report cannot be written there: Is a directory"),
        (["replay", "reference", "{"], "the case: "),
        (["replay", "reference", "nosuch.json"], "nosuch.json: cannot be read as a case"),
        (["replay", "reference", CASE], "past: wanted one of 2147483648, 9007199254740992; the case has 7"),
        (["replay", "nosuch", CASE], "unknown implementation"),
        (["replay", "reference", CASE, "--profile", "x"], "unknown profile 'x'"),
        (["laws", "page/nosuch"], "no law matches 'page/nosuch'"),
    ],
)
def test_bad_input_is_one_line_and_2(tmp_path: Path, command: list[str], why: str) -> None:
    ended = kvconform(*command, cwd=tmp_path)
    assert ended.returncode == 2, ended.stderr
    assert ended.stdout == ""
    (line,) = ended.stderr.splitlines()
    assert line.startswith("kvconform: ")
    assert why in line
    assert os.listdir(tmp_path) == []


def test_an_implementation_that_falls_over_when_opened_is_one_line_and_4(tmp_path: Path) -> None:
    ended = kvconform("run", "python:faulty:fallen", *QUICK, cwd=tmp_path)
    assert ended.returncode == 4
    assert len(ended.stderr.splitlines()) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_reports_what_it_has(tmp_path: Path, number: signal.Signals) -> None:
    selected = ("--laws", "page/unpadded-formula,page/positive", "--kinds", "mla_attention,mamba")
    slow = tmp_path / "slow"
    running = subprocess.Popen(
        ["kvconform", "run", "python:faulty:Slow", *selected, "--jobs", "1", "--json", "report"],
        cwd=tmp_path,
        env=environment(FAULTY_SLOW=str(slow)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for(lambda: slow.exists() and slow.read_text() != "")
    running.send_signal(number)
    stdout, stderr = running.communicate(timeout=30)
    assert running.returncode == 3, stderr
    assert stderr == "kvconform: interrupted after 1 of 3\n"
    assert "python:faulty:Slow (reference base): incomplete\n1 of 3 pairs" in stdout
    report = json.loads((tmp_path / "report").read_text())
    assert (report["complete"], report["exit"], report["selected"]) == (False, 3, 3)
    assert [result["law"] for result in report["results"]] == ["page/unpadded-formula"]
    wait_for(lambda: not is_running(int(slow.read_text())))


def test_no_worker_outlives_a_killed_run(tmp_path: Path) -> None:
    slow = tmp_path / "slow"
    running = subprocess.Popen(
        ["kvconform", "run", "python:faulty:Slow", "--laws", "page/positive", "--jobs", "1"],
        cwd=tmp_path,
        env=environment(FAULTY_SLOW=str(slow)),
        stdout=subprocess.DEVNULL,
    )
    wait_for(lambda: slow.exists() and slow.read_text() != "")
    worker = int(slow.read_text())
    running.kill()
    running.wait()
    wait_for(lambda: not is_running(worker))


def is_running(process: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False


def wait_for(condition: object) -> None:
    assert callable(condition)
    until = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_a_reader_that_goes_away_changes_nothing(tmp_path: Path) -> None:
    ended = subprocess.run(
        "kvconform laws | head -1; exit ${PIPESTATUS[0]}",
        shell=True,
        executable="/bin/bash",
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")


def test_laws_are_listed_and_explained(tmp_path: Path) -> None:
    listed = kvconform("laws", cwd=tmp_path).stdout
    for law in find_laws():
        assert f"\n{law.id} " in listed
    assert f"{len(find_laws())} laws" in listed
    (law,) = find_laws("page/padded-covers-unpadded")
    explained = kvconform("laws", law.id, cwd=tmp_path).stdout
    for part in (law.id, law.severity, "kvcached#399", law.location, "mla_attention", "page_size_bytes"):
        assert part in explained
    assert law.explanation.splitlines()[-1] in explained


def test_help_loads_no_more_than_it_needs() -> None:
    program = (
        "import sys; import kvconform.conformance.cli\n"
        "print([name for name in ('torch', 'z3', 'hypothesis', 'vllm', 'msgspec', 'asyncio', 'rich')"
        " if name in sys.modules])"
    )
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert loaded.stdout == "[]\n"


def test_a_run_keeps_what_laws_need_out_of_the_parent(tmp_path: Path) -> None:
    program = (
        "import sys; from kvconform.conformance.cli import app\n"
        "command = ['run', 'reference', '--laws', 'page/positive', '--examples', '2']\n"
        "code = app(command, standalone_mode=False)\n"
        "print(code, [name for name in ('torch', 'z3', 'hypothesis', 'vllm') if name in sys.modules])"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert loaded.stdout.splitlines()[-1] == "0 []"


def test_the_version(tmp_path: Path) -> None:
    ended = kvconform("--version", cwd=tmp_path)
    assert ended.returncode == 0
    assert ended.stdout.startswith("kvconform ")


def test_every_pair_of_the_catalogue_is_accounted_for(tmp_path: Path) -> None:
    ended = kvconform("run", "reference", "--examples", "1", "--json", "-", cwd=tmp_path)
    report = json.loads(ended.stdout)
    pairs = [(law.id, kind) for law, kind in find_pairs()]
    assert [(result["law"], result["kind"]) for result in report["results"]] == pairs
    assert report["complete"] is True
