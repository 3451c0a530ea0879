"""pytest options, header and summary of the checks on real memory.

A plugin and not only a conftest, because ``pytest --pyargs`` reads options before it knows the
folder. Does nothing, and loads no torch, unless these checks are asked for.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from kvconform.gpu_checks.recording import PACKAGE, Recorder, laws_of

if TYPE_CHECKING:
    from kvconform.gpu_checks.codec import HeadShape
    from kvconform.gpu_checks.memory import Memory
    from kvconform.gpu_checks.second_source import Reported

MEMORY = pytest.StashKey["Memory"]()
TALLY = pytest.StashKey["Tally"]()


class Tally:
    """What the checks went through, for the summary. ``examples`` counts everything tried."""

    def __init__(self) -> None:
        self.examples = 0
        self.tried: set[tuple[str, int, int | None, str]] = set()
        self.refused: set[tuple[str, int, int | None]] = set()
        self.counts: Counter[str] = Counter()

    def codec(self, name: str, shape: HeadShape, dtype: object) -> None:
        """A round trip of heads of this shape and element type."""
        self.tried.add((name, shape.key, shape.value, str(dtype)))
        self.examples += 1

    def count(self, what: str, number: int = 1) -> None:
        """So many of something else that was tried."""
        self.counts[what] += number
        self.examples += number

    def refusal(self, name: str, shape: HeadShape) -> None:
        """A shape that reference and codec both refuse."""
        self.refused.add((name, shape.key, shape.value))

    def to_wire(self) -> dict[str, Any]:
        """The counts as plain lists, which a worker of pytest-xdist can send."""
        return {
            "tried": [list(entry) for entry in self.tried],
            "refused": [list(entry) for entry in self.refused],
            "counts": dict(self.counts),
        }

    def add(self, wire: dict[str, Any]) -> None:
        """Counts of another process, as `to_wire` made them."""
        self.tried |= {tuple(entry) for entry in wire["tried"]}
        self.refused |= {tuple(entry) for entry in wire["refused"]}
        self.counts.update(wire["counts"])

    def lines(self) -> list[str]:
        """The summary, a line each; empty when nothing was counted."""
        found = []
        if self.tried:
            codecs = len({name for name, *_ in self.tried})
            sizes = len({size for _, size, *_ in self.tried})
            dtypes = len({dtype for *_, dtype in self.tried})
            found.append(
                f"{len(self.tried)} combinations of {codecs} codecs x {sizes} head sizes x {dtypes} dtypes "
                f"tried, {len(self.refused)} shapes refused as the reference does"
            )
        found += [f"{count} {what}" for what, count in sorted(self.counts.items())]
        return found


def add_options(parser: pytest.Parser) -> None:
    """``--device``, where the checks take their memory, and what `kvconform device` adds."""
    group = parser.getgroup("kvconform", "kvconform: checks on real memory")
    group.addoption(
        "--device",
        default=None,
        help="device to check the memory of: cpu, cuda, cuda:N (default: cuda where there is one, else cpu)",
    )
    group.addoption("--kv-laws", metavar="ID,..", default="", help="only the checks of these laws")
    group.addoption(
        "--kv-results", metavar="FILE", default=None, help="write down what each check found, as JSON lines"
    )
    group.addoption(
        "--kv-stored-bytes",
        metavar="FILE",
        default=None,
        help="what an implementation reports, as kvconform device --implementation asks it",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(parser: pytest.Parser, args: list[str]) -> None:
    """The options, for a command that names these checks or their benchmark.

    Not for every command: other suites have a ``--device`` of their own.
    """
    if _named(args, ("gpu_checks", "bench_codecs")):
        add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Markers, so that they are known wherever the checks run from; the device, and the record.

    Raises UsageError, before anything is collected, for a device that cannot be checked here.
    """
    config.addinivalue_line("markers", "large: takes half a GiB or more, most of it untouched")
    config.addinivalue_line("markers", "law(id): the law of the catalogue that the check is of")
    if not _asked_for(config) or config.option.help:
        return
    found = memory(config)
    reported(config)
    path = config.getoption("--kv-results", default=None)
    if path is not None:
        if hasattr(config, "workerinput") or config.getoption("numprocesses", default=None):
            raise pytest.UsageError("--kv-results is for a run in one process, not for pytest-xdist")
        import torch

        device = {
            "name": str(found.device),
            "allocator": found.describe(),
            "torch": torch.__version__,
        }
        recorder = Recorder(Path(path), device, _selected(config), tally(config))
        config.pluginmanager.register(recorder, PACKAGE + ".recorder")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Only the checks of the laws that are asked for."""
    wanted = _selected(config)
    if not wanted:
        return
    left_out = [item for item in items if not wanted.intersection(laws_of(item))]
    items[:] = [item for item in items if wanted.intersection(laws_of(item))]
    config.hook.pytest_deselected(items=left_out)


def memory(config: pytest.Config) -> Memory:
    """The memory that the run checks, set up once.

    Raises UsageError without torch, and for a device that cannot be checked here.
    """
    if MEMORY not in config.stash:
        try:
            import torch
            from kvconform.gpu_checks.memory import memory_of
        except ImportError as error:
            raise pytest.UsageError(f"checks on real memory need the extra gpu: {error}") from error

        # One thread: the checks are small, and others may be running beside them.
        torch.set_num_threads(1)
        default = "cuda" if torch.cuda.is_available() else "cpu"
        try:
            config.stash[MEMORY] = memory_of(config.getoption("--device", default=None) or default)
        except (ValueError, RuntimeError) as error:
            raise pytest.UsageError(str(error)) from error
    return config.stash[MEMORY]


def reported(config: pytest.Config) -> Reported:
    """What ``--kv-stored-bytes`` says that an implementation stores, else what the reference does.

    Raises UsageError for a file that cannot be read.
    """
    from kvconform.gpu_checks import second_source

    path = config.getoption("--kv-stored-bytes", default=None)
    if path is None:
        return second_source.reference()
    try:
        return second_source.read_reported(Path(path))
    except (OSError, ValueError) as error:
        raise pytest.UsageError(str(error)) from error


def tally(config: pytest.Config) -> Tally:
    """The counts of the run."""
    return config.stash.setdefault(TALLY, Tally())


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Device, allocator and its rounding."""
    if not _asked_for(config):
        return []
    found = memory(config)
    return [f"device: {found.device}, {found.describe()}"]


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker hands its counts over."""
    if TALLY in session.config.stash and hasattr(session.config, "workeroutput"):
        session.config.workeroutput[PACKAGE] = tally(session.config).to_wire()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """The counts of a worker that is done are added to those of the run."""
    handed = getattr(node, "workeroutput", {}).get(PACKAGE)
    if handed is not None:
        tally(node.config).add(handed)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """What was tried."""
    lines = tally(config).lines() if TALLY in config.stash else []
    if lines:
        terminalreporter.section("real memory")
        for line in lines:
            terminalreporter.line(line)


def _selected(config: pytest.Config) -> frozenset[str]:
    """The laws that are asked for; none where all are."""
    named = config.getoption("--kv-laws", default="") or ""
    return frozenset(name.strip() for name in named.split(",") if name.strip())


def _asked_for(config: pytest.Config) -> bool:
    return _named(config.args, ("gpu_checks",))


def _named(arguments: Sequence[str], names: Sequence[str]) -> bool:
    """Whether a module or folder of one of these names is among the arguments."""
    return any(name in re.split(r"[./\\:]", argument) for argument in arguments for name in names)
