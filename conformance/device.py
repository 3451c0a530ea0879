"""Running the checks on real memory in a process of their own, and reporting them as a run is reported."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
from kvconform.conformance.exits import BAD_INPUT, BROKEN
from kvconform.conformance.report.document import Report, Result, Subject, exit_code
from kvconform.conformance.report.words import find_law
from kvconform.conformance.screen import Stop
from kvconform.conformance.starting import find_version
from kvconform.properties.law import GATING

PACKAGE = "kvconform.gpu_checks"
ENGINE = "device"
STOPPING_SECONDS = 20.0
"""Seconds that an interrupted process is given to end in peace."""
POLLING_SECONDS = 0.1
PASSED, FAILED, USAGE = 0, 1, 4
"""Pytest's exit codes for all well, for failed tests, and for a command line that it cannot follow."""
WORST_FIRST = ("broken", "violated", "held", "skipped")

# What the checks write down: see `kvconform.gpu_checks.recording`.


class Check(msgspec.Struct):
    """One check: its name for ``pytest --pyargs``, and what it is of."""

    check: str
    laws: tuple[str, ...]
    kind: str


class Collected(msgspec.Struct, tag_field="event", tag="collected"):
    """The device, and what is going to be checked."""

    device: dict[str, str]
    checks: tuple[Check, ...]


class Started(msgspec.Struct, tag_field="event", tag="started"):
    """A check has begun."""

    check: str


class Done(msgspec.Struct, tag_field="event", tag="done"):
    """A check has ended."""

    check: str
    examples: int
    outcome: str
    message: str


class Finished(msgspec.Struct, tag_field="event", tag="finished"):
    """All checks have ended, or were interrupted."""

    exit: int
    counts: tuple[str, ...]


Record = Collected | Started | Done | Finished


class Checked(msgspec.Struct):
    """What a run of the checks wrote down, and how its process ended.

    `read` is how many bytes of the record are taken in. `died` says how a process ended that did
    not come to its end.
    """

    collected: Collected | None = None
    done: dict[str, Done] = {}
    running: str = ""
    counts: tuple[str, ...] = ()
    interrupted: bool = False
    died: str = ""
    read: int = 0

    def take(self, line: bytes) -> None:
        """One line of the record."""
        record = msgspec.json.decode(line, type=Record)
        if isinstance(record, Collected):
            self.collected = record
        elif isinstance(record, Started):
            self.running = record.check
        elif isinstance(record, Done):
            self.done[record.check] = record
            self.running = ""
        else:
            self.counts = record.counts


def check_device(
    device: str | None,
    laws: Sequence[str] = (),
    stored_bytes: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Checked:
    """Run the checks of these laws, all where none is named, on a device.

    ``stored_bytes`` is the file of an implementation's answers. ``progress`` is told how many of
    how many checks are done. SIGINT and SIGTERM end the run with what there is. Ends the command
    where the device cannot be checked.
    """
    with tempfile.TemporaryDirectory(prefix="kvconform-device-") as scratch:
        record, output = Path(scratch, "record"), Path(scratch, "output")
        command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
        command += ["--pyargs", PACKAGE, "--kv-results", str(record)]
        command += ["--device", device] if device is not None else []
        command += ["--kv-laws", ",".join(laws)] if laws else []
        command += ["--kv-stored-bytes", str(stored_bytes)] if stored_bytes is not None else []
        checked = Checked()
        with output.open("wb") as written, _interruptible():
            # Not beside the person who runs this, whose pytest settings are for other tests. Ctrl-C is
            # for this process, which then lets the checks come to an end.
            process = subprocess.Popen(
                command,
                cwd=scratch,
                env={name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"},
                stdin=subprocess.DEVNULL,
                stdout=written,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                _follow(process, record, checked, progress)
            except KeyboardInterrupt:
                checked.interrupted = True
            finally:
                _end(process)
            _read(record, checked)
        _judge_end(process.returncode, checked, output.read_text(encoding="utf-8", errors="replace"))
    return checked


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """SIGTERM interrupts as SIGINT does."""

    def interrupt(number: int, frame: object) -> None:  # noqa: ARG001
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _follow(
    process: subprocess.Popen[bytes],
    record: Path,
    checked: Checked,
    progress: Callable[[int, int], None] | None,
) -> None:
    """Wait for the process, telling how far it is."""
    while process.poll() is None:
        time.sleep(POLLING_SECONDS)
        _read(record, checked)
        if progress is not None and checked.collected is not None:
            progress(len(checked.done), len(checked.collected.checks))


def _read(record: Path, checked: Checked) -> None:
    """Take in what has been written down since; a line may still be being written."""
    if not record.exists():
        return
    with record.open("rb") as lines:
        lines.seek(checked.read)
        for line in lines:
            if line.endswith(b"\n"):
                checked.take(line)
                checked.read += len(line)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process and what it started."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
            process.wait(STOPPING_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _judge_end(code: int, checked: Checked, output: str) -> None:
    """Say how a process ended that did not come to its end; ends the command where nothing ran."""
    if checked.interrupted:
        return
    refused = [line.removeprefix("ERROR: ") for line in output.splitlines() if line.startswith("ERROR: ")]
    said = next((line for line in reversed(output.splitlines()) if line.strip()), "")
    if checked.collected is None:
        if code == USAGE and refused:
            raise Stop(refused[0], BAD_INPUT)
        raise Stop(f"the checks did not start: {said or f'exit status {code}'}", BROKEN)
    if code < 0:
        checked.died = f"the process was killed by {signal.Signals(-code).name}"
    elif code not in (PASSED, FAILED):
        checked.died = f"the process ended with exit status {code}: {said}"


def describe_device(checked: Checked) -> str:
    """Device, allocator and its rounding, in one line."""
    if checked.collected is None:
        return "device: not reached"
    device = checked.collected.device
    return f"device: {device['name']}, {device['allocator']}"


def make_report(checked: Checked, *, laws: str = "*", options: Sequence[str] = ()) -> Report:
    """The report of a run of the checks: a result for each law and kind.

    ``laws`` is what they were selected by, and ``options`` what else stood on the command line.
    """
    collected = checked.collected
    if collected is None:
        subject, pairs = Subject("device", "", "", tuple(options)), {}
    else:
        device = collected.device
        described = f"{device['allocator']}; torch"
        subject = Subject(f"device {device['name']}", described, device["torch"], tuple(options))
        pairs = _pairs(collected.checks)
    results = tuple(
        result
        for (law, kind), checks in pairs.items()
        if (result := _result(law, kind, checks, checked, subject)) is not None
    )
    complete = collected is not None and len(checked.done) == len(collected.checks)
    code = exit_code(results, fail_on=GATING, complete=complete)
    return Report(
        kvconform=find_version(),
        implementation=subject,
        seed=0,
        profile=ENGINE,
        examples=sum(result.examples for result in results),
        fail_on=GATING,
        laws=laws,
        engines=(ENGINE,),
        selected=len(pairs),
        results=results,
        complete=complete,
        exit=BROKEN if checked.died else code,
    )


def _pairs(checks: Sequence[Check]) -> dict[tuple[str, str], list[str]]:
    """The names of the checks of each law and kind, law by law."""
    found: dict[tuple[str, str], list[str]] = {}
    for check in checks:
        for law in check.laws:
            found.setdefault((law, check.kind), []).append(check.check)
    laws = list(dict.fromkeys(law for law, _ in found))
    return dict(
        sorted(found.items(), key=lambda pair: (pair[0][0].partition("/")[0], laws.index(pair[0][0])))
    )


def _result(law: str, kind: str, names: Sequence[str], checked: Checked, subject: Subject) -> Result | None:
    """What is known of one law and kind; None where a check has not run and none failed."""
    done = [checked.done[name] for name in names if name in checked.done]
    if checked.died and checked.running in names:
        done.append(Done(checked.running, 1, "broken", checked.died))
    known = find_law(law)
    assert known is not None, law
    by_outcome = {outcome: [one for one in done if one.outcome == outcome] for outcome in WORST_FIRST}
    failed = by_outcome["broken"] or by_outcome["violated"]
    if not failed and len(done) < len(names):
        return None
    skipped = by_outcome["skipped"]
    verdict = failed[0].outcome if failed else "held" if by_outcome["held"] else "unsupported"
    message = failed[0].message if failed else ""
    if not failed and skipped:
        part = "" if verdict == "unsupported" else f"{len(skipped)} of {len(names)} checks not run: "
        message = part + skipped[0].message
    return Result(
        law=law,
        kind=kind,
        severity=known.severity,
        verdict=verdict,
        engines=(ENGINE,),
        examples=sum(one.examples for one in done if one.outcome != "skipped"),
        message=message,
        reproduce=_reproduce(failed[0].check, law, subject) if failed else "",
    )


def _reproduce(check: str, law: str, subject: Subject) -> str:
    """A line that runs the check again."""
    device = subject.address.removeprefix("device ")
    if subject.options:
        return shlex.join(["kvconform", "device", "--device", device, *subject.options, "--laws", law])
    return shlex.join(["python", "-m", "pytest", "--pyargs", check, "--device", device])
