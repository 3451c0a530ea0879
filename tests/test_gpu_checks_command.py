"""The checks on real memory from the command line: what is run, and what is said of it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import kvconform.properties.laws
import pytest
from commands import environment, kvconform
from kvconform.conformance.report.document import read_report
from kvconform.properties.law import CATALOGUE
from kvconform.properties.laws.device import DEVICE_LAWS, SECOND_SOURCE
from releases import CHECKED, root_of

torch = pytest.importorskip("torch")

from kvconform.gpu_checks import views  # noqa: E402
from kvconform.gpu_checks.codecs import CODECS  # noqa: E402
from kvconform.gpu_checks.memory import memory_of  # noqa: E402

ON_CPU = ("device", "--device", "cpu", "--laws", "device/same-as-host")


def spoilt(fault: str, *arguments: str, cwd: Path, **more: str) -> subprocess.Popen[str]:
    """`kvconform` started with checks that go wrong; see `faulty_device`."""
    return subprocess.Popen(
        ["kvconform", *arguments],
        cwd=cwd,
        env=environment(PYTEST_PLUGINS="faulty_device", KVCONFORM_TEST_FAULT=fault, **more),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def by_kind(path: Path) -> dict[str, dict[str, Any]]:
    """The results in a JSON report of one law, by their kind."""
    return {result["kind"]: result for result in json.loads(path.read_text(encoding="utf-8"))["results"]}


def test_the_checks_run_as_a_package(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    command = [sys.executable, "-m", "pytest", "--pyargs", "kvconform.gpu_checks", "--device", "cpu"]
    chosen = "past and 8192 or int4_per_token_head or (typed and uint8) or (takes and latents)"
    done = subprocess.run(
        [*command, "-k", chosen, f"--junitxml={report}", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "device: cpu, anonymous mappings, rounded up to pages of" in done.stdout
    assert "codecs x " in done.stdout
    assert "Warning" not in done.stdout
    laws = {found.get("value") for found in ElementTree.parse(report).iter("property")}
    assert {"device/far-offsets", "device/roundtrip-bytes", "device/allocates-what-was-computed"} <= laws


def test_a_device_run_is_reported_like_any_other(tmp_path: Path) -> None:
    files = {name: tmp_path / name for name in ("json", "junit", "markdown", "html")}
    options = [word for name, path in files.items() for word in (f"--{name}", str(path))]
    done = kvconform(*ON_CPU, *options, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("device: cpu, anonymous mappings, rounded up to pages of ")
    assert "rows packed like plain Python" in done.stdout
    assert "device cpu (anonymous mappings" in done.stdout
    assert done.stdout.rstrip().endswith("exit 0")
    report = read_report(str(files["json"]))
    assert (report.complete, report.exit, report.engines) == (True, 0, ("device",))
    assert report.implementation.address == "device cpu"
    assert "rounded up to pages of" in report.implementation.name
    assert report.selected == len(report.results) == len(CODECS) + 1
    assert {result.kind for result in report.results} == {*CODECS, "-"}
    for result in report.results:
        assert (result.law, result.severity) == ("device/same-as-host", "agreement")
        assert result.verdict == "held"
        assert result.engines == ("device",)
        assert result.examples > 0
    int8 = next(result for result in report.results if result.kind == "int8_per_token_head")
    assert int8.examples > 10, "rows are counted, not tests"
    assert "checks not run: the device is the CPU" in int8.message
    assert "same-as-host" in files["html"].read_text(encoding="utf-8")
    assert "device cpu" in files["markdown"].read_text(encoding="utf-8")
    cases = [case.get("name") for case in ElementTree.parse(files["junit"]).iter("testcase")]
    assert "device/same-as-host[nvfp4]" in cases


def test_a_codec_a_byte_short_is_reported_with_a_line_that_reruns_it(tmp_path: Path) -> None:
    started = spoilt("short", *ON_CPU, "--json", "report.json", cwd=tmp_path)
    shown, complaints = started.communicate()
    assert started.returncode == 1, complaints
    results = by_kind(tmp_path / "report.json")
    wrong = results.pop("int8_per_token_head")
    assert wrong["verdict"] == "violated"
    assert "shape of the packed rows: got (2, 39), wanted (2, 40)" in wrong["message"]
    assert {result["verdict"] for result in results.values()} == {"held"}
    assert "VIOLATED  device/same-as-host  (agreement)  int8_per_token_head" in shown
    command = wrong["reproduce"]
    assert command in shown
    again = subprocess.run(
        command, shell=True, cwd=tmp_path, capture_output=True, text=True, env=environment(), check=False
    )
    assert again.returncode == 0, again.stdout + again.stderr
    assert "1 passed" in again.stdout


@pytest.mark.parametrize(
    ("fault", "complete", "message"),
    [
        ("fallen", True, "RuntimeError: CUDA error: an illegal memory access was encountered"),
        ("killed", False, "the process was killed by SIGSEGV"),
    ],
)
def test_checks_that_fall_over_are_broken(tmp_path: Path, fault: str, complete: bool, message: str) -> None:
    started = spoilt(fault, *ON_CPU, "--json", "report.json", cwd=tmp_path)
    _, complaints = started.communicate()
    assert started.returncode == 4, complaints
    report = read_report(str(tmp_path / "report.json"))
    assert report.complete is complete
    assert report.exit == 4
    broken = [result for result in report.results if result.verdict == "broken"]
    assert [(result.kind, result.message) for result in broken] == [("int8_per_token_head", message)]
    assert (len(report.results) == report.selected) is complete


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_device_run_reports_what_it_has(tmp_path: Path, number: signal.Signals) -> None:
    begun = tmp_path / "begun"
    running = spoilt("slow", *ON_CPU, "--json", "report.json", cwd=tmp_path, KVCONFORM_TEST_BEGUN=str(begun))
    waiting = time.monotonic()
    while not begun.exists():
        assert running.poll() is None, running.communicate()
        assert time.monotonic() - waiting < 120
        time.sleep(0.05)
    time.sleep(0.5)
    running.send_signal(number)
    _, complaints = running.communicate(timeout=60)
    assert running.returncode == 3, complaints
    assert "interrupted after" in complaints
    report = read_report(str(tmp_path / "report.json"))
    assert (report.complete, report.exit) == (False, 3)
    assert 0 <= len(report.results) < report.selected
    assert all(result.verdict == "held" for result in report.results)
    assert "int8_per_token_head" not in {result.kind for result in report.results}


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--device", "nosuch"], "no device is called 'nosuch': write cpu, cuda or cuda:N"),
        (["--device", "meta"], "no allocator statistics are known for device 'meta'"),
        pytest.param(
            ["--device", "cuda"],
            "no CUDA device here for 'cuda'",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device"),
        ),
        (["--laws", "device/view-cover"], "did you mean device/views-cover"),
        (["--laws", "merge/idempotent"], "no law matches 'merge/idempotent'"),
        (
            ["--implementation", "reference", "--laws", "device/far-offsets"],
            "--implementation is for quant/content-formula and page/content-formula",
        ),
        (["--implementation", "nosuch"], "unknown implementation 'nosuch'"),
        (["--json", "no/such/file"], "no/such/file: the report cannot be written there"),
    ],
)
def test_bad_input_is_one_line_and_2(tmp_path: Path, arguments: list[str], why: str) -> None:
    ended = kvconform("device", *arguments, cwd=tmp_path)
    assert ended.returncode == 2, ended.stderr
    assert ended.stdout == ""
    (line,) = ended.stderr.splitlines()
    assert why in line
    assert os.listdir(tmp_path) == []


def test_a_person_s_own_pytest_settings_are_not_met(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --nosuch\n", encoding="utf-8")
    (tmp_path / "torch.py").write_text("raise ImportError('not this one')\n", encoding="utf-8")
    selected = ("--laws", "device/far-offsets", "--json", "-")
    done = kvconform("device", "--device", "cpu", *selected, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["results"][0]["law"] == "device/far-offsets"


@pytest.mark.parametrize("device", ["meta", "cuda:99", "no such"])
def test_a_device_that_cannot_be_checked_is_refused(device: str) -> None:
    with pytest.raises(ValueError, match="device"):
        memory_of(device)


def test_a_file_that_holds_no_stored_bytes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "wrong.json").write_text("[]", encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "--pyargs", "kvconform.gpu_checks.test_second_source"]
    done = subprocess.run(
        [*command, "--device", "cpu", "--kv-stored-bytes", "wrong.json", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 4
    assert "wrong.json: no stored bytes of an implementation" in done.stderr


def test_every_law_about_real_memory_has_a_check_and_every_check_a_law() -> None:
    folder = Path(views.__file__).parent
    named: set[str] = set()
    for path in sorted(folder.glob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        marked = re.findall(r"mark\.law\((.*?)\)", text)
        assert marked, f"no law is checked in {path.name}"
        named |= {law for marker in marked for law in re.findall(r'"(.*?)"', marker)}
    assert named == {*DEVICE_LAWS, *SECOND_SOURCE}
    assert set(SECOND_SOURCE) <= set(CATALOGUE)
    guide = (Path(__file__).parent.parent / "docs" / "devices.md").read_text(encoding="utf-8")
    table = [line.split("|")[1] for line in guide.splitlines() if line.startswith("| `")]
    assert {law for row in table for law in re.findall(r"`(.*?)`", row)} == named


# The codecs beside what an implementation reports


@pytest.mark.parametrize(
    ("miniature", "codecs"),
    [
        ("scales-forgotten", {"int8_per_token_head", "fp8_per_token_head"}),
        ("key-norm-forgotten", {"turboquant_4bit_nc", "turboquant_k3v4_nc", "turboquant_3bit_nc"}),
    ],
)
def test_an_implementation_that_counts_too_little_is_caught(
    tmp_path: Path, miniature: str, codecs: set[str]
) -> None:
    compare(f"miniature:{miniature}", tmp_path)
    results = by_kind(tmp_path / "report.json")
    assert violated(results) == codecs
    for kind in codecs:
        assert f"miniature:{miniature}: got" in results[kind]["message"]
        assert "what the codec really writes" in results[kind]["message"]
        subject = f"--device cpu --implementation miniature:{miniature}"
        assert results[kind]["reproduce"] == f"kvconform device {subject} --laws quant/content-formula"
    assert results["octave_k3v4"]["verdict"] == "unsupported"
    assert "which no spec carries" in results["octave_k3v4"]["message"]


@pytest.mark.release
@pytest.mark.parametrize("version", CHECKED)
def test_a_release_stores_what_codecs_write_where_heads_are_of_one_size(tmp_path: Path, version: str) -> None:
    """Known of these releases: turboquant modes are sized by the K head alone."""
    root_of(version)
    compare(f"vllm=={version}", tmp_path)
    results = by_kind(tmp_path / "report.json")
    turboquant = {codec.name for codec in CODECS.values() if (codec.mode or "").startswith("TURBOQUANT")}
    assert violated(results) == turboquant
    for kind in turboquant:
        assert "for K 192, V 128" in results[kind]["message"]
    held = {kind for kind, result in results.items() if result["verdict"] == "held"}
    assert {codec.name for codec in CODECS.values() if codec.mode} <= held | turboquant


def compare(address: str, folder: Path) -> None:
    """Compare stored bytes with an implementation's, which differ somewhere."""
    selected = ("--laws", "quant/content-formula", "--json", "report.json")
    done = kvconform("device", "--device", "cpu", "--implementation", address, *selected, cwd=folder)
    assert done.returncode == 1, done.stderr
    assert f"cells and pages like those of {address}" in done.stdout


def violated(results: dict[str, dict[str, Any]]) -> set[str]:
    """The codecs of which the law is violated."""
    return {kind for kind, result in results.items() if result["verdict"] == "violated"}


# Where the laws about real memory are told


def test_laws_about_real_memory_are_listed_and_explained(tmp_path: Path) -> None:
    listed = kvconform("laws", cwd=tmp_path).stdout
    for law in DEVICE_LAWS.values():
        assert re.search(rf"^{law.id} +{law.severity} +D ", listed, re.MULTILINE)
    assert f"{len(DEVICE_LAWS)} about real memory" in listed
    assert "D on a device (kvconform device)" in listed
    explained = kvconform("laws", "device/views-cover", cwd=tmp_path).stdout
    assert "covers exactly its page" in explained
    assert re.search(r"engines +device", explained)
    assert "kvconform device --laws device/views-cover" in explained
    whole = kvconform("laws", "zero", cwd=tmp_path).stdout
    assert "zero/exact-span  (safety)" in whole
    assert "zero/mixed-precision" in whole


@pytest.mark.parametrize("laws", ["device", "device/views-cover", "zero/exact-span"])
def test_a_sampled_run_says_where_real_memory_is_checked(tmp_path: Path, laws: str) -> None:
    ended = kvconform("run", "reference", "--laws", laws, cwd=tmp_path)
    assert ended.returncode == 2
    assert "it is about real memory, which kvconform device checks" in ended.stderr
