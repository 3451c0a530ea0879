"""Imports run down the house only, and heavy things load only when used."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROOMS = ("reference", "properties", "solver", "conformance", "gpu_checks")
ALLOWED = {
    "reference": {"reference"},
    "properties": {"properties", "reference"},
    "solver": {"solver", "properties", "reference"},
    "conformance": {"conformance", "solver", "properties", "reference"},
    "gpu_checks": {"gpu_checks", "properties", "reference"},
}
HEAVY = {
    "reference": {"hypothesis", "z3", "torch", "numpy", "vllm", "typer", "rich", "msgspec"},
    "properties": {"z3", "torch", "numpy", "vllm", "typer", "rich"},
}


def imported(path: Path) -> set[str]:
    """Every module that a file imports, at the top or inside a function."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


def rooms_entered(path: Path) -> set[str]:
    """The rooms that a file imports from."""
    return {name.split(".")[1] for name in imported(path) if name.startswith("kvconform.")}


@pytest.mark.parametrize("room", ROOMS)
def test_imports_run_down_the_house(room: str) -> None:
    files = sorted((ROOT / room).rglob("*.py"))
    assert files
    for path in files:
        upwards = rooms_entered(path) - ALLOWED[room]
        assert not upwards, f"{path.relative_to(ROOT)} imports upwards from {upwards}"


@pytest.mark.parametrize("room", sorted(HEAVY))
def test_low_rooms_import_nothing_heavy(room: str) -> None:
    for path in (ROOT / room).rglob("*.py"):
        heavy = {name.split(".")[0] for name in imported(path)} & HEAVY[room]
        assert not heavy, f"{path.relative_to(ROOT)} imports {heavy}"


def test_an_upward_import_is_seen(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text("def late():\n    from kvconform.conformance import cli\n    return cli\n")
    assert rooms_entered(wrong) - ALLOWED["conformance"] == set()
    assert rooms_entered(wrong) - ALLOWED["properties"] == {"conformance"}


def test_vllm_adapters_stand_alone() -> None:
    package = "kvconform.conformance.adapters"
    folder = ROOT / "conformance" / "adapters"
    asking = {path.stem for path in folder.glob("vllm*.py")} - {"vllm_implementation"}
    assert {"vllm", "vllm_planner", "vllm_process"} < asking
    for name in asking:
        path = folder / f"{name}.py"
        others = {
            module for module in imported(path) if module.partition(".")[0] not in sys.stdlib_module_names
        }
        assert others <= {f"{package}.{other}" for other in asking}, f"{name} imports {others}"


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from kvconform.conformance import cli\n"
        "heavy = {'torch', 'z3', 'vllm', 'hypothesis', 'numpy', 'jinja2', 'pypi_simple'} & set(sys.modules)\n"
        "sys.exit(f'loaded {heavy}' if heavy else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_package_is_installed() -> None:
    import tomllib

    table = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    listed = {table["package-dir"][name] for name in table["packages"]}
    found = {
        str(path.parent.relative_to(ROOT)) for room in ROOMS for path in (ROOT / room).rglob("__init__.py")
    }
    assert listed == found
