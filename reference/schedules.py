"""Schedules: what a scheduler asks of a block manager, step by step, and what it is answered.

A schedule is a script that any allocator can be driven by, and a trace is what it did at each
event; laws about holding blocks compare the two (LAWS.md, area hold).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from kvconform.reference.deployment import Deployment

ACTIONS = ("schedule", "settle", "finish")
"""What an event may do, as `Event` says."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """One request: ``prompt_tokens`` (at least 1), and whose prompts it shares.

    Prompts of requests with the same ``prefix`` have the same tokens as far as both reach; what
    is generated differs. ``external_tokens`` are tokens whose cache is brought from elsewhere when
    the request is admitted; they follow those found in the prefix cache. ``encoder_tokens`` are
    what a cross-attention layer holds states of.
    """

    prompt_tokens: int
    prefix: int = 0
    external_tokens: int = 0
    encoder_tokens: int = 0


@dataclass(frozen=True, kw_only=True)
class Event:
    """One event of a request, which is named by its place in the schedule.

    ``schedule``: the request's next step: of the prompt up to ``tokens`` tokens, past it one token
    and ``drafts`` that may be rejected, and never past the maximum length. ``lookahead`` slots are
    reserved after them. The first one admits the request. Nothing happens while as many steps as
    the deployment has concurrent batches are in flight. A request that there are too few free
    blocks for is given up: it is freed, and its later events do nothing.

    ``settle``: the oldest step of the request is done; ``rejected`` of its drafts, as far as it has
    so many, are taken back. ``finish``: the request ends and is freed.
    """

    action: str
    request: int
    tokens: int = 1
    drafts: int = 0
    lookahead: int = 0
    rejected: int = 0


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Requests, and events in their order."""

    requests: tuple[Request, ...]
    events: tuple[Event, ...]
    prefix_caching: bool = False


@dataclass(frozen=True, kw_only=True)
class Moment:
    """What an event did, and what is held after it.

    ``tables`` are block ids by request, group and block of the request; the null block stands for
    what was freed, and a request that holds nothing has no groups. ``outcome`` is ``scheduled``,
    ``short`` (of free blocks), ``nothing``, or ``fell`` where the manager fell over the event, with
    the ``reason``: a trace ends there. Where a step was scheduled, ``reserved_blocks`` were
    found necessary and ``taken_blocks`` left the free ones; ``computed_tokens`` are the request's
    after the event, those in flight included. Where a request was admitted, ``hit_blocks`` are
    those of each group that the prefix cache had, and ``hit_tokens`` what they stand for.
    """

    outcome: str
    free_blocks: int
    tables: tuple[tuple[tuple[int, ...], ...], ...]
    computed_tokens: int = 0
    reserved_blocks: int = 0
    taken_blocks: int = 0
    hit_tokens: int = 0
    hit_blocks: tuple[tuple[int, ...], ...] = ()
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Trace:
    """What one manager did with a schedule: free blocks before it, and a moment for each event.

    Fewer only where it fell over one.

    ``withheld_blocks`` are ids that layers address outside any request's table, such as sinks; the
    null block is not among them.
    """

    null_block: int
    withheld_blocks: tuple[int, ...]
    free_blocks: int
    moments: tuple[Moment, ...]


@dataclass
class Progress:
    """How far one request has come: tokens computed, and the (tokens, drafts) of steps in flight.

    ``first_read`` is where its newest step begins, less the drafts then in flight: every later step
    begins there or further on, since no more than those can be taken back.
    """

    request: Request
    deployment: Deployment
    computed: int = 0
    first_read: int = 0
    in_flight: list[tuple[int, int]] = field(default_factory=list)
    admitted: bool = False
    ended: bool = False

    @property
    def settled(self) -> int:
        """Tokens computed and settled."""
        return self.computed - sum(tokens for tokens, _ in self.in_flight)

    def next_step(self, event: Event, computed: int) -> tuple[int, int]:
        """Tokens and drafts of the step that an event schedules at ``computed`` tokens; (0, 0): none."""
        if self.ended or len(self.in_flight) == self.deployment.max_concurrent_batches:
            return 0, 0
        room = self.deployment.max_model_len - computed
        within = self.request.prompt_tokens - computed
        if within > 0:
            return min(event.tokens, room, within), 0
        tokens = min(1 + event.drafts, room)
        return tokens, max(0, tokens - 1)

    def admitted_at(self, hit_tokens: int) -> int:
        """Tokens computed once it is admitted with so many found: external ones come after them.

        The prompt's last token is always computed.
        """
        return hit_tokens + min(self.request.external_tokens, self.request.prompt_tokens - 1 - hit_tokens)

    def advance(self, start: int, tokens: int, drafts: int) -> None:
        """A step of these tokens was scheduled at ``start``, where what hits brought ends."""
        self.first_read = start - sum(drafts for _, drafts in self.in_flight)
        self.admitted = True
        self.computed = start + tokens
        self.in_flight.append((tokens, drafts))

    def settle(self, event: Event) -> None:
        """The oldest step is done, some of its drafts taken back."""
        if self.in_flight:
            _, drafts = self.in_flight.pop(0)
            self.computed -= min(event.rejected, drafts)

    def end(self) -> None:
        """The request is freed; it schedules nothing more."""
        self.ended = True
        self.in_flight.clear()


def follow(
    schedule: Schedule, trace: Trace, deployment: Deployment
) -> Iterator[tuple[Event, Moment, list[Progress]]]:
    """Each event with what it did and how far every request then is.

    Raises ValueError where the trace cannot be one of the schedule.
    """
    moments = trace.moments
    fell = bool(moments) and moments[-1].outcome == "fell"
    if len(moments) > len(schedule.events) or (len(moments) < len(schedule.events) and not fell):
        raise ValueError(f"{len(moments)} moments of {len(schedule.events)} events")
    progress = [Progress(request, deployment) for request in schedule.requests]
    for event, moment in zip(schedule.events, moments, strict=False):
        mine = progress[event.request]
        _check(event, moment, mine)
        if len(moment.tables) != len(progress):
            raise ValueError(f"tables of {len(moment.tables)} requests, of {len(progress)}")
        if event.action == "finish" or moment.outcome == "short":
            mine.end()
        elif event.action == "settle":
            mine.settle(event)
        elif moment.outcome == "scheduled":
            start = mine.computed if mine.admitted else mine.admitted_at(moment.hit_tokens)
            mine.advance(start, *mine.next_step(event, start))
        if moment.outcome != "fell" and not mine.ended and moment.computed_tokens != mine.computed:
            raise ValueError(
                f"{event.action} of request {event.request}: the trace says "
                f"{moment.computed_tokens} tokens computed, its events say {mine.computed}"
            )
        yield event, moment, progress


def _check(event: Event, moment: Moment, mine: Progress) -> None:
    """Raise ValueError unless the event can have had this outcome."""
    start = mine.computed if mine.admitted else mine.admitted_at(moment.hit_tokens)
    steps = event.action == "schedule" and mine.next_step(event, start)[0] > 0
    possible = ("scheduled", "short", "fell") if steps else ("nothing", "fell")
    if moment.outcome not in possible:
        raise ValueError(
            f"{event.action} of request {event.request}: outcome {moment.outcome!r}, "
            f"wanted one of {', '.join(possible)}"
        )
