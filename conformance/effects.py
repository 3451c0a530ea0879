"""What a difference between two implementations does to the models that people run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from kvconform.conformance.pool import plan
from kvconform.conformance.process import Fell
from kvconform.reference.deployment import Deployment
from kvconform.reference.interface import Implementation, Refused, Unsupported
from kvconform.reference.models import model, models
from kvconform.reference.specs import Spec

PLANNING = (
    "get_kv_cache_groups",
    "get_kv_cache_configs",
    "estimate_max_model_len",
    "get_max_concurrency",
    "max_blocks_per_request",
)
"""Operations by which a model is planned."""


@dataclass(frozen=True)
class Sizes:
    """A model's cache by one implementation.

    Layer by layer: ``block_bytes`` is the pages of all layers together, ``request_blocks`` the most
    blocks that one request may hold, added up over layers, ``request_bytes`` the most memory, and
    ``requests`` how many such requests the budget holds. As it is planned: of one block of the
    pool, of a request's blocks in it, and the requests that the planned pool serves at once.
    ``trouble`` says why there are no figures.
    """

    block_bytes: int = 0
    request_blocks: int = 0
    request_bytes: int = 0
    requests: float = 0
    trouble: str = ""


@dataclass(frozen=True)
class Effect:
    """A model whose sizes two implementations answer differently."""

    model: str
    left: Sizes
    right: Sizes


@dataclass(frozen=True)
class Effects:
    """The models of the collection, at a request length in tokens and a budget in bytes.

    ``changed`` and ``unchanged`` are told by their layers, ``planned`` are those that are planned
    otherwise; ``unsized`` are those that neither side can size.
    """

    length: int
    budget_bytes: int
    changed: tuple[Effect, ...]
    unchanged: tuple[str, ...]
    unsized: tuple[Effect, ...] = ()
    planned: tuple[Effect, ...] = ()


def effects(left: Implementation, right: Implementation, *, length: int, budget_bytes: int) -> Effects:
    """Size every model of the collection by both implementations.

    A request is ``length`` tokens, or the model's longest; one batch of 8,192 tokens is in flight
    for each of two concurrent batches, as in a server that schedules asynchronously. Where both
    plan, each model is planned on one device whose budget is all there is.
    """
    changed, unchanged, unsized, planned = [], [], [], []
    both_plan = all(set(PLANNING) <= side.operations() for side in (left, right))
    for name in models():
        known = model(name)
        layers = known.layers()
        deployment = known.deployment(
            max_model_len=min(length, known.max_model_len),
            max_num_batched_tokens=8192,
            max_concurrent_batches=2,
        )
        counted = Counter(spec for _, spec in layers)
        one, other = (sizes_of(side, counted, deployment, budget_bytes) for side in (left, right))
        if one.trouble and other.trouble:
            unsized.append(Effect(name, one, other))
        elif one == other:
            unchanged.append(name)
        else:
            changed.append(Effect(name, one, other))
        if both_plan:
            one, other = (
                planned_sizes(side, dict(layers), deployment, budget_bytes) for side in (left, right)
            )
            if one != other and not (one.trouble and other.trouble):
                planned.append(Effect(name, one, other))
    return Effects(length, budget_bytes, tuple(changed), tuple(unchanged), tuple(unsized), tuple(planned))


def sizes_of(side: Implementation, layers: Counter[Spec], deployment: Deployment, budget_bytes: int) -> Sizes:
    """A model's sizes layer by layer: each distinct layer is asked once."""
    block_bytes = request_blocks = request_bytes = 0
    try:
        for spec, count in layers.items():
            block_bytes += count * side.page_size_bytes(spec)
            request_blocks += count * side.max_blocks_per_request(spec, deployment)
            request_bytes += count * side.max_memory_usage_bytes(spec, deployment)
    except Refused as refusal:
        return Sizes(trouble=f"refused: {refusal}")
    except Unsupported as lack:
        return Sizes(trouble=f"unsupported: {lack}")
    requests = budget_bytes // request_bytes if request_bytes else 0
    return Sizes(block_bytes, request_blocks, request_bytes, requests)


def planned_sizes(
    side: Implementation, layers: Mapping[str, Spec], deployment: Deployment, budget_bytes: int
) -> Sizes:
    """A model's sizes as it is planned; no requests where not even one of this length fits."""
    try:
        pool = plan(side, layers, deployment, budget_bytes)
    except Fell as fall:
        return Sizes(trouble=f"fell over: {fall}")
    if isinstance(pool, str):
        return Sizes(trouble=pool)
    requests = 0.0 if pool.requests is None else round(pool.requests, 6)
    return Sizes(pool.block_bytes, pool.request_blocks, pool.request_bytes, requests)
