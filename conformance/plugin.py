"""A pytest plugin: ``pytest --pyargs kvconform.conformance --kv-implementation vllm``.

Each law and kind is a test. Whoever merely has kvconform installed pays for the import of this
file and no more: nothing happens without ``--kv-implementation``. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from kvconform.conformance.checking import Checking

NAME = "kvconform-checking"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options; all of them only matter with the first."""
    group = parser.getgroup("kvconform", "laws of KV-cache specs (pytest --pyargs kvconform.conformance)")
    group.addoption("--kv-implementation", metavar="ADDRESS", help="what to check, as kvconform run takes it")
    group.addoption(
        "--kv-import", metavar="MODULE", action="append", default=[], help="import this first, as --import"
    )
    group.addoption("--kv-python", metavar="PATH", help="ask a vLLM in this interpreter, as --python")
    group.addoption("--kv-profile", metavar="NAME", default="gate", help="quick, gate (the default) or deep")
    group.addoption("--kv-seed", metavar="N", type=int, default=0, help="the same seed finds the same")
    group.addoption("--kv-expect", metavar="FILE", help="known violations, which do not fail")
    group.addoption(
        "--kv-fail-on",
        metavar="SEVERITY,..",
        default="safety,agreement,formula",
        help="severities whose violations fail (default: %(default)s)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Read what is to be checked, if anything is."""
    if config.getoption("kv_implementation") is None:
        return
    from kvconform.conformance.checking import Checking

    config.pluginmanager.register(Checking(config), NAME)


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Collect the laws in place of this file."""
    checking: Checking | None = parent.config.pluginmanager.get_plugin(NAME)
    if checking is None or file_path != Path(__file__):
        return None
    from kvconform.conformance.checking import Laws

    return Laws.from_parent(parent, path=file_path, nodeid="kvconform")
