"""Small schedules for the tests of the block manager, in few words."""

from __future__ import annotations

from typing import Any

from kvconform.reference.allocation import follow_schedule
from kvconform.reference.deployment import Deployment
from kvconform.reference.grouping import KVCacheGroupSpec
from kvconform.reference.planning import KVCacheConfig
from kvconform.reference.schedules import Event, Moment, Request, Schedule, Trace
from kvconform.reference.specs import Mamba, Spec, make

CELL: dict[str, Any] = {"num_kv_heads": 1, "head_size": 1, "dtype": "bfloat16"}
"""A manager never looks at bytes."""


def attention(kind: str = "full_attention", block_size: int = 2, **own: Any) -> Any:
    """A spec of an attention kind."""
    return make(kind, block_size=block_size, **CELL, **own)


def mamba(mode: str, block_size: int = 2, **own: Any) -> Mamba:
    """A spec of states that are kept as the mode says."""
    return Mamba(block_size=block_size, shapes=((1,),), dtypes=("bfloat16",), mamba_cache_mode=mode, **own)


def step(tokens: int = 1, request: int = 0, *, drafts: int = 0, lookahead: int = 0) -> Event:
    return Event(action="schedule", request=request, tokens=tokens, drafts=drafts, lookahead=lookahead)


def settle(request: int = 0, *, rejected: int = 0) -> Event:
    return Event(action="settle", request=request, rejected=rejected)


def finish(request: int = 0) -> Event:
    return Event(action="finish", request=request)


def prompt(tokens: int, **more: int) -> Request:
    return Request(prompt_tokens=tokens, **more)


def configuration(*specs: Spec, num_blocks: int = 16) -> KVCacheConfig:
    """A pool of so many blocks for one group of each spec."""
    groups = tuple(
        KVCacheGroupSpec(layer_names=(f"layer.{index}",), kv_cache_spec=spec)
        for index, spec in enumerate(specs)
    )
    return KVCacheConfig(num_blocks=num_blocks, kv_cache_tensors=(), kv_cache_groups=groups)


def deployed(max_model_len: int = 16, max_concurrent_batches: int = 1, **more: Any) -> Deployment:
    """Requests of at most so many tokens, in steps of any size."""
    return Deployment(
        max_model_len=max_model_len,
        max_num_batched_tokens=max_model_len,
        max_concurrent_batches=max_concurrent_batches,
        **more,
    )


def schedule_of(requests: tuple[Request, ...], *events: Event, prefix_caching: bool = False) -> Schedule:
    return Schedule(requests=requests, events=events, prefix_caching=prefix_caching)


def traced(
    specs: Spec | tuple[Spec, ...],
    requests: tuple[Request, ...],
    *events: Event,
    prefix_caching: bool = False,
    num_blocks: int = 16,
    **deployment: Any,
) -> Trace:
    """What the reference's manager does."""
    groups = specs if isinstance(specs, tuple) else (specs,)
    config = configuration(*groups, num_blocks=num_blocks)
    schedule = schedule_of(requests, *events, prefix_caching=prefix_caching)
    return follow_schedule(config, deployed(**deployment), schedule)


def alone(spec: Spec, request: Request, *events: Event, **more: Any) -> list[list[int]]:
    """What the only request holds in the only group after each event."""
    trace = traced(spec, (request,), *events, **more)
    return [list(table) for moment in trace.moments for table in moment.tables[0] or ((),)]


def caching(specs: Spec | tuple[Spec, ...], requests: tuple[Request, ...], *events: Event) -> list[Moment]:
    """What is done with a prefix cache."""
    return list(traced(specs, requests, *events, prefix_caching=True).moments)
