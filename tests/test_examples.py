"""The example adapters: built as their files say, and right in all they answer."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from commands import kvconform
from kvconform.conformance.process import ProcessImplementation
from kvconform.reference.deployment import Deployment
from kvconform.reference.interface import Refused, Unsupported
from kvconform.reference.plain import Plain
from kvconform.reference.specs import FullAttention, SlidingWindow
from releases import CHECKED, root_of

ADAPTERS = Path(__file__).parent.parent / "examples" / "adapters"
PLUGIN = ADAPTERS / "python_plugin"
LONGEST = 150


@pytest.fixture(scope="session")
def cpp(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command of the C++ example, built."""
    if shutil.which("g++") is None:
        pytest.skip("g++ is not here")
    headers = subprocess.run(
        ["g++", "-E", "-x", "c++", "-"],
        input="#include <nlohmann/json.hpp>",
        capture_output=True,
        text=True,
        check=False,
    )
    if headers.returncode:
        pytest.skip("nlohmann/json.hpp is not here (Debian and Ubuntu: nlohmann-json3-dev)")
    built = tmp_path_factory.mktemp("cpp") / "adapter"
    source = str(ADAPTERS / "cpp" / "adapter.cpp")
    flags = ["-O2", "-std=c++17", "-Wall", "-Wextra", "-Werror"]
    subprocess.run(["g++", *flags, "-o", str(built), source], check=True, timeout=300)
    return [str(built)]


@pytest.fixture(scope="session")
def javascript() -> list[str]:
    """The command of the JavaScript example."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not here")
    return [node, str(ADAPTERS / "javascript" / "adapter.mjs")]


@pytest.fixture(params=["cpp", "javascript"])
def command(request: pytest.FixtureRequest) -> list[str]:
    """The command of each example in another language."""
    found: list[str] = request.getfixturevalue(request.param)
    return found


@pytest.mark.parametrize("source", ["cpp/adapter.cpp", "javascript/adapter.mjs"])
def test_examples_are_short(source: str) -> None:
    assert len((ADAPTERS / source).read_text(encoding="utf-8").splitlines()) < LONGEST


def test_an_example_conforms(command: list[str], tmp_path: Path) -> None:
    address = f"process:{' '.join(command)}"
    smoke = kvconform("smoke", address, cwd=tmp_path)
    assert smoke.returncode == 0, smoke.stdout
    ended = kvconform("run", address, "--profile", "quick", "--json", "report.json", cwd=tmp_path)
    assert ended.returncode == 0, ended.stdout
    assert ended.stderr == ""
    report: dict[str, Any] = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert report["complete"]
    # Economy and hygiene too, which do not fail a run.
    assert {result["verdict"] for result in report["results"]} == {"held", "unsupported"}
    held = {result["kind"] for result in report["results"] if result["verdict"] == "held"}
    assert held == {"full_attention", "sliding_window"}
    lacking = {result["message"] for result in report["results"] if result["verdict"] == "unsupported"}
    assert "kind mamba" in lacking
    assert "operation get_kv_cache_configs" in lacking


@pytest.mark.parametrize("size", [1, 2**31, 2**53 - 1, 2**53, 2**64, 2**80])
def test_an_example_is_exact(command: list[str], size: int) -> None:
    implementation = ProcessImplementation(command, seconds_per_ask=20)
    plain = Plain()
    full = FullAttention(block_size=size, num_kv_heads=3, head_size=5, head_size_v=2, dtype="float16")
    slid = SlidingWindow(block_size=7, num_kv_heads=1, head_size=8, dtype="int8", sliding_window=size)
    deployment = Deployment(max_model_len=size, max_num_batched_tokens=size)
    for spec in (full, slid, replace(full, page_size_padded=size * 2**10)):
        assert implementation.page_size_bytes(spec) == plain.page_size_bytes(spec)
        assert implementation.copy_with_new_block_size(spec, 3) == plain.copy_with_new_block_size(spec, 3)
        wanted = plain.max_memory_usage_bytes(spec, deployment)
        assert implementation.max_memory_usage_bytes(spec, deployment) == wanted
    implementation.close()


def test_an_example_answers_every_kind_of_reply(command: list[str]) -> None:
    implementation = ProcessImplementation(command, seconds_per_ask=20)
    spec = SlidingWindow(block_size=7, num_kv_heads=1, head_size=8, dtype="int8", sliding_window=9)
    with pytest.raises(Refused, match="split over ranks"):
        implementation.max_blocks_per_request(spec, Deployment(max_model_len=9, decode_context_parallel=2))
    with pytest.raises(Unsupported, match="dtype"):
        implementation.page_size_bytes(replace(spec, dtype="int3"))
    with pytest.raises(Refused, match="nothing to merge"):
        implementation.merge([], "sliding_window")
    implementation.close()


# The plugin of a vLLM release

FIXED = "resize/still-covers,resize/padding-share,bound/not-above-full"
"""What vLLM's own sliding window breaks and the plugin's does not."""

ASKED = f"{FIXED},page/p*,uniform/reflexive,bound/window-suffices"


def plugin_verdicts(version: str, cwd: Path, *options: str) -> dict[str, str]:
    root_of(version)
    few = ("--laws", ASKED, "--kinds", "sliding_window", "--profile", "quick", "--json", "-")
    ended = kvconform("run", f"vllm=={version}", *few, *options, cwd=cwd)
    assert ended.stdout, ended.stderr
    return {result["law"]: result["verdict"] for result in json.loads(ended.stdout)["results"]}


@pytest.mark.release
@pytest.mark.parametrize("version", CHECKED)
def test_a_plugin_has_its_own_kind_asked(version: str) -> None:
    own = plugin_verdicts(version, PLUGIN)
    assert {law for law, verdict in own.items() if verdict == "violated"} == set(FIXED.split(","))
    plugged = plugin_verdicts(version, PLUGIN, "--import", "ring_kvconform")
    assert own.keys() == plugged.keys()
    assert set(plugged.values()) == {"held"}


@pytest.mark.release
def test_a_plugin_is_asked_in_another_interpreter_alike() -> None:
    options = ("--import", "ring_kvconform", "--python", sys.executable)
    assert set(plugin_verdicts(CHECKED[-1], PLUGIN, *options).values()) == {"held"}


@pytest.mark.release
def test_a_release_in_another_interpreter_gives_the_same_verdicts(tmp_path: Path) -> None:
    version = CHECKED[-1]
    root_of(version)
    laws = ("--laws", "merge/*,plan/leaves-inputs,quant/modes-distinct,uniform/registered-base,plan/total")
    found = []
    for options in ((), ("--python", sys.executable)):
        ended = kvconform(
            "run", f"vllm=={version}", *laws, "--examples", "8", "--json", "-", *options, cwd=tmp_path
        )
        found.append(
            [
                (result["law"], result["kind"], result["verdict"], result["case"])
                for result in json.loads(ended.stdout)["results"]
            ]
        )
    here, there = found
    assert there == here
    assert "violated" in {verdict for _, _, verdict, _ in here}


@pytest.mark.release
def test_an_interpreter_without_torch_is_said_to_be_without(tmp_path: Path) -> None:
    root_of(CHECKED[-1])
    bare = subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=False, timeout=120
    )
    if bare.returncode:
        pytest.skip("no environment can be made here")
    python = str(tmp_path / "bare" / "bin" / "python")
    ended = kvconform("smoke", f"vllm=={CHECKED[-1]}", "--python", python, cwd=tmp_path)
    assert ended.returncode == 4
    assert "start: it cannot begin: AdapterError: cannot import vLLM: no module named 'torch'" in ended.stdout


@pytest.mark.release
def test_what_an_interpreter_lacks_beside_is_unsupported_and_says_why(tmp_path: Path) -> None:
    root_of(CHECKED[-1])
    lacking = tmp_path / "python"
    lacking.write_text(
        f"#!{sys.executable}\n"
        "import runpy, sys\n"
        "sys.modules['psutil'] = None\n"
        "sys.argv = sys.argv[1:]\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')\n"
    )
    lacking.chmod(0o755)
    ended = kvconform("smoke", f"vllm=={CHECKED[-1]}", "--python", str(lacking), cwd=tmp_path)
    assert ended.returncode == 0, ended.stdout
    (told,) = (line for line in ended.stdout.splitlines() if "psutil" in line)
    assert told.split()[0] == "estimate_max_model_len"
    assert "unsupported: " in told


@pytest.mark.release
def test_another_interpreter_loads_the_planner_before_it_is_asked(tmp_path: Path) -> None:
    root = root_of(CHECKED[-1])
    adapters = Path(__file__).parent.parent / "conformance" / "adapters"
    code = (
        f"import sys; sys.path.insert(0, {str(adapters)!r}); import vllm_process\n"
        f"from pathlib import Path; vllm_process.enter_package(); sys.path.insert(0, {str(root)!r})\n"
        f"server = vllm_process.Server(Path({str(root)!r}), 'vllm')\n"
        "loaded = set(sys.modules); server.planner.modules.load_all()\n"
        "print(sorted(set(sys.modules) - loaded))\n"
        "print('vllm.v1.core.kv_cache_planning' in loaded)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-2:] == ["[]", "True"], done.stdout
