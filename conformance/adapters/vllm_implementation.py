"""A vLLM release in this process, as an `Implementation`."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, MutableMapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from kvconform.conformance.adapters import vllm_outcomes
from kvconform.conformance.adapters.scripts import script
from kvconform.conformance.adapters.vllm import Adapter
from kvconform.conformance.adapters.vllm_outcomes import AdapterError
from kvconform.conformance.adapters.vllm_planner import Planner
from kvconform.reference.deployment import Deployment
from kvconform.reference.grouping import KVCacheGroupSpec
from kvconform.reference.interface import Implementation, Refused, Undocumented, Unsupported
from kvconform.reference.planning import KVCacheConfig
from kvconform.reference.schedules import Schedule, Trace
from kvconform.reference.specs import Spec
from kvconform.reference.wire import (
    config_from_wire,
    config_to_wire,
    deployment_to_wire,
    group_from_wire,
    group_to_wire,
    schedule_to_wire,
    spec_from_wire,
    spec_to_wire,
    trace_from_wire,
    trace_to_wire,
)

CHANGES_KEPT = 64
"""Calls in which a planner changed layers whose layers before are kept: more than one case makes."""

__all__ = ["AdapterError", "VllmImplementation"]


class VllmImplementation(Implementation):
    """The release under ``root`` (its unpacked source), or the installed one.

    The constructor raises `AdapterError` where vLLM cannot be imported.
    """

    def __init__(self, root: Path | None, name: str) -> None:
        self.adapter = Adapter(root)
        self.planner = Planner(self.adapter)
        with suppress(Exception):
            # Loaded here so that no law is charged with it; where it fails, asking says why.
            self.planner.modules.load_all()
        self._changed: deque[tuple[object, dict[str, Spec]]] = deque(maxlen=CHANGES_KEPT)
        self._operations = self.adapter.operations() | self.planner.operations
        self._revisions = self.adapter.revisions()
        self.name = name
        _, _, self.version = name.partition("==")

    def kinds(self) -> tuple[str, ...]:
        return self.adapter.kinds()

    def fields(self, kind: str) -> frozenset[str]:
        return self.adapter.fields(kind)

    def operations(self) -> frozenset[str]:
        return self._operations

    def revisions(self) -> tuple[str, ...]:
        return self._revisions

    def location(self, operation: str, kind: str) -> str:
        if operation in self.planner.operations:
            return self.planner.location(operation)
        return self.adapter.location(operation, kind)

    def script(self, calls: Sequence[tuple[str, Mapping[str, Any], Any]], message: str) -> str:
        """The calls as a few lines of plain vLLM Python; ``message`` says what is wrong with them."""
        wired = [
            (operation, to_wire(self._as_given(arguments)), _value_to_wire(answer))
            for operation, arguments, answer in calls
        ]
        return script(self.planner, self.name, wired, message)

    def _as_given(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a call as they were before the planner changed layers in them."""

        def before(value: Any) -> Any:
            if isinstance(value, list | tuple):
                return [before(inner) for inner in value]
            changed = (given for layers, given in self._changed if layers is value)
            return next(changed, value)

        return {name: before(value) for name, value in arguments.items()}

    def ask(self, operation: str, **arguments: Any) -> Any:
        """The release's answer to an operation, specs in it as dictionaries."""
        return self._asked(operation, to_wire(arguments))

    def _asked(self, operation: str, arguments: Mapping[str, Any]) -> Any:
        try:
            if operation in PLANNED:
                return self.planner.ask(operation, arguments)
            return self.adapter.ask(operation, arguments)
        except vllm_outcomes.Undocumented as fall:
            raise Undocumented(str(fall)) from fall
        except vllm_outcomes.Refused as refusal:
            raise Refused(str(refusal)) from refusal
        except vllm_outcomes.Unsupported as lack:
            raise Unsupported(str(lack)) from lack

    def _number(self, operation: str, **arguments: Any) -> int:
        answer: int = self.ask(operation, **arguments)
        return answer

    def _spec(self, operation: str, **arguments: Any) -> Spec:
        return spec_from_wire(self.ask(operation, **arguments))

    def quant_modes(self) -> Mapping[str, int]:
        modes: Mapping[str, int] = self.ask("quant_modes")
        return modes

    def quant_families(self, mode: str) -> tuple[str, ...]:
        return tuple(self.ask("quant_families", mode=mode))

    def cache_dtypes(self) -> tuple[str, ...]:
        return tuple(self.ask("cache_dtypes"))

    def get_kv_quant_mode(self, cache_dtype: str) -> str:
        return str(self.ask("get_kv_quant_mode", cache_dtype=cache_dtype))

    def cache_element_dtype(self, cache_dtype: str) -> str | None:
        element: str | None = self.ask("cache_element_dtype", cache_dtype=cache_dtype)
        return element

    def stored_bytes(self, spec: Spec) -> int:
        return self._number("stored_bytes", spec=spec)

    def construct(self, spec: Spec) -> Spec:
        return self._spec("construct", spec=spec)

    def page_size_bytes(self, spec: Spec) -> int:
        return self._number("page_size_bytes", spec=spec)

    def unpadded_page_size_bytes(self, spec: Spec) -> int:
        return self._number("unpadded_page_size_bytes", spec=spec)

    def real_page_size_bytes(self, spec: Spec) -> int:
        return self._number("real_page_size_bytes", spec=spec)

    def state_content_size_bytes(self, spec: Spec) -> int:
        return self._number("state_content_size_bytes", spec=spec)

    def copy_with_new_block_size(self, spec: Spec, block_size: int) -> Spec:
        return self._spec("copy_with_new_block_size", spec=spec, block_size=block_size)

    def max_blocks_per_request(self, spec: Spec, deployment: Deployment) -> int:
        return self._number("max_blocks_per_request", spec=spec, deployment=deployment)

    def max_memory_usage_bytes(self, spec: Spec, deployment: Deployment) -> int:
        return self._number("max_memory_usage_bytes", spec=spec, deployment=deployment)

    def max_num_blocks_per_req(self, spec: Spec, deployment: Deployment, max_len: int) -> int:
        return self._number("max_num_blocks_per_req", spec=spec, deployment=deployment, max_len=max_len)

    def merge(self, specs: Sequence[Spec], kind: str | None = None) -> Spec:
        return self._spec("merge", specs=specs, kind=kind)

    def merge_without_asserts(self, specs: Sequence[Spec]) -> Spec:
        return self._spec("merge_without_asserts", specs=specs)

    def merge_side_effects(self, specs: Sequence[Spec]) -> tuple[str, ...]:
        return tuple(self.ask("merge_side_effects", specs=specs))

    def register_kv_cache_spec(self, kind: str, base: str) -> None:
        self.ask("register_kv_cache_spec", kind=kind, base=base)

    def is_uniform_type(self, specs: Sequence[Spec]) -> bool:
        return bool(self.ask("is_uniform_type", specs=specs))

    def get_kv_cache_groups(
        self, layers: Mapping[str, Spec], deployment: Deployment
    ) -> tuple[KVCacheGroupSpec, ...]:
        arguments = to_wire({"layers": layers, "deployment": deployment})
        with _PutBack([layers], [arguments["layers"]], self._changed):
            groups = self._asked("get_kv_cache_groups", arguments)
        return tuple(group_from_wire(group) for group in groups)

    def get_kv_cache_configs(
        self, ranks: Sequence[Mapping[str, Spec]], deployment: Deployment, available_memory: Sequence[int]
    ) -> tuple[KVCacheConfig, ...]:
        arguments = to_wire({"ranks": ranks, "deployment": deployment, "available_memory": available_memory})
        with _PutBack(ranks, arguments["ranks"], self._changed):
            configs = self._asked("get_kv_cache_configs", arguments)
        return tuple(config_from_wire(config) for config in configs)

    def estimate_max_model_len(
        self, ranks: Sequence[Mapping[str, Spec]], deployment: Deployment, available_memory: Sequence[int]
    ) -> int:
        arguments = to_wire({"ranks": ranks, "deployment": deployment, "available_memory": available_memory})
        with _PutBack(ranks, arguments["ranks"], self._changed):
            length: int = self._asked("estimate_max_model_len", arguments)
        return length

    def generate_scheduler_kv_cache_config(self, configs: Sequence[KVCacheConfig]) -> KVCacheConfig:
        return config_from_wire(self.ask("generate_scheduler_kv_cache_config", configs=configs))

    def resolve_kv_cache_block_sizes(self, config: KVCacheConfig, deployment: Deployment) -> tuple[int, int]:
        scheduler, unit = self.ask("resolve_kv_cache_block_sizes", config=config, deployment=deployment)
        return scheduler, unit

    def get_max_concurrency(self, config: KVCacheConfig, deployment: Deployment) -> float:
        return float(self.ask("get_max_concurrency", config=config, deployment=deployment))

    def max_admission_blocks_per_request(self, spec: Spec, deployment: Deployment) -> int:
        return self._number("max_admission_blocks_per_request", spec=spec, deployment=deployment)

    def needs_kv_cache_zeroing(self, config: KVCacheConfig) -> bool:
        return bool(self.ask("needs_kv_cache_zeroing", config=config))

    def records_new_block_ids(self, config: KVCacheConfig) -> tuple[bool, ...]:
        return tuple(self.ask("records_new_block_ids", config=config))

    def follow_schedule(self, config: KVCacheConfig, deployment: Deployment, schedule: Schedule) -> Trace:
        answer = self.ask("follow_schedule", config=config, deployment=deployment, schedule=schedule)
        return trace_from_wire(answer)


PLANNED = (
    "register_kv_cache_spec",
    "is_uniform_type",
    "get_kv_cache_groups",
    "get_kv_cache_configs",
    "generate_scheduler_kv_cache_config",
    "resolve_kv_cache_block_sizes",
    "get_max_concurrency",
    "estimate_max_model_len",
    "max_admission_blocks_per_request",
    "needs_kv_cache_zeroing",
    "records_new_block_ids",
    "follow_schedule",
)
"""The operations that the release's planner answers."""


class _PutBack:
    """Puts back into mappings of layers whatever was changed in the dictionaries made of them."""

    def __init__(
        self,
        ranks: Sequence[Mapping[str, Spec]],
        wired: Sequence[dict[str, Any]],
        changed: deque[tuple[object, dict[str, Spec]]],
    ) -> None:
        self._ranks = ranks
        self._wired = wired
        self._changed = changed
        self._before = [dict(rank) for rank in wired]

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        for rank, after, before in zip(self._ranks, self._wired, self._before, strict=True):
            if not isinstance(rank, MutableMapping) or _unchanged(before, after):
                continue
            self._changed.append((rank, dict(rank)))
            for name in before.keys() - after.keys():
                del rank[name]
            for name, spec in after.items():
                if spec is not before.get(name):
                    rank[name] = spec_from_wire(spec)


def _unchanged(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    return before.keys() == after.keys() and all(after[name] is spec for name, spec in before.items())


def to_wire(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of an operation with specs, deployments and configurations as dictionaries."""
    return {name: _value_to_wire(value) for name, value in arguments.items()}


def _value_to_wire(value: Any) -> Any:
    if isinstance(value, Spec):
        return spec_to_wire(value)
    if isinstance(value, Deployment):
        return deployment_to_wire(value)
    if isinstance(value, KVCacheGroupSpec):
        return group_to_wire(value)
    if isinstance(value, KVCacheConfig):
        return config_to_wire(value)
    if isinstance(value, Schedule):
        return schedule_to_wire(value)
    if isinstance(value, Trace):
        return trace_to_wire(value)
    if isinstance(value, Mapping):
        return {name: _value_to_wire(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_value_to_wire(inner) for inner in value]
    return value
