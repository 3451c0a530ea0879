"""An implementation in a process of its own, asked over the protocol."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from functools import cache
from typing import Any, NoReturn

from kvconform.conformance import protocol
from kvconform.conformance.channel import Channel, Lost, untimed
from kvconform.conformance.protocol import (
    Ask,
    Batch,
    Capabilities,
    Failure,
    Lack,
    ProtocolError,
    Question,
    Refusal,
    Reply,
    Start,
    Stop,
)
from kvconform.conformance.values import parameters, read_argument, read_result, to_wire
from kvconform.reference.interface import OPERATIONS, Implementation, Refused, Undocumented, Unsupported
from kvconform.reference.specs import Spec, defaults
from kvconform.reference.wire import spec_to_wire

OPENING_SECONDS = 120.0
"""Seconds that a process may take to answer ``start``: it may import torch from a cold disk."""

SHOWN = 300
"""Characters of a line that are shown."""

MOST_FAILED_STARTS = 3
"""Starts in a row that may fail before no more are tried."""


class BrokenExchange(BaseException):
    """A command was not answered as the protocol says, and the process was ended for it.

    Not an `Exception`: the question is not asked again and again to find a smaller one, since each
    time costs a process. `sent` and `got` are the exchange, `last_words` what it complained of.
    """

    def __init__(self, command: str, why: str, sent: str, got: str, last_words: str) -> None:
        answer = f"; got {got}" if got else ""
        super().__init__(f"{command}: {why}; sent {sent}{answer}")
        self.command = command
        self.why = why
        self.sent = sent
        self.got = got
        self.last_words = last_words


class Fell(Exception):
    """The process says that it fell over a question."""

    def __init__(self, message: str, last_words: str) -> None:
        super().__init__(message)
        self.last_words = last_words


class Malformed(Fell):
    """What the process answers is not of the operation's type."""


class ProcessImplementation(Implementation):
    """Asks the process of a command, and starts it anew after it has broken an exchange.

    The constructor starts it: raises OSError where the command cannot be run and `BrokenExchange`
    where it does not answer. Each question may take ``seconds_per_ask``. ``trace`` is told every
    line sent and received. ``asked`` counts the questions sent. ``environment`` is the process's,
    by default this one's.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        seconds_per_ask: float = 2.0,
        opening_seconds: float = OPENING_SECONDS,
        trace: Callable[[str, bytes], None] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._environment = environment
        self.command = tuple(command)
        self.seconds_per_ask = seconds_per_ask
        self.opening_seconds = opening_seconds
        self._trace = trace
        self._channel: Channel | None = None
        self._ids = itertools.count(1)
        self.asked = 0
        self._failed_starts = 0
        self._last_failure: BrokenExchange | None = None
        self._said = self._start()
        self.name = self._said.name
        self.version = self._said.version
        self._kinds = tuple(self._said.kinds)
        self._fields = {kind: frozenset(names) for kind, names in self._said.kinds.items()}
        self._operations = frozenset(self._said.operations)

    def kinds(self) -> tuple[str, ...]:
        return self._kinds

    def fields(self, kind: str) -> frozenset[str]:
        return self._fields.get(kind, frozenset())

    def operations(self) -> frozenset[str]:
        return self._operations

    def revisions(self) -> tuple[str, ...]:
        return self._said.revisions

    def location(self, operation: str, kind: str) -> str:
        place = self._said.locations.get(operation, "")
        return place if isinstance(place, str) else place.get(kind, "")

    def revive(self, alive: Callable[[], None] | None = None) -> None:
        """Start the process anew if it was ended; ``alive`` is called now and then meanwhile.

        Raises `BrokenExchange` when it does not start, or has not several times in a row.
        """
        if self._channel is not None:
            return
        if self._failed_starts >= MOST_FAILED_STARTS and self._last_failure is not None:
            raise self._last_failure
        with untimed():
            self._start(alive)

    def ask_all(self, questions: Sequence[tuple[str, Mapping[str, Any]]]) -> list[Any]:
        """The answers to several questions in one batch; what one raises stands in its place.

        Raises `BrokenExchange` where the process does not answer each in turn.
        """
        return self.begin(questions)()

    def begin(self, questions: Sequence[tuple[str, Mapping[str, Any]]]) -> Callable[[], list[Any]]:
        """Ask as `ask_all` does, and give what awaits the answers: others can be asked meanwhile.

        Whoever does not await them must `kill` the process.
        """
        self.revive()
        asks: list[Question] = []
        outcomes: list[Any] = []
        for operation, arguments in questions:
            try:
                asks.append(Question(next(self._ids), operation, self._arguments(operation, arguments)))
                outcomes.append(asks[-1])
            except Unsupported as lack:
                outcomes.append(lack)
        line = protocol.write(Batch(tuple(asks)))
        if asks:
            self._send(line)
            self.asked += len(asks)

        def finish() -> list[Any]:
            for place, (question, (_, arguments)) in enumerate(zip(outcomes, questions, strict=True)):
                if isinstance(question, Question):
                    reply = self._reply(question, f"batch, ask {question.id} ({question.operation})", line)
                    try:
                        outcomes[place] = self._answer(question.operation, arguments, reply)
                    except (Refused, Unsupported, Fell) as outcome:
                        outcomes[place] = outcome
            return outcomes

        return finish

    def close(self) -> None:
        """Tell the process to stop, and end it if it does not. Raises `BrokenExchange` then."""
        if self._channel is None:
            return
        line = protocol.write(Stop())
        self._tell("sent", line)
        why = self._channel.stop(line)
        if why is not None:
            self._break("stop", why, line, b"")
        self.kill()

    def kill(self) -> None:
        """End the process at once."""
        if self._channel is not None:
            self._channel.kill()
            self._channel = None

    def _ask(self, operation: str, arguments: Mapping[str, Any]) -> Any:
        if self._channel is None:
            self.revive()
        question = Ask(next(self._ids), operation, self._arguments(operation, arguments))
        line = protocol.write(question)
        self._send(line)
        self.asked += 1
        reply = self._reply(question, f"ask {question.id} ({operation})", line)
        return self._answer(operation, arguments, reply)

    def _arguments(self, operation: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        if operation not in self._operations:
            raise Unsupported(f"operation {operation}")
        # What is left at its default says nothing.
        return {
            name: to_wire(value, self._spec_form) for name, value in arguments.items() if value is not None
        }

    def _spec_form(self, spec: Spec) -> dict[str, Any]:
        """A spec with the fields that the implementation has."""
        wire = spec_to_wire(spec)
        kind = wire.get("base", spec.kind)
        if kind == "":
            return wire
        had = self._fields.get(kind)
        if had is None:
            raise Unsupported(f"kind {kind}")
        if len(had) + 1 + ("base" in wire) == len(wire):
            return wire
        usual = defaults(kind)
        for name in wire.keys() - had - {"kind", "base"}:
            plain = name == "head_size_v" and wire[name] == wire["head_size"]
            if wire[name] != usual[name] and not plain:
                raise Unsupported(f"field {kind}.{name}")
            del wire[name]
        return wire

    def _answer(self, operation: str, arguments: Mapping[str, Any], reply: Reply) -> Any:
        if isinstance(reply, Refusal):
            raise Refused(reply.refused) if reply.documented else Undocumented(reply.refused)
        if isinstance(reply, Lack):
            raise Unsupported(reply.unsupported)
        assert self._channel is not None
        if isinstance(reply, Failure):
            raise Fell(reply.error, self._channel.last_words)
        try:
            if reply.changed:
                _put_back(operation, arguments, reply.changed)
            return read_result(operation, reply.result)
        except ValueError as error:
            got = _shorten(protocol.write(reply))
            raise Malformed(f"{operation}: {error}; got {got}", self._channel.last_words) from None

    def _reply(self, question: Question, command: str, line: bytes) -> Reply:
        assert self._channel is not None
        got = b""
        try:
            got = self._channel.receive(self.seconds_per_ask)
            self._tell("received", got)
            reply = protocol.read_reply(got)
        except Lost as lost:
            self._break(command, str(lost), line, lost.partial)
        except ProtocolError as error:
            self._break(command, str(error), line, got)
        except BaseException:
            # Interrupted: its answer would be taken for that to the next question.
            self.kill()
            raise
        if reply.id != question.id:
            self._break(command, f"an answer to ask {reply.id}", line, got)
        return reply

    def _start(self, alive: Callable[[], None] | None = None) -> Capabilities:
        self._channel = Channel(self.command, self._environment)
        line = protocol.write(Start(protocol.VERSION, _version()))
        self._send(line)
        got = b""
        try:
            got = self._channel.receive(self.opening_seconds, alive)
            self._tell("received", got)
            said = protocol.read_capabilities(got)
        except Lost as lost:
            self._break_start(str(lost), line, lost.partial)
        except ProtocolError as error:
            self._break_start(str(error), line, got)
        except BaseException:
            self.kill()
            raise
        self._failed_starts = 0
        return said

    def _send(self, line: bytes) -> None:
        assert self._channel is not None
        self._tell("sent", line)
        self._channel.send(line)

    def _tell(self, what: str, line: bytes) -> None:
        if self._trace is not None:
            self._trace(what, line)

    def _break(self, command: str, why: str, line: bytes, got: bytes) -> NoReturn:
        assert self._channel is not None
        channel, self._channel = self._channel, None
        channel.kill()
        raise BrokenExchange(command, why, _shorten(line), _shorten(got), channel.last_words)

    def _break_start(self, why: str, line: bytes, got: bytes) -> NoReturn:
        self._failed_starts += 1
        try:
            self._break("start", why, line, got)
        except BrokenExchange as broken:
            self._last_failure = broken
            raise


def _operation(name: str) -> Callable[..., Any]:
    names = parameters(name)

    def ask(self: ProcessImplementation, *arguments: Any, **named: Any) -> Any:
        return self._ask(name, {**dict(zip(names, arguments, strict=False)), **named})

    ask.__name__ = name
    ask.__doc__ = getattr(Implementation, name).__doc__
    return ask


for _name in OPERATIONS:
    setattr(ProcessImplementation, _name, _operation(_name))


def _put_back(operation: str, arguments: Mapping[str, Any], changed: Mapping[str, Any]) -> None:
    """Give mappings of layers what the implementation made of its copies of them."""
    for name, wire in changed.items():
        before, after = arguments.get(name), read_argument(operation, name, wire)
        pairs = [(before, after)] if isinstance(after, dict) else zip(before or (), after, strict=False)
        for mine, theirs in pairs:
            if isinstance(mine, MutableMapping) and isinstance(theirs, dict):
                mine.clear()
                mine.update(theirs)


@cache
def _version() -> str:
    from importlib.metadata import version

    return version("kvconform")


def _shorten(line: bytes) -> str:
    text = line.decode(errors="backslashreplace").rstrip("\n")
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."
