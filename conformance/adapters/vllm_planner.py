"""Asks a vLLM release to plan: its own grouping, sizing and block managers, with stand-in settings.

Beside `vllm.py`, and like it: dictionaries in, dictionaries out, functions and fields are looked
for, never version numbers. Planning modules import most of the serving package, so they are loaded
leniently; what they are given is what the engine core gives them when it starts.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import logging
import re
import sys
import traceback
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from kvconform.conformance.adapters import vllm

UTILITIES = "vllm.v1.core.kv_cache_utils"
PLANNING = "vllm.v1.core.kv_cache_planning"
MANAGERS = "vllm.v1.core.single_type_kv_cache_manager"
REGISTRY = "vllm.v1.kv_cache_spec_registry"
LAYOUTS = "vllm.v1.kv_cache_layout"

SIBLINGS = ("vllm.v1.hisparse.layout", "vllm.v1.attention.backend")
"""Modules of which planning uses something even where their feature is off."""

LAYOUT_NAMES = {False: "LBNHC", True: "BLHNC"}
"""By whether layers are packed into one block: the layout that releases with named layouts prefer
when no backend asks for one, and the block-outermost one that their planner recommends."""

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

SPECULATIVE_METHOD = "mtp"
"""How draft layers come about: registered after all others, which releases without a marker rely on."""

DOCUMENTED = (ValueError, NotImplementedError)
"""What the planner raises to refuse; only where a ``raise`` of its own does, not a built-in's."""

Wire = dict[str, Any]


class Planner:
    """The planner of the release that an `Adapter` asks."""

    def __init__(self, adapter: vllm.Adapter) -> None:
        self.adapter = adapter
        self.release = adapter.release
        self.root = adapter.root
        self._texts: dict[str, str] = {}
        self._functions: dict[str, Callable[..., Any]] = {}
        self._filled = False

    # What can be asked

    @cached_property
    def operations(self) -> frozenset[str]:
        """The operations that the release has; found without importing its planner."""
        module = self.release.module
        found = {name for name, function in FUNCTIONS.items() if self._module_of(function)}
        if hasattr(getattr(module, "UniformTypeKVCacheSpecs", None), "is_uniform_type"):
            found.add("is_uniform_type")
        if hasattr(module.KVCacheConfig, "needs_kv_cache_zeroing"):
            found.add("needs_kv_cache_zeroing")
        if self._path(REGISTRY).exists():
            found.add("register_kv_cache_spec")
        if "def records_new_block_ids" in self._text(MANAGERS):
            found.add("records_new_block_ids")
        return frozenset(found)

    def location(self, operation: str) -> str:
        """Where the release defines what answers the operation, as ``file:line``; empty if unknown."""
        if operation == "register_kv_cache_spec":
            return self._line(REGISTRY, r"    def register\(")
        if operation == "records_new_block_ids":
            return self._line(MANAGERS, r"    def records_new_block_ids\(")
        if operation in ("is_uniform_type", "needs_kv_cache_zeroing"):
            return self._line(self.release.module.__name__, rf"    def {operation}\(")
        name = FUNCTIONS.get(operation, "")
        module = self._module_of(name)
        return self._line(module, rf"def {name}\(") if module else ""

    def _module_of(self, function: str) -> str | None:
        for module in (PLANNING, UTILITIES, MANAGERS):
            if re.search(rf"^def {function}\(", self._text(module), re.MULTILINE):
                return module
        return None

    def _path(self, module: str) -> Path:
        return self.root.joinpath(*module.split(".")).with_suffix(".py")

    def _text(self, module: str) -> str:
        if module not in self._texts:
            path = self._path(module)
            self._texts[module] = path.read_text(encoding="utf-8") if path.exists() else ""
        return self._texts[module]

    def _line(self, module: str, pattern: str) -> str:
        before = re.split(f"^{pattern}", self._text(module), maxsplit=1, flags=re.MULTILINE)
        if len(before) == 1:
            return ""
        place = self._path(module).relative_to(self.root)
        return f"{place}:{before[0].count(chr(10)) + 1}"

    # Asking

    def ask(self, operation: str, arguments: Mapping[str, Any]) -> Any:
        """The release's answer: a number, a truth value, or dictionaries of groups and configurations.

        Layers that the planner changes are changed in the mapping given. Raises `Refused`,
        `Undocumented` and `Unsupported`.
        """
        if operation not in self.operations:
            raise vllm.Unsupported(
                f"{FUNCTIONS.get(operation, operation)}, which the release does not define"
            )
        return getattr(self, f"_ask_{operation}")(**arguments)

    def _ask_register_kv_cache_spec(self, kind: str, base: str) -> None:
        registry = self._registered()
        if base not in self.release.classes:
            raise vllm.Unsupported(f"kind {base}")
        base_class = self.release.classes[base]
        spec_class = self.release.third_party(kind, base)
        # The manager is looked up by the type alone, so a spec need not be built.
        manager = registry.get_manager_class(object.__new__(base_class))
        self._call(
            registry.register,
            kvcache_spec_cls=spec_class,
            manager_class=manager,
            uniform_type_base_spec=base_class,
        )

    def _ask_is_uniform_type(self, specs: Sequence[Wire]) -> bool:
        self._registered()
        layers = {f"layer.{index}": self.release.build(spec) for index, spec in enumerate(specs)}
        answer = self._call(self.release.module.UniformTypeKVCacheSpecs.is_uniform_type, layers)
        assert isinstance(answer, bool)
        return answer

    def _ask_get_kv_cache_groups(self, layers: dict[str, Wire], deployment: Wire) -> list[Wire]:
        self._registered()
        with self._handed_over([layers], deployment) as (built, settings):
            groups = self._call(self._function("get_kv_cache_groups"), settings, built[0])
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
        except vllm.Refused as refusal:
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
        self._registered()
        with self._handed_over(ranks, deployment, automatic_length) as (built, settings):
            arguments: list[Any] = [settings, built, list(available_memory)]
            function = self._function("get_kv_cache_configs")
            if "global_kv_cache_groups" in inspect.signature(function).parameters:
                group = self._function("get_global_kv_cache_groups")
                arguments.append(self._call(group, settings, built))
            return self._call(function, *arguments), settings

    def _ask_generate_scheduler_kv_cache_config(self, configs: Sequence[Wire]) -> Wire:
        built = [self._build_config(config) for config in configs]
        function = self._function("generate_scheduler_kv_cache_config")
        return self._read_config(self._call(function, built))

    def _ask_resolve_kv_cache_block_sizes(self, config: Wire, deployment: Wire) -> tuple[int, int]:
        built = self._build_config(config)
        settings = self._settings(deployment, _planned(config))
        scheduler, unit = self._call(self._function("resolve_kv_cache_block_sizes"), built, settings)
        return scheduler, unit

    def _ask_get_max_concurrency(self, config: Wire, deployment: Wire) -> float:
        built = self._build_config(config)
        settings = self._settings(deployment, _planned(config))
        answer: float = self._call(self._function("get_max_concurrency_for_kv_cache_config"), settings, built)
        return answer

    def _ask_needs_kv_cache_zeroing(self, config: Wire) -> bool:
        built = self._build_config(config)
        answer: bool = self._call(lambda: built.needs_kv_cache_zeroing)
        return answer

    def _ask_records_new_block_ids(self, config: Wire) -> tuple[bool, ...]:
        built = self._build_config(config)
        zeroing = self._call(lambda: built.needs_kv_cache_zeroing)
        managers = [
            self._manager(group.kv_cache_spec, needs_kv_cache_zeroing=zeroing)
            for group in built.kv_cache_groups
        ]
        return tuple(
            self._call(lambda manager=manager: manager.records_new_block_ids) for manager in managers
        )

    def _ask_max_admission_blocks_per_request(self, spec: Wire, deployment: Wire) -> int:
        # The deployment's lookahead is left out here as at startup: bound/lookahead-counts asks for it.
        settings = self._settings(deployment, [spec])
        manager = self._manager(
            self.release.build(spec),
            max_model_len=deployment["max_model_len"],
            max_num_batched_tokens=deployment["max_num_batched_tokens"],
            max_in_flight_tokens=deployment["in_flight_tokens"],
            dcp_world_size=settings.parallel_config.decode_context_parallel_size,
        )
        for name in ("max_admission_blocks_per_request", "_max_admission_blocks_per_request"):
            if hasattr(manager, name):
                cap: int | None = getattr(manager, name)
                break
        else:
            raise vllm.Unsupported(f"{type(manager).__name__}.max_admission_blocks_per_request")
        if cap is not None:
            return cap
        # Without a cap admission asks for every block of the whole request at once.
        length = deployment["max_model_len"]
        asked = {
            "request_id": "request",
            "num_tokens": length,
            "num_tokens_main_model": length,
            "new_computed_blocks": (),
            "total_computed_tokens": 0,
            "num_local_computed_tokens": 0,
            "apply_admission_cap": True,
        }
        accepted = inspect.signature(manager.get_num_blocks_to_allocate).parameters
        answer: int = self._call(
            manager.get_num_blocks_to_allocate,
            **{name: value for name, value in asked.items() if name in accepted},
        )
        return answer

    # The release's functions

    def load(self) -> None:
        """Load all that planning uses and register its kinds, as an engine does before it plans."""
        self._registered()
        for module in (UTILITIES, PLANNING, MANAGERS):
            if self._path(module).exists():
                self._load(module)

    def reads(self, name: str) -> bool:
        """Whether the release's planning or its specs mention a configuration value of that name."""
        modules = (UTILITIES, PLANNING, self.release.module.__name__)
        return any(re.search(rf"\.{name}\b", self._text(module)) for module in modules)

    def source(self) -> str:
        """The text of the release's planning modules."""
        return self._text(UTILITIES) + self._text(PLANNING)

    def module_of(self, function: str) -> str:
        """The module that defines one of the release's functions."""
        module = self._module_of(function)
        if module is None:
            raise vllm.Unsupported(f"function {function}")
        return module

    def _function(self, name: str) -> Callable[..., Any]:
        if name not in self._functions:
            self._functions[name] = getattr(self._load(self.module_of(name)), name)
        return self._functions[name]

    def _load(self, module: str) -> types.ModuleType:
        if module not in sys.modules:
            # Planning warns of every model with filler layers or without a hybrid manager.
            logging.getLogger("vllm").setLevel(logging.ERROR)
        return vllm.load_leniently(module, self.root, siblings=SIBLINGS)

    def _call(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        try:
            return function(*arguments, **named)
        except (vllm.Refused, vllm.Unsupported, MemoryError, RecursionError):
            raise
        except ImportError as error:
            raise vllm.Unsupported(f"{error}, which the planner imports when it is called") from error
        except Exception as error:
            frames = traceback.extract_tb(error.__traceback__)[1:]
            own = [frame for frame in frames if Path(frame.filename).is_relative_to(self.root)]
            if not own:
                raise
            deliberate = frames[-1] is own[-1] and (frames[-1].line or "").startswith("raise")
            kind = vllm.Refused if isinstance(error, DOCUMENTED) and deliberate else vllm.Undocumented
            raise kind(vllm.reason(error, self.root)) from error

    def _registered(self) -> Any:
        """The registry of spec classes, filled; None in a release without one."""
        if not self._path(REGISTRY).exists():
            return None
        registry = sys.modules[REGISTRY]
        if not self._filled:
            # What the engine core does first. Left to itself the registry fills itself from the
            # configuration module, which needs the whole serving package.
            self._load(UTILITIES)
            self._load(MANAGERS).register_all_kvcache_specs(None)
            self._filled = True
        return registry.KVCacheSpecRegistry

    def _manager(self, spec: Any, **wanted: Any) -> Any:
        """The manager of a group's spec, built with what the release's coordinator gives every one."""
        self._registered()
        self._load(UTILITIES)
        build = self._function("get_manager_for_kv_cache_spec")
        base = self._load(MANAGERS).SingleTypeKVCacheManager
        pool = vllm.Settings(
            "block_pool",
            {
                "null_block": None,
                "num_gpu_blocks": 1,
                "hash_block_size": spec.block_size,
                "num_hash_lookahead_tokens": 0,
                "free_block_queue": {"popleft_n": lambda count: [None] * count},
            },
        )
        given = {
            "max_model_len": spec.block_size,
            "max_num_batched_tokens": 1,
            "max_in_flight_tokens": 1,
            "block_pool": pool,
            "enable_caching": False,
            "kv_cache_group_id": 0,
            "scheduler_block_size": spec.block_size,
            "dcp_world_size": 1,
            "pcp_world_size": 1,
            "needs_kv_cache_zeroing": False,
            **wanted,
        }
        accepted = {*inspect.signature(build).parameters, *inspect.signature(base.__init__).parameters}
        named = {name: value for name, value in given.items() if name in accepted}
        return self._call(build, kv_cache_spec=spec, **named)

    # What the release is given

    def _handed_over(
        self, ranks: Sequence[dict[str, Wire]], deployment: Wire, automatic_length: bool = False
    ) -> _HandedOver:
        values = self.model_values(ranks, deployment, automatic_length)
        settings = vllm.Settings("config", values)
        return _HandedOver(self, ranks, settings, frozenset(deployment["draft_layers"]))

    def _settings(self, deployment: Wire, specs: Sequence[Wire]) -> vllm.Settings:
        return vllm.Settings("config", self.config_values(deployment, specs))

    def model_values(
        self, ranks: Sequence[Mapping[str, Wire]], deployment: Wire, automatic_length: bool = False
    ) -> dict[str, Any]:
        """The configuration, by section, that the engine core holds while it plans a model.

        With ``automatic_length`` the user left the longest length to the planner.
        """
        layers = [spec for rank in ranks for spec in rank.values()]
        values = self.config_values(deployment, layers)
        if automatic_length:
            values["model_config"] |= {"original_max_model_len": -1}
        drafts = deployment["draft_layers"]
        if drafts:
            last = [name for rank in ranks for name in rank][-1]
            values |= {
                "num_prefill_lookahead_tokens": 1,
                "speculative_config": {
                    "method": SPECULATIVE_METHOD if last in drafts else "eagle",
                    "num_speculative_tokens": 1,
                    "use_eagle": Returns(True),
                    "use_eagle_block_drop": Returns(True),
                    "use_multi_module_mtp": Returns(False),
                },
            }
        return values

    def config_values(self, deployment: Wire, specs: Sequence[Wire]) -> dict[str, Any]:
        """The configuration, by section, that the engine core holds once these specs are planned."""
        values = self.adapter.config_values(deployment, _together(specs))
        length = values["model_config"]["max_model_len"]
        ranks = deployment["decode_context_parallel"]
        values["model_config"] |= {
            "original_max_model_len": length,
            "supports_kv_cache_grouping": False,
            "hf_config": {"model_type": ""},
        }
        # Ranks of decode context parallelism are ranks of tensor parallelism.
        values["parallel_config"] |= {"tensor_parallel_size": ranks, "pipeline_parallel_size": 1}
        values["scheduler_config"] |= {
            "disable_hybrid_kv_cache_manager": not deployment["hybrid_kv_cache_manager"]
        }
        unit = deployment["prefix_match_unit"]
        values["cache_config"] |= {
            # After planning the engine core takes the groups' smallest for its own.
            "block_size": min((spec["block_size"] for spec in specs), default=1),
            "num_gpu_blocks_override": deployment["num_gpu_blocks_override"],
            "enable_prefix_caching": True,
            "prefix_match_unit": unit,
            "hash_block_size": unit,
            "prefix_cache_retention_interval": None,
        }
        values |= {
            "kv_transfer_config": None,
            "speculative_config": None,
            "num_prefill_lookahead_tokens": 0,
            "attention_config": {"hisparse_config": None},
            "device_config": {"device_type": "cuda"},
        }
        self._lay_out(values, deployment["packed_layout"])
        return values

    def _lay_out(self, values: dict[str, Any], packed: bool) -> None:
        if self._path(LAYOUTS).exists():
            layouts = self._load(LAYOUTS).KVCacheLayout.__members__
            name = LAYOUT_NAMES[packed]
            if name not in layouts:
                raise vllm.Unsupported(f"KV-cache layout {name}")
            layout = Returns(layouts[name], f"KVCacheLayout.{name}", LAYOUTS)
            values["cache_config"] |= {"get_resolved_kv_cache_layout": layout}
        elif packed:
            if "enable_cross_layers_blocks" not in self._text(UTILITIES):
                raise vllm.Unsupported("a packed layout")
            extra = Whole({"enable_cross_layers_blocks": "true"})
            values["kv_transfer_config"] = {"kv_connector_extra_config": extra}

    def _speculate(self, settings: Any, drafts: Sequence[str], names: Sequence[str]) -> None:
        if not drafts:
            return
        method = SPECULATIVE_METHOD if names[-1] in drafts else "eagle"
        settings.num_prefill_lookahead_tokens = 1
        settings.speculative_config = vllm.Settings(
            "config.speculative_config",
            {
                "method": method,
                "num_speculative_tokens": 1,
                "use_eagle": lambda: True,
                "use_eagle_block_drop": lambda: True,
                "use_multi_module_mtp": lambda: False,
            },
        )

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
        settings: vllm.Settings,
        drafts: frozenset[str],
    ) -> None:
        self._planner = planner
        self._ranks = ranks
        self._settings = settings
        self._built = [
            {name: planner.build_layer(spec, name in drafts) for name, spec in rank.items()} for rank in ranks
        ]
        self._before = [{name: copy.copy(spec) for name, spec in rank.items()} for rank in self._built]

    def __enter__(self) -> tuple[list[dict[str, Any]], vllm.Settings]:
        return self._built, self._settings

    def __exit__(self, *_: object) -> None:
        for rank, built, before in zip(self._ranks, self._built, self._before, strict=True):
            for name in [name for name in rank if name not in built]:
                del rank[name]
            for name, spec in built.items():
                if name not in before or type(spec) is not type(before[name]) or spec != before[name]:
                    rank[name] = self._planner.release.read(spec)


class Returns:
    """A method of the configuration that answers one value, written ``text`` in Python."""

    def __init__(self, value: Any, text: str = "", module: str = "") -> None:
        self.value = value
        self.text = text or repr(value)
        self.module = module

    def __call__(self) -> Any:
        return self.value


class Whole:
    """A dictionary that is a value of the configuration itself, not a section of it."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.values = values
        self.get = values.get

    def __repr__(self) -> str:
        return repr(self.values)


def _construct(made: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    names = {field.name for field in dataclasses.fields(made)}  # type: ignore[arg-type]
    lacking = [name for name in named if name not in names]
    if lacking:
        raise vllm.Unsupported(f"field {getattr(made, '__name__', made)}.{lacking[0]}")
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


def _together(specs: Sequence[Wire]) -> Wire:
    """The specs, uniform_types opened, in the form in which one uniform_type holds its layers."""
    return {
        "kind": "uniform_type",
        "kv_cache_specs": [["", layer] for spec in specs for layer in _open(spec)],
    }


def _open(spec: Wire) -> Iterator[Wire]:
    if spec["kind"] == "uniform_type":
        for _, layer in spec["kv_cache_specs"]:
            yield from _open(layer)
    else:
        yield spec
