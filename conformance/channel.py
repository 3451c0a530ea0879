"""A child process spoken to in lines: what it writes, when it ends, and what it complains of.

One thread and no locks: while an answer is awaited, standard error is drained beside it, so that a
child that floods it neither waits for a reader nor fills the memory.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

CHUNK = 1 << 16
LONGEST_LINE = 1 << 26
"""Bytes after which a line without an end is given up."""

LAST_WORDS = 2000
"""Bytes of standard error that are kept."""

PATIENCE = 1.0
"""Seconds between signs of life while a line is awaited."""

GRACE_SECONDS = 10.0
"""Seconds that a process is given to end once it was told to stop."""

CLOSED_SECONDS = 3.0
"""Seconds that a process is given to end once it has closed its output: less than the runner waits
for a sign of life."""


@contextmanager
def untimed() -> Iterator[None]:
    """Suspend the alarm that limits the run of a law: what a process takes to come or go is not its."""
    left, again = signal.setitimer(signal.ITIMER_REAL, 0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, left, again)


class Lost(Exception):
    """No line came; says what the process did instead, and holds what it wrote of one."""

    def __init__(self, why: str, partial: bytes = b"") -> None:
        super().__init__(why)
        self.partial = partial


class Channel:
    """A running process and the lines that go to and fro.

    The constructor raises OSError where the command cannot be run. ``environment`` is the
    process's, by default this one's.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            command,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._in, self._out, self._err = (
            pipe.fileno() for pipe in (self._process.stdin, self._process.stdout, self._process.stderr)
        )
        self._poll = select.poll()
        for descriptor in (self._in, self._out, self._err):
            os.set_blocking(descriptor, False)
        for descriptor in (self._out, self._err):
            self._poll.register(descriptor, select.POLLIN)
        self._unsent = b""
        self._heard = bytearray()
        self._words = bytearray()
        self._err_ended = False

    @property
    def last_words(self) -> str:
        """The end of what the process wrote to standard error."""
        # What was written before an answer may arrive after it. Bounded: it may never end.
        for _ in range(64):
            if not self._drain():
                break
        return self._words.decode(errors="replace")

    def send(self, line: bytes) -> None:
        """Send a line, as much of it as there is room for: `receive` sends the rest."""
        self._unsent += line
        self._flush()

    def receive(self, seconds: float, alive: Callable[[], None] | None = None) -> bytes:
        """The next line, without its end; ``alive`` is called now and then while it is awaited.

        Raises `Lost` when none comes in that time.
        """
        deadline = time.monotonic() + seconds
        while True:
            end = self._heard.find(b"\n")
            if end >= 0:
                line = bytes(self._heard[:end])
                del self._heard[: end + 1]
                return line
            if len(self._heard) > LONGEST_LINE:
                beginning = bytes(self._heard[:200])
                raise Lost(f"it wrote {len(self._heard)} bytes without an end of line", beginning)
            left = deadline - time.monotonic()
            ready = self._poll.poll(max(0.0, min(left, PATIENCE)) * 1000)
            if alive is not None:
                alive()
            if left <= 0:
                raise Lost(f"no answer within {seconds:g} s", bytes(self._heard))
            for descriptor, _ in ready:
                if descriptor == self._out:
                    self._listen()
                elif descriptor == self._err:
                    self._drain()
                else:
                    self._flush()

    def stop(self, line: bytes) -> str | None:
        """Send a last line and wait for the end: None, or what was wrong with it."""
        self.send(line)
        with contextlib.suppress(KeyError):
            self._poll.unregister(self._in)
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            more = self.receive(GRACE_SECONDS)
        except Lost as lost:
            # Its output ends before it does: an interpreter that has torch to unload takes a while.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(GRACE_SECONDS)
            ended_well = self._process.poll() == 0
            return None if ended_well and not lost.partial else str(lost)
        return f"it wrote another line: {more[:200].decode(errors='replace')}"

    def kill(self) -> None:
        """End the process, whatever it does."""
        self._process.kill()
        self._process.wait()
        self._words = bytearray(self.last_words.encode())
        self._err_ended = True
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def _flush(self) -> None:
        try:
            sent = os.write(self._in, self._unsent)
        except BlockingIOError:
            sent = 0
        except OSError:
            # It reads no more: whether it ended is met when its answer is awaited.
            sent = len(self._unsent)
        waited = bool(self._unsent)
        self._unsent = self._unsent[sent:]
        if self._unsent:
            self._poll.register(self._in, select.POLLOUT)
        elif waited:
            with contextlib.suppress(KeyError):
                self._poll.unregister(self._in)

    def _listen(self) -> None:
        chunk = os.read(self._out, CHUNK)
        if chunk:
            self._heard += chunk
            return
        raise Lost(self._ending(), bytes(self._heard))

    def _ending(self) -> str:
        half = " in the middle of a line" if self._heard else ""
        try:
            with untimed():
                code = self._process.wait(CLOSED_SECONDS)
        except subprocess.TimeoutExpired:
            return f"the process closed its output{half}"
        if code < 0:
            return f"the process was killed by {signal.Signals(-code).name}{half}"
        return f"the process ended with exit status {code}{half}"

    def _drain(self) -> bool:
        """Read some of standard error; false where there is no more now."""
        if self._err_ended:
            return False
        try:
            chunk = os.read(self._err, CHUNK)
        except BlockingIOError:
            return False
        if not chunk:
            self._poll.unregister(self._err)
            self._err_ended = True
        self._words += chunk
        del self._words[:-LAST_WORDS]
        return bool(chunk)
