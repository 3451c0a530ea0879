"""What a law may ask for. Every draw has a name, so that a case can be recorded and replayed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn, TypeVar

from kvconform.reference.interface import Implementation

Lifted = TypeVar("Lifted")
Choice = TypeVar("Choice", str, bool, None, str | None)

LARGEST = 1 << 40
"""Largest value drawn where a law names no limit: above every real length and size."""

HIGHEST_BLOCK = 1 << 20
"""Largest block size drawn, in tokens."""


class Rejected(BaseException):
    """The inputs drawn so far do not meet an assumption of the law; not an outcome of it.

    Not an `Exception`, so that no handler in code under test can swallow it.
    """


class Bounds(NamedTuple):
    """What an integer may be: ``at_most`` None means up, ``typical`` values are met more often."""

    at_least: int
    at_most: int | None
    multiple_of: int
    typical: tuple[int, ...]


class Given(ABC):
    """The inputs of one run of one law for one kind.

    An engine gives the primitives (`draw_integer`, `draw_optional`, `choice`, `assume`); what laws
    mostly ask for is built from them in `kvconform.properties.drawn`.
    """

    def __init__(self, implementation: Implementation, kind: str) -> None:
        self.implementation = implementation
        self.kind = kind

    def integer(
        self,
        name: str,
        *,
        at_least: int = 0,
        at_most: int | None = None,
        multiple_of: int = 1,
        typical: Sequence[int] = (),
    ) -> int:
        """An integer within the bounds given; ``typical`` values are met more often."""
        return self.draw_integer(name, Bounds(at_least, at_most, multiple_of, tuple(typical)))

    def optional(
        self,
        name: str,
        *,
        at_least: int = 0,
        at_most: int | None = None,
        multiple_of: int = 1,
        typical: Sequence[int] = (),
    ) -> int | None:
        """None, or an integer as `integer` draws it."""
        return self.draw_optional(name, Bounds(at_least, at_most, multiple_of, tuple(typical)))

    @abstractmethod
    def draw_integer(self, name: str, bounds: Bounds) -> int:
        """An integer within the bounds."""

    @abstractmethod
    def draw_optional(self, name: str, bounds: Bounds) -> int | None:
        """None, or an integer within the bounds."""

    @abstractmethod
    def choice(self, name: str, options: Sequence[Any]) -> Any:
        """One of the options: strings, booleans or None, simplest first."""

    def alike(self, value: Lifted) -> Lifted:
        """The value with all its integers of the kind that this engine draws.

        What is built of drawn integers and of constants can then be put into one set.
        """
        return value

    def assume(self, condition: bool) -> None:
        """Give up this run, without an outcome, unless the condition holds."""
        if not condition:
            self.reject()

    def reject(self) -> NoReturn:
        """Give up this run without an outcome."""
        raise Rejected

    def flag(self, name: str) -> bool:
        """False or true."""
        return bool(self.choice(name, (False, True)))

    def tokens(self, name: str, *, at_least: int = 0, at_most: int | None = None) -> int:
        """A number of tokens."""
        return self.integer(name, at_least=at_least, at_most=at_most, typical=TYPICAL_TOKENS)

    def block_size(self, name: str = "block_size", *, multiple_of: int = 1) -> int:
        """A block size in tokens, at least one."""
        return self.integer(
            name,
            at_least=multiple_of,
            at_most=HIGHEST_BLOCK * multiple_of,
            multiple_of=multiple_of,
            typical=TYPICAL_BLOCKS,
        )


TYPICAL_BLOCKS = (16, 32, 64, 128, 256, 784)
TYPICAL_TOKENS = (128, 512, 1024, 1500, 2048, 4096, 8192, 16384, 131072, 262144, 1048576)
