"""Pools and schedules for a block manager: a few small requests, driven step by step."""

from __future__ import annotations

from typing import Any, NamedTuple

from kvconform.properties import drawn
from kvconform.properties.given import Given
from kvconform.reference.allocation import is_found_again
from kvconform.reference.deployment import Deployment
from kvconform.reference.grouping import KVCacheGroupSpec
from kvconform.reference.planning import KVCacheConfig
from kvconform.reference.schedules import Event, Request, Schedule
from kvconform.reference.specs import AttentionSpec, CrossAttention, Mamba, SinkFullAttention, Spec, make

POOLS = (2, 4, 8, 12, 16, 24, 32, 64)
"""Blocks of a pool: few enough that requests compete for them, enough that they need not."""

BESIDE = ("nothing", "full_attention", "sliding_window")
"""What else may share the pool, as a group of its own."""

EVENTS = (1, 2, 4, 8, 12, 16)
"""How many: enough for a request to go from its prompt past it beside another."""

DRAFTS = (0, 1, 2, 4)

CACHING = {"off": (1, 2), "alike": (2, 3), "on": (1, 2, 3)}
"""Of prefixes: not at all, of requests that all begin alike, or of any that do; and of how many."""

LONGEST = 24
"""Blocks of the smallest group that no request is longer than."""

ACTIONS = (
    *("schedule", "schedule and settle", "schedule all"),
    *("schedule all and settle", "schedule all and settle"),
    *("settle", "finish"),
)
"""What an event drawn may stand for; steps settle sooner or later, and most prompts are short."""


class Pool(NamedTuple):
    """What a manager is made for, and what it is driven by."""

    config: KVCacheConfig
    deployment: Deployment
    schedule: Schedule

    @property
    def specs(self) -> tuple[Spec, ...]:
        """The groups' specs."""
        return tuple(group.kv_cache_spec for group in self.config.kv_cache_groups)


def pool(given: Given, *, lookahead: bool = True, alike: bool = False) -> Pool:
    """A pool for a group of the kind under test, perhaps beside another, and a schedule for it.

    Steps keep to the deployment's batches, and chunks for mamba that keeps states at block
    boundaries end at one, as a scheduler has it. ``lookahead`` lets slots be reserved past a step.
    With ``alike`` all requests begin alike, and the cache may find it.
    """
    block = given.integer("block_size", at_least=1, at_most=6)
    specs = [_spec(given, "spec", given.kind, block)]
    known = [kind for kind in BESIDE if kind == "nothing" or kind in given.implementation.kinds()]
    beside = given.choice("beside", known)
    if beside != "nothing":
        if given.flag("other.twice_the_block"):
            block *= 2
        specs.append(_spec(given, "other", beside, block))
    blocks = given.choice("num_blocks", POOLS)
    caching = "alike" if alike else given.choice("prefix_caching", tuple(CACHING))
    found = caching != "off" and all(map(is_found_again, specs))
    batch = given.integer("batch", at_least=1, at_most=2 * block)
    requests = _requests(given, specs, block, caching)
    longest = max(request.prompt_tokens for request in requests)
    deployment = Deployment(
        max_model_len=longest + given.integer("generated", at_least=1, at_most=4 * block),
        max_num_batched_tokens=max(batch, _chunk_unit(specs)),
        max_concurrent_batches=given.choice("concurrent", (1, 2, 3)),
        max_encoder_tokens=max(request.encoder_tokens for request in requests),
    )
    events = _events(given, len(requests), deployment, specs, lookahead)
    groups = tuple(
        KVCacheGroupSpec(layer_names=(f"layers.{index}",), kv_cache_spec=spec)
        for index, spec in enumerate(specs)
    )
    sinks = sum(
        (spec.sink_len or 0) // spec.block_size for spec in specs if isinstance(spec, SinkFullAttention)
    )
    config = KVCacheConfig(num_blocks=blocks + sinks, kv_cache_tensors=(), kv_cache_groups=groups)
    return Pool(config, deployment, Schedule(requests=requests, events=events, prefix_caching=found))


def _spec(given: Given, name: str, kind: str, block: int) -> Any:
    """A spec whose bytes are as small as can be: a manager never looks at them."""
    if kind == "mamba":
        mode = given.choice(f"{name}.mamba_cache_mode", ("none", "align", "all"))
        # A state that is kept at no block boundary has one block for a request of any length.
        whole = LONGEST * block if mode == "none" else block
        return Mamba(block_size=whole, shapes=((1,),), dtypes=("bfloat16",), mamba_cache_mode=mode)
    has = given.implementation.fields(kind)
    own: dict[str, Any] = {}
    for field in ("sliding_window", "attention_chunk_size", "rswa_window"):
        if field in drawn.needed(kind):
            own[field] = given.integer(f"{name}.{field}", at_least=1, at_most=2 * block)
    if "extra_retained_tokens" in has:
        own["extra_retained_tokens"] = given.choice(f"{name}.extra_retained_tokens", (0, 2 * block))
    if kind == "sink_full_attention" and "sink_len" in has:
        own["sink_len"] = block * given.choice(f"{name}.sink_blocks", (1, 2))
    return make(kind, block_size=block, num_kv_heads=1, head_size=1, dtype="bfloat16", **own)


def _requests(given: Given, specs: list[Any], block: int, caching: str) -> tuple[Request, ...]:
    encodes = any(isinstance(spec, CrossAttention) for spec in specs)
    bringable = all(isinstance(spec, AttentionSpec) for spec in specs) and not encodes
    unit = _chunk_unit(specs)
    requests = []
    for index in range(given.choice("requests", CACHING[caching])):
        whole = block * given.choice(f"request{index}.prompt_blocks", (0, 1, 3, 6))
        # A scheduler ends a chunk at the prompt's last boundary, so the prompt may as well end there.
        rest = given.integer(
            f"request{index}.prompt_rest", at_least=unit, at_most=max(block, unit), multiple_of=unit
        )
        prompt = whole + rest
        brought = bringable and given.flag(f"request{index}.external")
        requests.append(
            Request(
                prompt_tokens=prompt,
                prefix=given.choice(f"request{index}.prefix", (0, 1)) if caching == "on" else 0,
                external_tokens=given.integer(f"request{index}.external_tokens", at_most=prompt - 1)
                if brought
                else 0,
                encoder_tokens=given.integer(f"request{index}.encoder_tokens", at_least=1, at_most=8 * block)
                if encodes
                else 0,
            )
        )
    return tuple(requests)


def _events(
    given: Given, requests: int, deployment: Deployment, specs: list[Any], lookahead: bool
) -> tuple[Event, ...]:
    stateful = any(isinstance(spec, Mamba) for spec in specs)
    unit = _chunk_unit(specs)
    batch = deployment.max_num_batched_tokens // unit * unit
    events: list[Event] = []
    begun = 0
    for index in range(given.choice("events", EVENTS)):
        action = given.choice(f"event{index}.action", ACTIONS)
        # Requests are numbered as they first take part: the others of equal meaning are left out.
        request = given.integer(f"event{index}.request", at_most=min(begun, requests - 1))
        begun = max(begun, request + 1)
        if action.startswith("schedule"):
            tokens = batch
            if "all" not in action:
                tokens = given.integer(f"event{index}.tokens", at_least=unit, at_most=batch, multiple_of=unit)
            # Drafts of stateful layers take states of their own, which no event writes.
            drafts = 0 if stateful else min(given.choice(f"event{index}.drafts", DRAFTS), batch - 1)
            ahead = given.integer(f"event{index}.lookahead", at_most=2) if lookahead and not stateful else 0
            events.append(
                Event(action="schedule", request=request, tokens=tokens, drafts=drafts, lookahead=ahead)
            )
        if action.endswith("settle"):
            rejected = 0 if stateful else given.integer(f"event{index}.rejected", at_most=4)
            events.append(Event(action="settle", request=request, rejected=rejected))
        if action == "finish":
            events.append(Event(action="finish", request=request))
    return tuple(events)


def _chunk_unit(specs: list[Any]) -> int:
    """Tokens that a chunk of a prompt is a multiple of, unless it ends the prompt."""
    aligned = [s.block_size for s in specs if isinstance(s, Mamba) and s.mamba_cache_mode == "align"]
    return max(aligned, default=1)
