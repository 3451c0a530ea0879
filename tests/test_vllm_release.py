"""Real vLLM releases, from the command line: what is found, and that it is true."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import textwrap
import tomllib
from pathlib import Path
from typing import Any

import kvconform.properties.laws
import pytest
from commands import environment, kvconform
from filelock import FileLock
from kvconform.properties.law import CATALOGUE
from releases import ALSO, CHECKED, root_of
from scheduled_scripts import shows

pytestmark = pytest.mark.release

PAIRS = {(law.id, kind) for law in CATALOGUE.values() for kind in law.kinds}

KNOWN = {
    "0.28.0": {
        ("merge/commutative", "sink_full_attention"),
        ("merge/idempotent", "sliding_window_mla"),
        ("merge/keeps-every-field", "sliding_window_mla"),
        ("resize/still-covers", "full_attention"),
        ("resize/like-fresh", "sliding_window_mla"),
        ("bound/chunk-suffices", "chunked_local_attention"),
        ("zero/state-read-before-write", "-"),
    },
    "0.33.0": {
        ("quant/modes-distinct", "-"),
        ("merge/commutative", "sink_full_attention"),
        ("merge/idempotent", "sliding_window_mla"),
        ("merge/keeps-every-field", "sliding_window_mla"),
        ("resize/still-covers", "full_attention"),
        ("resize/like-fresh", "sliding_window_mla"),
        ("bound/chunk-suffices", "chunked_local_attention"),
    },
}
"""What these releases are known to break, by hand."""


def report_file(version: str, profile: str) -> Path:
    """The report of a whole run, made once for all processes of this test run."""
    root_of(version)
    shared = (
        Path(tempfile.gettempdir()) / f"kvconform-{os.environ.get('PYTEST_XDIST_TESTRUNUID', os.getpid())}"
    )
    shared.mkdir(exist_ok=True)
    path = shared / f"{version}-{profile}.json"
    with FileLock(f"{path}.lock"):
        if not path.exists():
            done = kvconform(
                "run", f"vllm=={version}", "--profile", profile, "--json", str(path), cwd=Path.cwd()
            )
            assert path.exists(), done.stderr
    return path


def report(version: str, profile: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(report_file(version, profile).read_text(encoding="utf-8"))
    return found


def verdicts(found: dict[str, Any], verdict: str) -> set[tuple[str, str]]:
    return {(result["law"], result["kind"]) for result in found["results"] if result["verdict"] == verdict}


@pytest.mark.parametrize("version", CHECKED)
def test_the_run_is_complete_and_finds_what_is_known(version: str) -> None:
    found = report(version, "gate")
    assert found["complete"]
    assert {(result["law"], result["kind"]) for result in found["results"]} == PAIRS
    assert len(found["results"]) == len(PAIRS)
    assert not verdicts(found, "broken")
    assert found["exit"] == 1
    missed = KNOWN[version] - verdicts(found, "violated")
    assert not missed
    held = [result for result in found["results"] if result["verdict"] == "held"]
    assert held
    assert all(result["examples"] > 0 for result in held)


@pytest.mark.parametrize("version", ALSO)
def test_other_releases_break_nothing_of_ours(version: str) -> None:
    found = report(version, "quick")
    assert found["complete"]
    broken = [result for result in found["results"] if result["verdict"] == "broken"]
    assert not broken, broken[0]
    for result in found["results"]:
        if result["verdict"] == "unsupported":
            assert result["message"], f"{result['law']} does not name what is missing"


def test_a_seed_repeats_the_run() -> None:
    root_of("0.33.0")
    words = ("run", "vllm==0.33.0", "--profile", "quick", "--laws", "merge/*,resize/*", "--seed", "7")
    first, second = (kvconform(*words, "--json", "-", cwd=Path.cwd()).stdout for _ in range(2))
    assert first == second
    assert json.loads(first)["complete"]


@pytest.mark.parametrize("version", CHECKED)
def test_what_is_violated_is_known_and_explained(version: str, tmp_path: Path) -> None:
    known = Path(__file__).parent.parent / "expectations" / f"vllm-{version}.toml"
    judged = kvconform(
        *("merge-reports", str(tmp_path / "judged.json"), str(report_file(version, "gate"))),
        *("--expect", str(known)),
        cwd=tmp_path,
    )
    assert judged.returncode == 0, judged.stdout + judged.stderr
    entries = tomllib.loads(known.read_text(encoding="utf-8"))["expected"]
    assert all(len(entry["reason"]) > 20 for entry in entries)


RUNNER = """
import contextlib, io, json, sys, types
from pathlib import Path
from kvconform.conformance.adapters import vllm as adapter, vllm_loading, vllm_outcomes
from kvconform.conformance.adapters.vllm_manager import LOADED
from kvconform.conformance.adapters.vllm_planner import Planner

root, scripts = Path(sys.argv[1]), json.load(sys.stdin)
asked = adapter.Adapter(root)
for family, (module, name) in adapter.PACKING_BACKENDS.items():
    # Where all of vLLM is installed these import; here only what is asked of them does.
    try:
        packs = vllm_loading.extract_method(root, module, name, "customize_spec")
    except vllm_outcomes.Unsupported:
        continue
    stub = types.ModuleType(module)
    setattr(stub, name, types.SimpleNamespace(customize_spec=packs))
    sys.modules[module] = stub
vllm_loading.load_leniently("vllm.config.cache", root)
modules = Planner(asked).modules
modules.load_all()
for module in LOADED:
    modules.load(module)
printed = []
for script in scripts:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(script, "<report>", "exec"), {"__name__": "report"})
    printed.append(out.getvalue())
Path(sys.argv[2]).write_text(json.dumps(printed))
"""


@pytest.mark.parametrize("version", CHECKED)
@pytest.mark.parametrize("asserts", [True, False], ids=["", "-O"])
def test_plain_scripts_show_the_wrong_answer(version: str, asserts: bool, tmp_path: Path) -> None:
    root = root_of(version)
    printed_to = tmp_path / "printed.json"
    results = [
        result
        for result in report(version, "gate")["results"]
        if result["verdict"] == "violated" and asserts != result["law"].endswith("without-asserts")
    ]
    assert len(results) > 5
    assert all(result["script"] for result in results), "each comes with lines for a bug report"
    assert any(result["law"].startswith("hold/") for result in results) or not asserts
    for result in results:
        assert "kvconform" not in result["script"], "a bug report needs nothing of ours"
    flags = [] if asserts else ["-O"]
    done = subprocess.run(
        [
            sys.executable,
            *flags,
            "-c",
            f"import sys; sys.path.insert(0, {str(root)!r})\n{RUNNER}",
            str(root),
            str(printed_to),
        ],
        input=json.dumps([result["script"] for result in results]),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for result, printed in zip(results, json.loads(printed_to.read_text()), strict=True):
        lines = printed.splitlines()
        context = f"{result['law']} on {result['kind']}\n{result['script']}\n{printed}"
        operations = [asked["operation"] for asked in result["asked"]]
        answers = [
            asked["answer"]
            for asked in result["asked"]
            if asked["operation"] not in ("cache_dtypes", "follow_schedule")
        ]
        if "follow_schedule" in operations:
            # As many lines as events, before what else is asked.
            assert shows(result["message"], lines), context
            lines = lines[len(lines) - len(answers) :]
        assert len(lines) == len(answers), context
        for line, answer in zip(lines, answers, strict=True):
            if answer.lstrip("-").isdigit():
                assert line == answer, context
            elif answer.startswith("refused") and asserts:
                assert line.startswith("refused: "), context


def test_the_reproduce_line_reproduces() -> None:
    found = report("0.28.0", "gate")
    result = next(result for result in found["results"] if result["law"] == "resize/still-covers")
    done = subprocess.run(
        result["reproduce"], shell=True, env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert " ".join(result["message"].split()) in " ".join(done.stdout.split())


def test_a_checkout_is_a_release_by_path() -> None:
    root = root_of("0.33.0")
    done = kvconform("run", f"vllm@{root}", "--laws", "quant/modes-distinct", cwd=Path.cwd())
    assert done.returncode == 1, done.stderr
    assert "share the value" in done.stdout


def test_locations_are_where_the_operation_is() -> None:
    root = root_of("0.28.0")
    code = textwrap.dedent(f"""
        import sys
        sys.path.insert(0, {str(root)!r})
        from pathlib import Path
        from kvconform.conformance.adapters.vllm_implementation import VllmImplementation
        release = VllmImplementation(Path({str(root)!r}), "vllm==0.28.0")
        print(release.location("max_blocks_per_request", "sliding_window"))
    """)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    path, _, line = done.stdout.strip().splitlines()[-1].partition(":")
    source = (root / Path(path)).read_text(encoding="utf-8").splitlines()
    assert "max_admission_blocks_per_request" in source[int(line) - 1]
