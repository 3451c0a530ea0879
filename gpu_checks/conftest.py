"""Fixtures of the checks on real memory. Options are in `plugin`."""

from __future__ import annotations

import contextlib

import pytest
from kvconform.gpu_checks import plugin
from kvconform.gpu_checks.memory import Memory
from kvconform.gpu_checks.recording import PACKAGE, laws_of
from kvconform.gpu_checks.second_source import Reported


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of `plugin` where it is not installed as one and the folder itself is named."""
    with contextlib.suppress(ValueError):
        plugin.add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    """`plugin` itself, unless it is there already."""
    if not config.pluginmanager.is_registered(plugin):
        config.pluginmanager.register(plugin, PACKAGE + ".plugin")


@pytest.fixture(scope="session")
def memory(pytestconfig: pytest.Config) -> Memory:
    """The memory of the device under check."""
    return plugin.memory(pytestconfig)


@pytest.fixture(scope="session")
def tally(pytestconfig: pytest.Config) -> plugin.Tally:
    """Counts for the summary."""
    return plugin.tally(pytestconfig)


@pytest.fixture(scope="session")
def reported(pytestconfig: pytest.Config) -> Reported:
    """What stored bytes are compared with."""
    return plugin.reported(pytestconfig)


@pytest.fixture(autouse=True)
def _name_law(request: pytest.FixtureRequest) -> None:
    """Each check's law, as properties of its test case in the JUnit report."""
    request.node.user_properties.extend(("law", law) for law in laws_of(request.node))
