"""The questions that two implementations are both asked, drawn like the inputs of a law."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any

from kvconform.conformance.common import Common
from kvconform.conformance.values import parameters
from kvconform.properties import drawn, drawn_changes
from kvconform.properties.drawn_models import WITH_EMPTY, Model, memory, model
from kvconform.properties.drawn_schedules import pool
from kvconform.properties.given import Given
from kvconform.properties.law import NO_KIND
from kvconform.properties.laws.uniform import neighbour
from kvconform.reference.interface import Refused
from kvconform.reference.plain import Plain
from kvconform.reference.planning import KVCacheConfig
from kvconform.reference.specs import FULL_KINDS

Arguments = dict[str, Any]

LONG = 1 << 30
"""Tokens of a request that no window, chunk or batch is likely to exceed."""

SPARE_BLOCKS = (0, -1, -2, -8, 1, 8)
"""Blocks more or less than one request takes: so much memory decides which length fits."""


def _spec(given: Given) -> Arguments:
    spec = drawn.spec(given)
    return {"spec": drawn_changes.changed(given, "spec.then", spec) if given.kind != "uniform_type" else spec}


def _quantised(given: Given) -> Arguments:
    return {"spec": drawn.quantised(given)}


def _resized(given: Given) -> Arguments:
    spec = drawn.spec(given)
    inner = spec.layers()[0] if given.kind == "uniform_type" else spec
    ratio = getattr(inner, "compress_ratio", 1)
    return {"spec": spec, "block_size": given.block_size("new_block_size", multiple_of=ratio)}


def _deployed(given: Given) -> Arguments:
    ranks = (1, 2) if given.kind in FULL_KINDS else (1,)
    # A short request hides what a window or the tokens in flight would ask for.
    length = LONG if given.flag("long") else given.tokens("max_model_len", at_least=1)
    deployment = drawn.deployment(
        given, concurrent=(1, 2, 3), ranks=ranks, encoder=True, max_model_len=length
    )
    return {"spec": drawn.spec(given), "deployment": deployment, "max_len": length}


def _pair(given: Given) -> Arguments:
    first = drawn_changes.changed(given, "spec.then", drawn.spec(given))
    return {"specs": [first, drawn_changes.changed(given, "other", first)]}


def _neighbours(given: Given) -> Arguments:
    first = drawn.spec(given, padding=("none",))
    return {"specs": [first, neighbour(given, "other", first)]}


def _registered(given: Given) -> Arguments:
    return {"kind": f"third_party_{given.kind}", "base": given.kind}


# Whole models


def _model(given: Given) -> Model:
    whole = model(given, partitions=WITH_EMPTY)
    if given.flag("without_hybrid_manager"):
        whole = whole.deployed(hybrid_kv_cache_manager=False)
    return whole


def _grouped(given: Given) -> Arguments:
    whole = _model(given)
    return {"layers": whole.layers(), "deployment": whole.deployment}


def _sized(given: Given) -> Arguments:
    whole = _model(given)
    available = memory(given, whole)
    blocks = given.optional("num_gpu_blocks_override", at_least=1, at_most=1 << 20)
    deployment = replace(whole.deployment, num_gpu_blocks_override=blocks)
    return {"ranks": whole.handed_over(), "deployment": deployment, "available_memory": available}


def _fitted(given: Given) -> Arguments:
    whole = _model(given)
    available = memory(given, whole, spare_blocks=given.choice("spare_blocks", SPARE_BLOCKS))
    return {"ranks": whole.handed_over(), "deployment": whole.deployment, "available_memory": available}


def _planned(given: Given) -> tuple[Model, tuple[KVCacheConfig, ...]]:
    """A model as the reference plans it, without tensors: their shape differs between releases."""
    whole = _model(given)
    try:
        configs = Plain().get_kv_cache_configs(whole.handed_over(), whole.deployment, memory(given, whole))
    except Refused:
        given.reject()
    return whole, tuple(replace(config, kv_cache_tensors=()) for config in configs)


def _running(given: Given) -> Arguments:
    whole, configs = _planned(given)
    sizes = [group.kv_cache_spec.block_size for group in configs[0].kv_cache_groups]
    unit = given.choice("prefix_match_unit", ("none", "smallest block", "one token", "two tokens"))
    units = {"none": None, "smallest block": min(sizes, default=1), "one token": 1, "two tokens": 2}
    deployment = replace(whole.deployment, prefix_match_unit=units[unit])
    return {"configs": list(configs), "config": configs[0], "deployment": deployment}


def _driven(given: Given) -> Arguments:
    return pool(given)._asdict()


@dataclass(frozen=True)
class Topic:
    """Operations that are asked on the same draws; each takes the arguments that it has by name.

    ``kinds``: the draws are about one kind of spec, else they are whole models. ``proved``: the
    answers are arithmetic that may be proved.
    """

    name: str
    draw: Callable[[Given], Arguments]
    operations: tuple[str, ...]
    kinds: bool = True
    proved: bool = True

    def arguments(self, operation: str, drawn: Arguments) -> Arguments:
        """What the operation takes of the draws."""
        return {name: drawn[name] for name in parameters(operation) if name in drawn}


TOPICS = (
    Topic(
        "pages",
        _spec,
        (
            "page_size_bytes",
            "unpadded_page_size_bytes",
            "real_page_size_bytes",
            "state_content_size_bytes",
            "construct",
        ),
    ),
    Topic("stored", _quantised, ("stored_bytes",)),
    Topic("resized", _resized, ("copy_with_new_block_size",)),
    Topic(
        "bounds",
        _deployed,
        (
            "max_blocks_per_request",
            "max_memory_usage_bytes",
            "max_num_blocks_per_req",
            "max_admission_blocks_per_request",
        ),
    ),
    Topic("merged", _pair, ("merge",)),
    Topic("merged otherwise", _pair, ("merge_without_asserts", "merge_side_effects"), proved=False),
    Topic("uniform", _neighbours, ("is_uniform_type",)),
    Topic("registered", _registered, ("register_kv_cache_spec",), proved=False),
    Topic("driven", _driven, ("follow_schedule",), proved=False),
    Topic("grouped", _grouped, ("get_kv_cache_groups",), kinds=False, proved=False),
    Topic("sized", _sized, ("get_kv_cache_configs",), kinds=False, proved=False),
    Topic("fitted", _fitted, ("estimate_max_model_len",), kinds=False, proved=False),
    Topic(
        "running",
        _running,
        (
            "generate_scheduler_kv_cache_config",
            "resolve_kv_cache_block_sizes",
            "get_max_concurrency",
            "needs_kv_cache_zeroing",
            "records_new_block_ids",
        ),
        kinds=False,
        proved=False,
    ),
)
"""All that both are asked, but for names."""

NAMED = ("quant_families", "get_kv_quant_mode", "cache_element_dtype")
"""Operations on the names of modes and cache dtypes: asked of every name that both know."""

MADE_OF = {
    "unpadded_page_size_bytes": ("page_size_bytes",),
    "real_page_size_bytes": ("page_size_bytes",),
    "state_content_size_bytes": ("page_size_bytes",),
    "construct": ("page_size_bytes",),
    "max_memory_usage_bytes": ("max_blocks_per_request", "page_size_bytes"),
    "max_admission_blocks_per_request": ("max_blocks_per_request",),
    "estimate_max_model_len": ("get_kv_cache_configs",),
}
"""Operations whose answer follows from others, or others from it: laws of safety ask those."""

_NOT_LAYERS = ("mamba", "uniform_type")

NOT_ABOUT = {
    "state_content_size_bytes": _NOT_LAYERS,
    "unpadded_page_size_bytes": _NOT_LAYERS,
    "real_page_size_bytes": _NOT_LAYERS,
    "stored_bytes": _NOT_LAYERS,
    "merge": ("uniform_type",),
    "merge_without_asserts": ("uniform_type",),
    "merge_side_effects": ("uniform_type",),
    "is_uniform_type": ("uniform_type",),
    "register_kv_cache_spec": ("uniform_type",),
    "max_num_blocks_per_req": ("encoder_only_attention",),
    "max_admission_blocks_per_request": ("encoder_only_attention", "uniform_type"),
    "follow_schedule": ("encoder_only_attention", "uniform_type"),
}
"""Kinds of which an operation says nothing."""


def questions(common: Common, kinds: Collection[str] | None = None) -> list[tuple[Topic, str]]:
    """Every topic and kind of which both can be asked something; whole models are of no one kind.

    Only of ``kinds`` where they are given, ``-`` among them standing for whole models.
    """
    return [
        (topic, kind)
        for topic in TOPICS
        for kind in (common.kinds if topic.kinds else (NO_KIND,))
        if (kinds is None or kind in kinds) and asked(topic, kind, common)
    ]


def asked(topic: Topic, kind: str, common: Common) -> tuple[str, ...]:
    """The operations of a topic that both can be asked about a kind."""
    return tuple(
        operation
        for operation in topic.operations
        if operation in common.operations and kind not in NOT_ABOUT.get(operation, ())
    )
