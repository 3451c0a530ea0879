"""Asks a vLLM release to plan: its own grouping, sizing and block managers, with stand-in settings.

Beside `vllm.py`, and like it: dictionaries in, dictionaries out, functions and fields are looked
for, never version numbers. What its planning modules are given is what the engine core gives them
when it starts.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from kvconform.conformance.adapters.vllm import INTERFACE, Adapter, Settings
from kvconform.conformance.adapters.vllm_admission import admission_blocks, deployed, make_manager
from kvconform.conformance.adapters.vllm_configuration import Configuration
from kvconform.conformance.adapters.vllm_manager import MANAGER, follow_schedule
from kvconform.conformance.adapters.vllm_modules import MANAGERS, REGISTRY, PlanningModules, parameters
from kvconform.conformance.adapters.vllm_outcomes import Refused, Unsupported

FUNCTIONS = {
    "get_kv_cache_groups": "get_kv_cache_groups",
    "get_kv_cache_configs": "get_kv_cache_configs",
    "estimate_max_model_len": "get_kv_cache_configs",
    "generate_scheduler_kv_cache_config": "generate_scheduler_kv_cache_config",
    "resolve_kv_cache_block_sizes": "resolve_kv_cache_block_sizes",
    "get_max_concurrency": "get_max_concurrency_for_kv_cache_config",
    "max_admission_blocks_per_request": "get_manager_for_kv_cache_spec",
}
"""The release's function that answers each operation."""

Wire = dict[str, Any]


class Planner:
    """The planner of the release that an `Adapter` asks."""

    def __init__(self, adapter: Adapter) -> None:
        self.adapter = adapter
        self.release = adapter.release
        self.modules = PlanningModules(adapter.root, INTERFACE)
        self.configuration = Configuration(adapter, self.modules)

    # What can be asked

    @cached_property
    def operations(self) -> frozenset[str]:
        """The operations that the release has; found without importing its planner."""
        module = self.release.module
        found = {name for name, function in FUNCTIONS.items() if self.modules.find(function)}
        if hasattr(getattr(module, "UniformTypeKVCacheSpecs", None), "is_uniform_type"):
            found.add("is_uniform_type")
        if hasattr(module.KVCacheConfig, "needs_kv_cache_zeroing"):
            found.add("needs_kv_cache_zeroing")
        if self.modules.path(REGISTRY).exists():
            found.add("register_kv_cache_spec")
        if "def records_new_block_ids" in self.modules.text(MANAGERS):
            found.add("records_new_block_ids")
        if "def allocate_slots" in self.modules.text(MANAGER):
            found.add("follow_schedule")
        return frozenset(found)

    def location(self, operation: str) -> str:
        """Where the release defines what answers the operation, as ``file:line``; empty if unknown."""
        if operation == "register_kv_cache_spec":
            return self.modules.line(REGISTRY, r"    def register\(")
        if operation == "records_new_block_ids":
            return self.modules.line(MANAGERS, r"    def records_new_block_ids\(")
        if operation == "follow_schedule":
            return self.modules.line(MANAGER, r"    def allocate_slots\(")
        if operation in ("is_uniform_type", "needs_kv_cache_zeroing"):
            return self.modules.line(self.release.module.__name__, rf"    def {operation}\(")
        name = FUNCTIONS.get(operation, "")
        module = self.modules.find(name)
        return self.modules.line(module, rf"def {name}\(") if module else ""

    # Asking

    def ask(self, operation: str, arguments: Mapping[str, Any]) -> Any:
        """The release's answer: a number, a truth value, or dictionaries of groups and configurations.

        Layers that the planner changes are changed in the mapping given. Raises `Refused`,
        `Undocumented` and `Unsupported`.
        """
        if operation not in self.operations:
            raise Unsupported(f"{FUNCTIONS.get(operation, operation)}, which the release does not define")
        return getattr(self, f"_ask_{operation}")(**arguments)

    def _ask_register_kv_cache_spec(self, kind: str, base: str) -> None:
        registry = self.modules.registry()
        if base not in self.release.classes:
            raise Unsupported(f"kind {base}")
        base_class = self.release.classes[base]
        spec_class = self.release.third_party(kind, base)
        # The manager is looked up by the type alone, so a spec need not be built.
        manager = registry.get_manager_class(object.__new__(base_class))
        self.modules.call(
            registry.register,
            kvcache_spec_cls=spec_class,
            manager_class=manager,
            uniform_type_base_spec=base_class,
        )

    def _ask_is_uniform_type(self, specs: Sequence[Wire]) -> bool:
        self.modules.registry()
        layers = {f"layer.{index}": self.release.build(spec) for index, spec in enumerate(specs)}
        answer = self.modules.call(self.release.module.UniformTypeKVCacheSpecs.is_uniform_type, layers)
        assert isinstance(answer, bool)
        return answer

    def _ask_get_kv_cache_groups(self, layers: dict[str, Wire], deployment: Wire) -> list[Wire]:
        self.modules.registry()
        with self._handed_over([layers], deployment) as (built, settings):
            groups = self.modules.call(self.modules.function("get_kv_cache_groups"), settings, built[0])
        return [self._read_group(group) for group in groups]

    def _ask_get_kv_cache_configs(
        self, ranks: Sequence[dict[str, Wire]], deployment: Wire, available_memory: Sequence[int]
    ) -> list[Wire]:
        configs, _ = self._configs(ranks, deployment, available_memory)
        return [self._read_config(config) for config in configs]

    def _ask_estimate_max_model_len(
        self, ranks: Sequence[dict[str, Wire]], deployment: Wire, available_memory: Sequence[int]
    ) -> int:
        try:
            _, settings = self._configs(ranks, deployment, available_memory, automatic_length=True)
        except Refused as refusal:
            if "auto-fit" in str(refusal):
                return 0
            raise
        length: int = settings.model_config.max_model_len
        return length

    def _configs(
        self,
        ranks: Sequence[dict[str, Wire]],
        deployment: Wire,
        available_memory: Sequence[int],
        automatic_length: bool = False,
    ) -> tuple[list[Any], Any]:
        self.modules.registry()
        with self._handed_over(ranks, deployment, automatic_length) as (built, settings):
            arguments: list[Any] = [settings, built, list(available_memory)]
            function = self.modules.function("get_kv_cache_configs")
            if "global_kv_cache_groups" in parameters(function):
                group = self.modules.function("get_global_kv_cache_groups")
                arguments.append(self.modules.call(group, settings, built))
            return self.modules.call(function, *arguments), settings

    def _ask_generate_scheduler_kv_cache_config(self, configs: Sequence[Wire]) -> Wire:
        built = [self._build_config(config) for config in configs]
        function = self.modules.function("generate_scheduler_kv_cache_config")
        return self._read_config(self.modules.call(function, built))

    def _ask_resolve_kv_cache_block_sizes(self, config: Wire, deployment: Wire) -> tuple[int, int]:
        built = self._build_config(config)
        settings = self._settings(deployment, _planned(config))
        resolve = self.modules.function("resolve_kv_cache_block_sizes")
        scheduler, unit = self.modules.call(resolve, built, settings)
        return scheduler, unit

    def _ask_get_max_concurrency(self, config: Wire, deployment: Wire) -> float:
        built = self._build_config(config)
        settings = self._settings(deployment, _planned(config))
        divide = self.modules.function("get_max_concurrency_for_kv_cache_config")
        answer: float = self.modules.call(divide, settings, built)
        return answer

    def _ask_needs_kv_cache_zeroing(self, config: Wire) -> bool:
        built = self._build_config(config)
        answer: bool = self.modules.call(lambda: built.needs_kv_cache_zeroing)
        return answer

    def _ask_records_new_block_ids(self, config: Wire) -> tuple[bool, ...]:
        built = self._build_config(config)
        zeroing = self.modules.call(lambda: built.needs_kv_cache_zeroing)
        managers = [
            make_manager(self.modules, group.kv_cache_spec, needs_kv_cache_zeroing=zeroing)
            for group in built.kv_cache_groups
        ]
        return tuple(
            self.modules.call(lambda manager=manager: manager.records_new_block_ids) for manager in managers
        )

    def _ask_max_admission_blocks_per_request(self, spec: Wire, deployment: Wire) -> int:
        manager = make_manager(self.modules, self.release.build(spec), **deployed(deployment))
        return admission_blocks(self.modules, manager, deployment["max_model_len"])

    def _ask_follow_schedule(self, config: Wire, deployment: Wire, schedule: Wire) -> Wire:
        return follow_schedule(self.modules, self._build_config(config), deployment, schedule)

    # What the release is given

    def _handed_over(
        self, ranks: Sequence[dict[str, Wire]], deployment: Wire, automatic_length: bool = False
    ) -> _HandedOver:
        values = self.configuration.model_values(ranks, deployment, automatic_length)
        settings = Settings("config", values)
        return _HandedOver(self, ranks, settings, frozenset(deployment["draft_layers"]))

    def _settings(self, deployment: Wire, specs: Sequence[Wire]) -> Settings:
        return Settings("config", self.configuration.config_values(deployment, specs))

    def build_layer(self, spec: Wire, draft: bool) -> Any:
        """The release's spec of a layer, with what later releases have a planner told besides.

        Which layers are a draft model's, and that an alignment holds for the block's start too.
        """
        built = self.release.build(spec)
        told = self.told(spec, draft)
        return dataclasses.replace(built, **told) if told else built

    def told(self, spec: Wire, draft: bool) -> dict[str, Any]:
        """What `build_layer` has a planner told besides a spec's own fields."""
        names = {field.name for field in dataclasses.fields(self.release.module.KVCacheSpec)}
        told: dict[str, Any] = {}
        if draft and "is_draft" in names:
            told["is_draft"] = True
        if spec.get("alignment") is not None and "block_stride_alignment" in names:
            told["block_stride_alignment"] = spec["alignment"]
        return told

    def _build_config(self, wire: Wire) -> Any:
        module = self.release.module
        groups = []
        for group in wire["kv_cache_groups"]:
            spec = self.release.build(group["kv_cache_spec"])
            flag = {"is_eagle_group": True} if group["is_eagle_group"] else {}
            groups.append(_construct(module.KVCacheGroupSpec, list(group["layer_names"]), spec, **flag))
        tensors = [self._build_tensor(tensor) for tensor in wire["kv_cache_tensors"]]
        return module.KVCacheConfig(
            num_blocks=wire["num_blocks"], kv_cache_tensors=tensors, kv_cache_groups=groups
        )

    def _build_tensor(self, wire: Wire) -> Any:
        # What an older shape lacks is zero in it anyway.
        values = {name: value for name, value in wire.items() if value != 0}
        names = "layers" if "layers" in values else "shared_by"
        values[names] = list(values[names])
        return _construct(self.release.module.KVCacheTensor, **{"size": wire["size"], **values})

    # What the release answers

    def _read_config(self, config: Any) -> Wire:
        return {
            "num_blocks": config.num_blocks,
            "kv_cache_tensors": [_read_tensor(tensor) for tensor in config.kv_cache_tensors],
            "kv_cache_groups": [self._read_group(group) for group in config.kv_cache_groups],
        }

    def _read_group(self, group: Any) -> Wire:
        return {
            "layer_names": list(group.layer_names),
            "kv_cache_spec": self.release.read(group.kv_cache_spec),
            "is_eagle_group": getattr(group, "is_eagle_group", False),
        }


class _HandedOver:
    """The release's specs of some ranks' layers; afterwards what it changed is put back."""

    def __init__(
        self,
        planner: Planner,
        ranks: Sequence[dict[str, Wire]],
        settings: Settings,
        drafts: frozenset[str],
    ) -> None:
        self._planner = planner
        self._ranks = ranks
        self._settings = settings
        self._built = [
            {name: planner.build_layer(spec, name in drafts) for name, spec in rank.items()} for rank in ranks
        ]
        self._before = [{name: copy.copy(spec) for name, spec in rank.items()} for rank in self._built]

    def __enter__(self) -> tuple[list[dict[str, Any]], Settings]:
        return self._built, self._settings

    def __exit__(self, *_: object) -> None:
        for rank, built, before in zip(self._ranks, self._built, self._before, strict=True):
            for name in [name for name in rank if name not in built]:
                del rank[name]
            for name, spec in built.items():
                if name not in before or type(spec) is not type(before[name]) or spec != before[name]:
                    rank[name] = self._planner.release.read(spec)


def _construct(made: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    names = {field.name for field in dataclasses.fields(made)}  # type: ignore[arg-type]
    lacking = [name for name in named if name not in names]
    if lacking:
        raise Unsupported(f"field {getattr(made, '__name__', made)}.{lacking[0]}")
    return made(*arguments, **named)


def _read_tensor(tensor: Any) -> Wire:
    if hasattr(tensor, "layers"):
        names = ("size", "layer_stride", "block_stride", "offset")
        return {"layers": list(tensor.layers), **{name: getattr(tensor, name) for name in names}}
    return {
        "size": tensor.size,
        "shared_by": list(tensor.shared_by),
        "offset": getattr(tensor, "offset", 0),
        "block_stride": getattr(tensor, "block_stride", 0),
    }


def _planned(config: Wire) -> list[Wire]:
    return [group["kv_cache_spec"] for group in config["kv_cache_groups"]]
