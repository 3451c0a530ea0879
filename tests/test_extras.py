"""The extra that checks releases names all that a release needs: nothing else is there to be imported."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions
from pathlib import Path

import pytest
from commands import environment
from packaging.requirements import Requirement
from releases import root_of

BLOCKED = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocked())
"""


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def closure(*extras: str) -> set[str]:
    """The distributions that the package brings with these extras, by name."""
    found: set[str] = set()
    wanted = [("kvconform", extra) for extra in ("", *extras)]
    while wanted:
        name, extra = wanted.pop()
        try:
            requires = distribution(name).requires or []
        except PackageNotFoundError:
            continue
        found.add(normal(name))
        for requirement in map(Requirement, requires):
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                known = normal(requirement.name) in found
                wanted += [(requirement.name, each) for each in requirement.extras]
                wanted += [] if known else [(requirement.name, "")]
    return found


def opened(version: str, hidden: set[str], tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """A process that opens a release where the hidden modules are not installed."""
    root = root_of(version)
    (tmp_path / "sitecustomize.py").write_text(BLOCKED.format(names=hidden))
    code = (
        "from pathlib import Path\n"
        "from kvconform.conformance.adapters.vllm_implementation import VllmImplementation\n"
        f"release = VllmImplementation(Path({str(root)!r}), 'release')\n"
        "print(len(release.operations()))\n"
    )
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**environment(), "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.release
@pytest.mark.parametrize("version", ["0.28.0", "0.33.0"])
def test_a_release_needs_nothing_but_the_extra(version: str, tmp_path: Path) -> None:
    brought = closure("vllm")
    others = {
        module
        for module, owners in packages_distributions().items()
        if not brought & {normal(owner) for owner in owners} and not module.startswith("_")
    }
    assert {"mypy", "crosshair"} <= others, "this test must have something to hide"
    done = opened(version, others, tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout.split()[-1]) >= 25


@pytest.mark.release
def test_what_is_not_there_is_missed(tmp_path: Path) -> None:
    done = opened("0.33.0", {"numpy"}, tmp_path)
    assert done.returncode != 0
    assert "numpy" in done.stderr
