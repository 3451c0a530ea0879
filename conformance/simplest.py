"""The simplest question of each operation and kind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import kvconform.properties.laws  # noqa: F401 (fills the catalogue)
from kvconform.conformance.values import parameters
from kvconform.properties.law import CATALOGUE, NO_KIND
from kvconform.reference.deployment import Deployment
from kvconform.reference.interface import OPERATIONS, Implementation
from kvconform.reference.plain import Plain
from kvconform.reference.planning import KVCacheConfig
from kvconform.reference.schedules import Event, Request, Schedule
from kvconform.reference.specs import ATTENTION_KINDS, KINDS, FullAttention, Spec

MEMORY = 1 << 20
DEPLOYMENT = Deployment(max_model_len=64, max_num_batched_tokens=16)
SCHEDULE = Schedule(
    requests=(Request(prompt_tokens=24, encoder_tokens=16),),
    events=(
        Event(action="schedule", request=0, tokens=16),
        Event(action="settle", request=0),
        Event(action="finish", request=0),
    ),
)

ATTENTION: dict[str, Any] = {"block_size": 16, "num_kv_heads": 1, "head_size": 16, "dtype": "float16"}
FULL = FullAttention(**ATTENTION)

OWN_FIELDS: dict[str, dict[str, Any]] = {
    "sliding_window": {"sliding_window": 32},
    "sliding_window_mla": {"sliding_window": 32},
    "chunked_local_attention": {"attention_chunk_size": 32},
    "rswa": {"rswa_window": 32},
    "mamba": {"block_size": 16, "shapes": ((2, 4),), "dtypes": ("float32",)},
    "uniform_type": {"block_size": 16, "kv_cache_specs": (("layer.0", FULL), ("layer.1", FULL))},
}
"""What the simplest spec of a kind has that not every attention spec has."""

ABOUT_NAMES = {"mode": "NONE", "cache_dtype": "auto"}
ABOUT_LAYERS = {"layers", "ranks", "config", "configs"}
ABOUT_SPECS = {"spec", "specs", *ABOUT_LAYERS}

UNPLANNED = ("uniform_type", "encoder_only_attention")
"""A planner makes its own wrappers, and layers without cache are not given to it."""

Question = tuple[str, str, dict[str, Any]]


def simplest(kind: str, implementation: Implementation) -> Spec | None:
    """The simplest spec of a kind; None where the implementation lacks the kind of its layers."""
    if kind == "uniform_type" and FULL.kind not in implementation.kinds():
        return None
    common = ATTENTION if kind in ATTENTION_KINDS else {}
    return KINDS[kind](**common, **OWN_FIELDS.get(kind, {}))


def questions(implementation: Implementation) -> Iterator[Question]:
    """Operation, kind and arguments: each operation asked of each kind that some law asks it of.

    Configurations are those that the implementation itself plans, where it can.
    """
    for operation in OPERATIONS:
        if operation not in implementation.operations():
            continue
        names = parameters(operation)
        if operation == "register_kv_cache_spec":
            for kind in implementation.kinds()[:1]:
                yield operation, "", {"kind": "smoke_attention", "base": kind}
        elif not ABOUT_SPECS & set(names):
            yield operation, "", {name: ABOUT_NAMES[name] for name in names}
        else:
            for kind in _kinds(operation, implementation):
                spec = simplest(kind, implementation)
                if spec is not None:
                    arguments = _arguments(names, spec, implementation)
                    yield operation, kind, {name: arguments[name] for name in names if name in arguments}


def _kinds(operation: str, implementation: Implementation) -> Sequence[str]:
    asking = [law for law in CATALOGUE.values() if operation in law.needs]
    asked = {kind for law in asking for kind in law.kinds if kind != NO_KIND}
    planned = ABOUT_LAYERS & set(parameters(operation))
    return [
        kind
        for kind in implementation.kinds()
        if (not asked or kind in asked) and not (planned and kind in UNPLANNED)
    ]


def _arguments(names: Sequence[str], spec: Spec, implementation: Implementation) -> dict[str, Any]:
    layers = {"layer.0": spec, "layer.1": spec}
    arguments: dict[str, Any] = {"spec": spec, "specs": [spec, spec], "deployment": DEPLOYMENT}
    arguments |= {"block_size": 32, "max_len": 64, "schedule": SCHEDULE}
    arguments |= {"layers": layers, "ranks": [layers], "available_memory": [MEMORY]}
    if {"config", "configs"} & set(names):
        configs = _configs(layers, implementation)
        arguments |= {"config": configs[0], "configs": configs}
    return arguments


def _configs(layers: dict[str, Spec], implementation: Implementation) -> tuple[KVCacheConfig, ...]:
    if "get_kv_cache_configs" in implementation.operations():
        try:
            return implementation.get_kv_cache_configs([dict(layers)], DEPLOYMENT, [MEMORY])
        except Exception:
            # Asked for its own sake before, and told then.
            pass
    return Plain().get_kv_cache_configs([layers], DEPLOYMENT, [MEMORY])
