"""Implementations for the tests of running: the reference, each with one fault of its own."""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

from kvconform.reference.interface import Implementation
from kvconform.reference.plain import Plain
from kvconform.reference.specs import Spec

made = Plain()


class Conforming(Plain):
    name = "conforming"
    version = "1.2"


class Smaller(Plain):
    """Its padded pages are a byte short."""

    def page_size_bytes(self, spec: Spec) -> int:
        page = super().page_size_bytes(spec)
        return page - 1 if getattr(spec, "page_size_padded", None) is not None else page

    def script(self, calls: list[tuple[str, dict[str, object], object]], message: str) -> str:
        operation, arguments, answer = calls[-1]
        return f"# {message}\nprint({operation!r}, {sorted(arguments)}, {answer})  # {'x' * 120}"


class Raising(Plain):
    """Looks up what is not there, for blocks of more than 20 tokens."""

    def real_page_size_bytes(self, spec: Spec) -> int:
        pages: dict[str, int] = {}
        if spec.block_size > 20:
            return pages["page"]
        return super().real_page_size_bytes(spec)


class Misshapen(Plain):
    """Cannot be asked as the interface says."""

    def real_page_size_bytes(self) -> int:  # type: ignore[override]
        return 1


class Wordy(Plain):
    """Answers in words where a number is wanted."""

    def real_page_size_bytes(self, spec: Spec) -> int:
        return UncomparableText()  # type: ignore[return-value]


class UncomparableText:
    """What no law can compare."""

    def __eq__(self, other: object) -> bool:
        raise TypeError("words and numbers")

    __hash__ = None  # type: ignore[assignment]


class Exiting(Plain):
    """Ends the process."""

    def real_page_size_bytes(self, spec: Spec) -> int:
        print("last words", file=sys.stderr)
        os._exit(3)


class Dropping(Plain):
    """Ends the process for blocks of more than 20 tokens."""

    def real_page_size_bytes(self, spec: Spec) -> int:
        if spec.block_size > 20:
            os._exit(3)
        return super().real_page_size_bytes(spec)


class Killed(Plain):
    """Is ended by the system."""

    def real_page_size_bytes(self, spec: Spec) -> int:
        os.kill(os.getpid(), signal.SIGSEGV)
        return super().real_page_size_bytes(spec)


class Leaving(Plain):
    """Raises what is no Exception."""

    def real_page_size_bytes(self, spec: Spec) -> int:
        sys.exit("leaving")


class Sleeping(Plain):
    """Never answers."""

    def real_page_size_bytes(self, spec: Spec) -> int:
        while True:
            time.sleep(60)


class Deaf(Plain):
    """Never answers, and cannot be interrupted."""

    def real_page_size_bytes(self, spec: Spec) -> int:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
        while True:
            time.sleep(60)


class Wavering(Plain):
    """Answers the same question in two ways."""

    def __init__(self) -> None:
        self.asked = 0

    def real_page_size_bytes(self, spec: Spec) -> int:
        self.asked += 1
        return super().real_page_size_bytes(spec) + self.asked % 2


class Noisy(Plain):
    """Prints rubbish wherever it can, and reads what is not for it."""

    def page_size_bytes(self, spec: Spec) -> int:
        print('{"type":"Done"}')
        print("rubbish", file=sys.__stdout__)
        os.write(1, b"rubbish\n")
        assert not sys.stdin.read()
        return super().page_size_bytes(spec)


class Poor(Plain):
    """Cannot resize, and has no alignment."""

    def operations(self) -> frozenset[str]:
        return super().operations() - {"copy_with_new_block_size"}

    def fields(self, kind: str) -> frozenset[str]:
        return super().fields(kind) - {"alignment"}


class Slow(Plain):
    """Takes its time, without ever being too late; says in a file which process it is in."""

    def page_size_bytes(self, spec: Spec) -> int:
        Path(os.environ["FAULTY_SLOW"]).write_text(str(os.getpid()), encoding="utf-8")
        time.sleep(0.3)
        return super().page_size_bytes(spec)


class Unreadable(Plain):
    """Cannot say what it has."""

    def kinds(self) -> tuple[str, ...]:
        raise LookupError("kinds")


class Nameless(Implementation):
    """Does not say what it has."""


class Misspelt(Plain):
    """Says that it has what there is not."""

    def operations(self) -> frozenset[str]:
        return frozenset({"page_size_byte"})


class Widthless(Plain):
    """Leaves out what every spec has."""

    def kinds(self) -> tuple[str, ...]:
        return ("full_attention",)

    def fields(self, kind: str) -> frozenset[str]:
        return super().fields(kind) - {"head_size"}


class Strange(Plain):
    """Answers with what cannot be written down."""

    def real_page_size_bytes(self, spec: Spec) -> int:
        class Unprintable(int):
            def __str__(self) -> str:
                raise ValueError("unprintable")

            def __format__(self, how: str) -> str:
                return "\ud800"

        return Unprintable(0)


class Growing(Plain):
    """A resized block is longer than asked for."""

    def copy_with_new_block_size(self, spec: Spec, block_size: int) -> Spec:
        return replace(super().copy_with_new_block_size(spec, block_size), block_size=block_size * 2)


def fallen() -> Plain:
    """Falls over when it is made."""
    raise ValueError("no such\nengine")


number = 3


def vanish() -> Plain:
    """Ends the process when it is made."""
    print("bye", file=sys.stderr, flush=True)
    os._exit(5)
