"""What a difference between two implementations does to the models that people run."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from kvconform.reference.deployment import Deployment
from kvconform.reference.interface import Implementation, Refused, Unsupported
from kvconform.reference.models import model, models
from kvconform.reference.specs import Spec


@dataclass(frozen=True)
class Sizes:
    """A model's cache by one implementation.

    ``block_bytes`` is the pages of all layers together, ``request_blocks`` the most blocks that one
    request may hold, added up over layers, and ``request_bytes`` the most memory; ``requests`` how
    many such requests the budget holds. ``trouble`` says why there are no figures.
    """

    block_bytes: int = 0
    request_blocks: int = 0
    request_bytes: int = 0
    requests: int = 0
    trouble: str = ""


@dataclass(frozen=True)
class Effect:
    """A model whose sizes two implementations answer differently."""

    model: str
    left: Sizes
    right: Sizes


@dataclass(frozen=True)
class Effects:
    """The models of the collection, at a request length in tokens and a budget in bytes."""

    length: int
    budget_bytes: int
    changed: tuple[Effect, ...]
    unchanged: tuple[str, ...]


def effects(left: Implementation, right: Implementation, *, length: int, budget_bytes: int) -> Effects:
    """Size every model of the collection by both implementations.

    A request is ``length`` tokens, or the model's longest; one batch of 8,192 tokens is in flight
    for each of two concurrent batches, as in a server that schedules asynchronously.
    """
    changed, unchanged = [], []
    for name in models():
        known = model(name)
        layers = Counter(spec for _, spec in known.layers())
        deployment = known.deployment(
            max_model_len=min(length, known.max_model_len),
            max_num_batched_tokens=8192,
            max_concurrent_batches=2,
        )
        sizes = [sizes_of(side, layers, deployment, budget_bytes) for side in (left, right)]
        if sizes[0] == sizes[1]:
            unchanged.append(name)
        else:
            changed.append(Effect(name, sizes[0], sizes[1]))
    return Effects(length, budget_bytes, tuple(changed), tuple(unchanged))


def sizes_of(side: Implementation, layers: Counter[Spec], deployment: Deployment, budget_bytes: int) -> Sizes:
    """A model's sizes: each distinct layer is asked once."""
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
