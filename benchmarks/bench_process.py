"""What a question to another process costs, one at a time as laws ask and in batches.

Run with ``pytest benchmarks``. Each mean is of `ASKS` questions: 5,000 a second are 200 ms for 1,000.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kvconform.conformance.process import ProcessImplementation
from kvconform.reference.deployment import Deployment
from kvconform.reference.specs import FullAttention

ASKS = 1000
ADAPTERS = Path(__file__).parent.parent / "examples" / "adapters"
SPEC = FullAttention(block_size=16, num_kv_heads=8, head_size=128, dtype="float16")
DEPLOYMENT = Deployment(max_model_len=4096)


def cpp(directory: Path) -> list[str]:
    """The C++ example, built."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("g++ is not here")
    built = directory / "adapter"
    source = ADAPTERS / "cpp" / "adapter.cpp"
    done = subprocess.run(
        [compiler, "-O2", "-std=c++17", "-o", str(built), str(source)], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip("the C++ example cannot be built here: nlohmann-json3-dev")
    return [str(built)]


def javascript(_: Path) -> list[str]:
    """The JavaScript example."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not here")
    return [node, str(ADAPTERS / "javascript" / "adapter.mjs")]


def python(_: Path) -> list[str]:
    """The reference in a process of its own."""
    return [sys.executable, "-P", "-m", "kvconform.conformance.adapters.serve", "reference"]


@pytest.fixture(scope="module", params=[cpp, javascript, python], ids=lambda made: made.__name__)
def asked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Each adapter, started."""
    implementation = ProcessImplementation(
        request.param(tmp_path_factory.mktemp("built")), seconds_per_ask=60
    )
    yield implementation
    implementation.close()


def repeated(ask: Callable[[], Any]) -> None:
    for _ in range(ASKS):
        ask()


@pytest.mark.benchmark(group=f"{ASKS} questions to a process: a page")
def test_pages(benchmark: Any, asked: ProcessImplementation) -> None:
    benchmark(repeated, lambda: asked.page_size_bytes(SPEC))


@pytest.mark.benchmark(group=f"{ASKS} questions to a process: memory")
def test_memory(benchmark: Any, asked: ProcessImplementation) -> None:
    benchmark(repeated, lambda: asked.max_memory_usage_bytes(SPEC, DEPLOYMENT))


@pytest.mark.benchmark(group=f"{ASKS} questions to a process: a resized spec")
def test_resizing(benchmark: Any, asked: ProcessImplementation) -> None:
    benchmark(repeated, lambda: asked.copy_with_new_block_size(SPEC, 32))


@pytest.mark.benchmark(group=f"{ASKS} questions to a process: pages in one batch")
def test_batch(benchmark: Any, asked: ProcessImplementation) -> None:
    questions = [("page_size_bytes", {"spec": SPEC})] * ASKS
    benchmark(asked.ask_all, questions)
