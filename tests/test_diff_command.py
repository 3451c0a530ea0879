"""`kvconform diff` on the command line: what is proved, what it prints, and how it ends."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from commands import environment, kvconform
from releases import root_of

SERVED = f"process:{sys.executable} -m kvconform.conformance.adapters.serve reference"


def diffed(*arguments: str, cwd: Path, code: int) -> dict[str, Any]:
    done = kvconform("diff", *arguments, "--json", cwd=cwd)
    assert done.returncode == code, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def same_of(found: dict[str, Any], operation: str) -> dict[str, Any]:
    (entry,) = (each for each in found["same"] if each["operation"] == operation)
    return dict(entry)


def test_sameness_is_proved_over_the_code_of_both(tmp_path: Path) -> None:
    arguments = ("python:comparable:Reworded", "reference", "--kinds", "mamba", "--examples", "10")
    found = diffed(*arguments, cwd=tmp_path, code=0)
    assert found["complete"]
    page = same_of(found, "page_size_bytes")
    assert (page["verdict"], page["formula"], page["examples"]) == ("proved", "reference", 10)
    assert "spec.block_size: from 1 to 2^20" in page["domain"]
    assert same_of(found, "register_kv_cache_spec")["verdict"] == "held"


def test_two_that_depart_from_the_reference_alike_are_proved_the_same(tmp_path: Path) -> None:
    address = "python:comparable:AsStated"
    found = diffed(address, address, "--kinds", "sliding_window", "--examples", "10", cwd=tmp_path, code=0)
    formulas = {each["operation"]: each["formula"] for each in found["same"] if each["verdict"] == "proved"}
    assert formulas["max_blocks_per_request"] == "stated"
    assert formulas["copy_with_new_block_size"] == "stated"
    assert formulas["page_size_bytes"] == "reference"


RARE = ("reference", "python:comparable:Rare", "--kinds", "sliding_window", "--examples", "20")


def test_a_difference_that_only_the_prover_finds(tmp_path: Path) -> None:
    found = diffed(*RARE, cwd=tmp_path, code=1)
    page = next(each for each in found["different"] if each["operation"] == "page_size_bytes")
    assert page["case"]["spec.block_size"] == 1_000_003
    assert (page["left"], page["right"]) == ("4000012", "4000013")
    sampled = diffed(*RARE, "--engine", "sample", cwd=tmp_path, code=0)
    page = same_of(sampled, "page_size_bytes")
    assert (page["verdict"], page["not_proved"]) == ("held", "not asked for")


def test_what_runs_elsewhere_is_only_held(tmp_path: Path) -> None:
    found = diffed("reference", SERVED, "--kinds", "mamba", "--examples", "10", cwd=tmp_path, code=0)
    page = same_of(found, "page_size_bytes")
    assert page["verdict"] == "held"
    assert "runs in a process of its own" in page["not_proved"]


PATCH = """
from kvconform.reference.plain import Plain

def one_more(self, config, deployment, before=Plain.get_max_concurrency):
    return before(self, config, deployment) + 1

Plain.get_max_concurrency = one_more
"""


def test_a_plugin_of_one_side(tmp_path: Path) -> None:
    (tmp_path / "patch.py").write_text(PATCH)
    arguments = ("reference", "reference", "--import", "right:patch", "--kinds", "-", "--examples", "20")
    found = diffed(*arguments, cwd=tmp_path, code=1)
    assert (found["left"], found["right"]) == ("reference", "reference --import patch")
    (difference,) = found["different"]
    assert difference["operation"] == "get_max_concurrency"
    assert difference["direction"] == "more capacity"
    answers = []
    for line in difference["ask"]:
        done = subprocess.run(
            shlex.split(line), cwd=tmp_path, env=environment(), capture_output=True, text=True, check=True
        )
        answers.append(json.loads(done.stdout))
    assert "--import patch" in difference["ask"][1]
    assert answers[0] != answers[1]


def test_what_falls_over_on_both_sides_is_not_called_the_same(tmp_path: Path) -> None:
    address = "python:comparable:Falling"
    arguments = (address, address, "--kinds", "full_attention", "--examples", "10", "--engine", "sample")
    found = diffed(*arguments, cwd=tmp_path, code=3)
    assert {each["verdict"] for each in found["not_compared"]} == {"broken"}


def test_a_difference_says_which_side_keeps_the_safety_laws(tmp_path: Path) -> None:
    address = "miniature:window-without-plus-one"
    arguments = ("reference", address, "--kinds", "sliding_window", "--examples", "60", "--engine", "sample")
    found = diffed(*arguments, cwd=tmp_path, code=1)
    difference = next(each for each in found["different"] if each["operation"] == "max_blocks_per_request")
    verdicts = {each["law"]: (each["left"], each["right"]) for each in difference["safety"]}
    assert verdicts["bound/window-suffices"] == ("held", "violated")
    memory = next(each for each in found["different"] if each["operation"] == "max_memory_usage_bytes")
    assert "bound/window-suffices" in {each["law"] for each in memory["safety"]}, "it is blocks x page"


def test_the_terminal_and_markdown(tmp_path: Path) -> None:
    address = "python:comparable:Cautious"
    arguments = ("diff", "reference", address, "--kinds", "-,mamba", "--examples", "15")
    done = kvconform(*arguments, "--domains", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert "less capacity: fewer blocks from the same memory" in done.stdout
    assert "proved the same, both equal to the reference" in done.stdout
    assert "spec.block_size: from 1 to 2^20" in " ".join(done.stdout.split())
    assert f"reference against {address}: 1 difference" in done.stdout
    text = kvconform(*arguments, "--markdown", cwd=tmp_path).stdout
    assert "| get_kv_cache_configs | blocks | rank 0: blocks: 2 | rank 0: blocks: 1 | less capacity" in text
    assert "<details><summary>What each proof covers</summary>" in text
    assert "spec.block_size: from 1 to 2^20" in text


BAD: dict[str, list[str]] = {
    "unknown operation": ["ask", "reference", "page_bytes", "{}"],
    "the arguments of": ["ask", "reference", "page_size_bytes", '{"spec": 3}'],
    "no field": ["ask", "reference", "page_size_bytes", '{"spec": {"kind": "mamba", "heads": 3}}'],
    "unknown implementation": ["diff", "reference", "nonsense"],
    "choose one": ["diff", "reference", "reference", "--json", "--markdown"],
    "unknown engine": ["diff", "reference", "reference", "--engine", "magic"],
    "unknown kind": ["diff", "reference", "reference", "--kinds", "windows"],
    "neither side is a vLLM": ["diff", "reference", "reference", "--import", "plugin"],
    "right:python3": ["diff", "reference", "reference", "--python", "python3"],
    "for the left side": ["diff", "vllm", "vllm", "--python", "left:a", "--python", "left:b"],
    "unknown theorem": ["prove", "T13"],
}


@pytest.mark.parametrize("words", BAD)
def test_bad_input_is_one_line(words: str, tmp_path: Path) -> None:
    done = kvconform(*BAD[words], cwd=tmp_path)
    assert done.returncode == 2, done
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    if words != "no field":
        assert words in done.stderr


def test_what_cannot_be_opened_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "falling.py").write_text("raise RuntimeError('no')\n")
    done = kvconform("diff", "reference", "reference", "--import", "left:falling", cwd=tmp_path)
    assert done.returncode == 4, done
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr


@pytest.mark.release
def test_two_releases(tmp_path: Path) -> None:
    for version in ("0.25.1", "0.26.0"):
        root_of(version)
    found = diffed(
        *("vllm==0.25.1", "vllm==0.26.0", "--kinds", "sliding_window,mla_attention", "--examples", "60"),
        cwd=tmp_path,
        code=1,
    )
    assert found["complete"]
    window = next(
        each
        for each in found["different"]
        if each["operation"] == "max_blocks_per_request" and each["kind"] == "sliding_window"
    )
    assert window["direction"] == "more memory"
    assert {"law": "bound/in-flight-counts", "left": "violated", "right": "held"} in window["safety"]
    for version, answer in (("0.25.1", window["left"]), ("0.26.0", window["right"])):
        arguments = json.dumps(window["arguments"])
        asked = kvconform("ask", f"vllm=={version}", "max_blocks_per_request", arguments, cwd=tmp_path)
        assert asked.stdout.strip() == answer
    assert "mistral-7b-v0.1" in {effect["model"] for effect in found["effects"]["changed"]}
    pages = {
        each["kind"]: each["verdict"] for each in found["same"] if each["operation"] == "page_size_bytes"
    }
    assert pages == {"sliding_window": "proved", "mla_attention": "proved"}


@pytest.mark.release
def test_plans_of_two_releases(tmp_path: Path) -> None:
    for version in ("0.28.0", "0.33.0"):
        root_of(version)
    found = diffed(
        *("vllm==0.28.0", "vllm==0.33.0", "--kinds", "-", "--examples", "60"), cwd=tmp_path, code=1
    )
    plans = {
        (each["operation"], each["aspect"]): each
        for each in found["different"]
        if each["operation"] in ("get_kv_cache_configs", "estimate_max_model_len")
    }
    shorter = plans["estimate_max_model_len", "answer"]
    assert shorter["direction"] == "less capacity", "the null block is counted"
    blocks = plans["get_kv_cache_configs", "blocks"]
    for side, version in (("left", "0.28.0"), ("right", "0.33.0")):
        for difference, read in (
            (shorter, str),
            (blocks, lambda printed: f"rank 0: blocks: {printed[0]['num_blocks']}"),
        ):
            arguments = json.dumps(difference["arguments"])
            asked = kvconform("ask", f"vllm=={version}", difference["operation"], arguments, cwd=tmp_path)
            assert read(json.loads(asked.stdout)) in difference[side]


@pytest.mark.release
@pytest.mark.parametrize("version", ["0.28.0", "0.33.0"])
def test_a_release_is_like_itself(version: str, tmp_path: Path) -> None:
    root_of(version)
    address = f"vllm=={version}"
    kinds = "mla_attention,sink_full_attention,mamba,-"
    arguments = (address, address, "--kinds", kinds, "--examples", "60", "--engine", "sample")
    found = diffed(*arguments, cwd=tmp_path, code=0)
    assert found["complete"]
    assert not found["different"]
    assert not found["only_left"]
