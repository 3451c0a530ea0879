"""The sampling engine: Hypothesis looks for inputs on which a law breaks and shrinks them."""

from __future__ import annotations

import signal
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import hypothesis.errors
from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis import strategies as st
from kvconform.properties.given import LARGEST, Bounds, Given, Rejected
from kvconform.properties.law import Law, Violation
from kvconform.reference.interface import Implementation, Refused, Unsupported

SMALL = (*range(13), 15, 16, 17, 23, 24, 31, 32, 33)
"""Offsets met most often: block edges lie among small numbers."""

HUGE = (-1, True)
NOTHING = (-2, True)


@dataclass
class Outcome:
    """What sampling one law on one kind found.

    ``verdict`` is held, violated, unsupported, inconclusive or broken; ``examples`` counts the
    runs that met every assumption; ``case`` holds the draws of the smallest failing run.
    """

    verdict: str
    examples: int = 0
    message: str = ""
    case: dict[str, Any] = field(default_factory=dict)


class Fault(Exception):
    """The implementation raised what is neither an answer nor a refusal."""


class TooSlow(BaseException):
    """One run of a law exceeded its time limit; not an `Exception`, so nothing swallows it."""


FEWEST_LACKING = 16
"""Runs of which none could be asked before a law is taken to lack something in all."""


class Lacks(BaseException):
    """The implementation lacks what every run so far has asked for; said by an `Unsupported`."""


class SampledGiven(Given):
    """Draws from Hypothesis and records every draw by its name.

    A draw from Hypothesis costs far more than the arithmetic that most laws do. So one byte string
    is drawn for the whole run, and every input picks with its next byte from a list that has the
    simplest value first: Hypothesis then makes a case smaller by making bytes smaller.
    """

    def __init__(
        self, implementation: Implementation, kind: str, draw: Callable[[st.SearchStrategy[Any]], Any]
    ) -> None:
        super().__init__(implementation, kind)
        self.case: dict[str, Any] = {}
        self._draw = draw
        self._bytes: bytes = draw(_BYTES)
        self._used = 0

    def draw_integer(self, name: str, bounds: Bounds) -> int:
        value = self._integer(bounds, optional=False)
        assert value is not None
        self._record(name, value)
        return value

    def draw_optional(self, name: str, bounds: Bounds) -> int | None:
        value = self._integer(bounds, optional=True)
        self._record(name, value)
        return value

    def choice(self, name: str, options: Sequence[Any]) -> Any:
        value = options[0] if len(options) == 1 else self._pick(options)
        self._record(name, value)
        return value

    def _record(self, name: str, value: Any) -> None:
        if name in self.case:
            raise ValueError(f"the law draws {name!r} twice: a case could not be replayed")
        self.case[name] = value

    def _pick(self, values: Sequence[Any]) -> Any:
        if self._used == len(self._bytes):
            self._bytes, self._used = self._draw(_BYTES), 0
        byte = self._bytes[self._used]
        self._used += 1
        return values[byte % len(values)]

    def _integer(self, bounds: Bounds, optional: bool) -> int | None:
        at_least, at_most, multiple_of, typical = bounds
        highest = max(LARGEST, at_least) if at_most is None else at_most
        low = -(-at_least // multiple_of)
        high = highest // multiple_of
        if high < low:
            raise Rejected
        picked: tuple[int, bool] = self._pick(_values(typical, optional))
        if picked == NOTHING:
            return None
        if picked == HUGE:
            return (low + int(self._draw(_upto(high - low)))) * multiple_of
        number, is_offset = picked
        value = low + number if is_offset else number
        if not low <= value <= high:
            value = low + number % (high - low + 1)
        return value * multiple_of


_BYTES = st.binary(min_size=24, max_size=24)


@lru_cache(maxsize=1024)
def _values(typical: tuple[int, ...], optional: bool) -> tuple[tuple[int, bool], ...]:
    # A small number is an offset from the least value allowed; a typical one stands for itself.
    values = [*sorted([(number, True) for number in SMALL] + [(number, False) for number in set(typical)])]
    values += [HUGE] * 2
    return tuple([NOTHING] * len(values) + values if optional else values)


@lru_cache(maxsize=4096)
def _upto(span: int) -> st.SearchStrategy[int]:
    return st.integers(0, span)


Draw = Callable[[st.SearchStrategy[Any]], Any]


@st.composite
def _drawing(draw: Draw, run: Callable[[Draw], None]) -> None:
    """Whatever a run draws. Hypothesis reads the source of what is composed, so this is made once."""
    run(draw)


def run_law(law: Law, implementation: Implementation, given_inputs: Given) -> None:
    """Run a law once, its outcome told by what is raised.

    Returns when it holds. Raises `Violation`, `Unsupported`, `Rejected` or `Fault`; a refusal that
    the law does not expect is a violation, since laws draw well-formed inputs.
    """
    try:
        law.check(implementation, given_inputs)
    except (Violation, Unsupported, Rejected):
        raise
    except Refused as refusal:
        raise Violation(f"refused a well-formed input: {refusal}") from refusal
    except (MemoryError, RecursionError) as error:
        raise Fault(f"{type(error).__name__}: {error}") from error
    except Exception as error:
        if type(error).__module__.startswith("hypothesis"):
            raise
        raise Fault(f"{type(error).__name__}: {error}") from error


def sample(
    law: Law,
    implementation: Implementation,
    kind: str,
    *,
    examples: int,
    seed_number: int,
    seconds_per_run: float = 5.0,
    trace: Callable[[dict[str, Any]], None] | None = None,
    shrink: bool = True,
) -> Outcome:
    """Look for a case of the law that fails, and shrink it unless told otherwise.

    The same seed gives the same outcome whatever else runs, since each law and kind derives its
    own from it. ``trace`` is called as each run begins with its draws, a mapping that fills up as
    the law asks: a caller that keeps it can tell the case in which a process died.
    """
    missing = law.missing(implementation, kind)
    if missing is not None:
        return Outcome("unsupported", message=missing)
    counted = 0
    lacking: list[str] = []
    failure: dict[str, Any] = {}

    def run(draw: Draw) -> None:
        nonlocal counted
        inputs = SampledGiven(implementation, kind, draw)
        if trace is not None:
            trace(inputs.case)
        try:
            with time_limit(seconds_per_run):
                run_law(law, implementation, inputs)
        except Rejected:
            hypothesis.reject()
        except Unsupported as absent:
            lacking.append(str(absent))
            if not counted and len(lacking) >= max(examples, FEWEST_LACKING):
                raise Lacks from absent
            hypothesis.reject()
        except (Violation, Fault):
            failure.clear()
            failure.update(inputs.case)
            raise
        except TooSlow:
            # Hypothesis lets a BaseException through: a hang is reported as met, never shrunk.
            failure.update(inputs.case)
            raise
        counted += 1

    @seed(zlib.crc32(f"{seed_number}:{law.id}:{kind}".encode()))
    @settings(
        max_examples=examples,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink) if shrink else (Phase.generate,),
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
        print_blob=False,
        verbosity=Verbosity.quiet,
    )
    @given(_drawing(run))
    def search(_: None) -> None:
        pass

    try:
        search()
    except Violation as violation:
        return Outcome("violated", counted, str(violation), dict(failure))
    except Fault as fault:
        return Outcome("broken", counted, str(fault), dict(failure))
    except TooSlow:
        message = f"no answer within {seconds_per_run:g} s"
        return Outcome("broken", counted, message, dict(failure))
    except Lacks:
        pass
    except hypothesis.errors.Flaky:
        return Outcome("broken", counted, "answers differently to the same question", dict(failure))
    except hypothesis.errors.Unsatisfiable:
        pass
    if counted:
        return Outcome("held", counted)
    if lacking:
        return Outcome("unsupported", message=lacking[0])
    return Outcome("inconclusive", message="no drawn input met the assumptions of the law")


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise `TooSlow` in the body after so many seconds, where the platform can interrupt it."""
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(_signal: int, _frame: object) -> None:
        raise TooSlow

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
