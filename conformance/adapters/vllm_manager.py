"""Drives a vLLM release's block manager by a schedule, as its scheduler does.

Beside `vllm_planner.py`, and like it: dictionaries in, dictionaries out, parameters are looked
for, never version numbers. Prefixes are hashed at whole blocks of every group, so that no block is
shared in part, which copies it on the device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

from kvconform.conformance.adapters.vllm_modules import (
    MANAGERS,
    UTILITIES,
    PlanningModules,
    parameters,
    taken,
)
from kvconform.conformance.adapters.vllm_outcomes import Refused, Unsupported

POOL = "vllm.v1.core.block_pool"
COORDINATOR = "vllm.v1.core.kv_cache_coordinator"
MANAGER = "vllm.v1.core.kv_cache_manager"

LOADED = (UTILITIES, POOL, MANAGERS, COORDINATOR, MANAGER)
"""What a manager is made of, each after what it imports."""

Wire = dict[str, Any]


def follow_schedule(modules: PlanningModules, config: Any, deployment: Wire, schedule: Wire) -> Wire:
    """What a manager of the release does with a schedule: a trace.

    Raises `Unsupported` where none can be made for the configuration's groups, or it reads what
    is not here.
    """
    modules.registry()
    for module in LOADED:
        modules.load(module)
    make = modules.load(MANAGER).KVCacheManager
    sizes = [group.kv_cache_spec.block_size for group in config.kv_cache_groups]
    try:
        manager = modules.call(make, config, **manager_arguments(make, sizes, deployment, schedule))
    except Refused as refusal:
        kinds = ", ".join(type(group.kv_cache_spec).__name__ for group in config.kv_cache_groups)
        raise Unsupported(f"a manager for {kinds}: {refusal}") from refusal
    return Driver(modules, manager, schedule, deployment, math.gcd(*sizes)).trace(schedule["events"])


def manager_arguments(make: Any, sizes: Sequence[int], deployment: Wire, schedule: Wire) -> Wire:
    """What the release's manager class is given for groups of these block sizes, by name."""
    given = {
        "max_model_len": deployment["max_model_len"],
        "scheduler_block_size": math.lcm(*sizes),
        "hash_block_size": math.gcd(*sizes),
        "max_num_batched_tokens": deployment["max_num_batched_tokens"],
        "max_in_flight_tokens": deployment["in_flight_tokens"],
        "enable_caching": schedule["prefix_caching"],
    }
    return taken(given, make.__init__)


class Driver:
    """One manager of the release, and the requests of one schedule."""

    def __init__(
        self, modules: PlanningModules, manager: Any, schedule: Wire, deployment: Wire, unit: int
    ) -> None:
        self.modules = modules
        self.manager = manager
        self.deployment = deployment
        self.requests = [StandIn(index, wire, unit) for index, wire in enumerate(schedule["requests"])]
        self.pool = manager.block_pool
        self.reservations: list[tuple[int, int]] = []
        self._watch()

    def _watch(self) -> None:
        """Note each number of blocks that is found necessary, and how many were free then."""
        coordinator = self.manager.coordinator
        asked = coordinator.get_num_blocks_to_allocate

        def watched(*arguments: Any, **named: Any) -> int:
            needed: int = asked(*arguments, **named)
            self.reservations.append((needed, self.pool.get_num_free_blocks()))
            return needed

        coordinator.get_num_blocks_to_allocate = watched

    def trace(self, events: Sequence[Wire]) -> Wire:
        """What the manager does at each event."""
        free = self.pool.get_num_free_blocks()
        moments: list[Wire] = []
        for event in events:
            moments.append(self._moment(event))
            if moments[-1]["outcome"] == "fell":
                break
        return {
            "null_block": self.pool.null_block.block_id,
            "withheld_blocks": self._withheld(),
            "free_blocks": free,
            "moments": moments,
        }

    def _withheld(self) -> list[int]:
        managers = self.manager.coordinator.single_type_managers
        return [block.block_id for manager in managers for block in getattr(manager, "sink_blocks", ())]

    def _moment(self, event: Wire) -> Wire:
        request = self.requests[event["request"]]
        did: Wire = {"outcome": "nothing"}
        try:
            if event["action"] == "schedule":
                self._schedule(request, event, did)
            elif event["action"] == "settle":
                request.settle(event["rejected"])
            elif not request.ended:
                self._end(request)
        except Refused as fall:
            did |= {"outcome": "fell", "reason": str(fall)}
        return {
            "free_blocks": self.pool.get_num_free_blocks(),
            "tables": [self._table(request) for request in self.requests],
            "computed_tokens": request.num_computed_tokens,
            **did,
        }

    def _schedule(self, request: StandIn, event: Wire, did: Wire) -> None:
        steps = self.deployment["max_concurrent_batches"]
        if request.ended or len(request.in_flight) == steps:
            return
        named: Wire = {}
        hit_tokens = 0
        if not request.admitted:
            computed = self.modules.call(self.manager.get_computed_blocks, request)
            blocks, hit_tokens = computed[:2]
            if len(computed) > 2:
                request.shared_prefix_boundary = computed[2]
            named["new_computed_blocks"] = blocks
            did["hit_tokens"] = hit_tokens
            did["hit_blocks"] = [[block.block_id for block in group] for group in blocks.blocks]
        step = request.next_step(event, hit_tokens, self.deployment["max_model_len"])
        if step.tokens == 0:
            return
        named |= slots_arguments(type(self.manager), request, event, hit_tokens)
        self.reservations.clear()
        if self.modules.call(self.manager.allocate_slots, request, step.tokens, **named) is None:
            self._end(request)
            did["outcome"] = "short"
            return
        needed, free = self.reservations[-1]
        request.advance(step)
        taken = free - self.pool.get_num_free_blocks()
        did |= {"outcome": "scheduled", "reserved_blocks": needed, "taken_blocks": taken}

    def _end(self, request: StandIn) -> None:
        self.modules.call(self.manager.free, request)
        request.end()

    def _table(self, request: StandIn) -> list[list[int]]:
        if request.ended or not request.admitted:
            return []
        return [list(group) for group in self.manager.get_block_ids(request.request_id)]


def slots_arguments(manager_class: Any, request: StandIn, event: Wire, hit_tokens: int) -> Wire:
    """What a step is given slots by, besides its tokens and the blocks found for it."""
    named: Wire = {"num_lookahead_tokens": event["lookahead"]}
    if "has_scheduled_reqs" in parameters(manager_class.allocate_slots):
        # Alone in its step: no watermark is kept free for others.
        named["has_scheduled_reqs"] = False
    if not request.admitted:
        named |= {
            "num_new_computed_tokens": hit_tokens,
            "num_external_computed_tokens": request.brought(hit_tokens),
            "num_encoder_tokens": request.encoder_tokens,
        }
    return named


class Step(NamedTuple):
    """Tokens that are computed from ``start`` on, and how many of them are drafts; no tokens: none."""

    start: int
    tokens: int
    drafts: int


class StandIn(SimpleNamespace):
    """What a block manager reads of a request, and how far the request is."""

    def __init__(self, index: int, wire: Wire, unit: int) -> None:
        super().__init__(
            request_id=f"request {index}",
            num_prompt_tokens=wire["prompt_tokens"],
            num_tokens=wire["prompt_tokens"],
            num_computed_tokens=0,
            num_in_flight_tokens=0,
            num_preemptions=0,
            shared_prefix_boundary=0,
            skip_reading_prefix_cache=False,
            lora_request=None,
            session_id=None,
            mm_features=[],
            external_tokens=wire["external_tokens"],
            encoder_tokens=wire["encoder_tokens"],
            prefix=wire["prefix"],
            unit=unit,
            in_flight=[],
            admitted=False,
            ended=False,
            block_hashes=[],
            all_token_ids=[0] * wire["prompt_tokens"],
        )
        self._hash()

    def brought(self, hit_tokens: int) -> int:
        """External tokens after so many found; the prompt's last token is always computed."""
        external: int = min(self.external_tokens, self.num_prompt_tokens - 1 - hit_tokens)
        return external

    def next_step(self, event: Wire, hit_tokens: int, longest: int) -> Step:
        """The step that the event schedules."""
        start = self.num_computed_tokens if self.admitted else hit_tokens + self.brought(hit_tokens)
        room = longest - start
        within = self.num_prompt_tokens - start
        if within > 0:
            return Step(start, min(event["tokens"], room, within), 0)
        tokens = min(1 + event["drafts"], room)
        return Step(start, tokens, max(0, tokens - 1))

    def advance(self, step: Step) -> None:
        """The step is in flight."""
        self.in_flight.append((step.tokens, step.drafts))
        self.num_computed_tokens = step.start + step.tokens
        self.num_in_flight_tokens += step.tokens
        self.admitted = True

    def settle(self, rejected: int) -> None:
        """The oldest step is done, so many of its drafts taken back as far as it has them."""
        if not self.in_flight:
            return
        tokens, drafts = self.in_flight.pop(0)
        self.num_computed_tokens -= min(rejected, drafts)
        self.num_in_flight_tokens -= tokens
        settled = self.num_computed_tokens - self.num_in_flight_tokens
        if settled >= self.num_prompt_tokens:
            # The last settled step gave the token after its own.
            self.num_tokens = settled + 1
            self._hash()

    def end(self) -> None:
        """The request is freed."""
        self.ended = True
        self.in_flight.clear()

    def _hash(self) -> None:
        """Hashes of whole units of known tokens: the same for the same leading tokens only."""
        for end in range(len(self.block_hashes) + 1, self.num_tokens // self.unit + 1):
            shared = end * self.unit <= self.num_prompt_tokens
            whose = f"prefix {self.prefix}" if shared else self.request_id
            self.block_hashes.append(f"{whose}, {end * self.unit} tokens".encode())
        self.all_token_ids = [0] * self.num_tokens
