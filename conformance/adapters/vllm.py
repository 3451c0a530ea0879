"""Asks a vLLM release for the sizes in its KV-cache spec.

The files called vllm here import nothing of kvconform but one another, so that they also run in an
interpreter that has only vLLM. `vllm_specs` turns dictionaries into its objects and back,
`vllm_loading` imports what is not all there, `vllm_planner` asks it to plan by a
`vllm_configuration`, and `vllm_process` is started there. They look for fields, methods and
functions, never for version numbers, and say what they cannot ask.

What is asked is kept as text (`Question`), evaluated as it stands against the release's objects,
and printed as it stands in a bug report: what ran is what is shown.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kvconform.conformance.adapters.vllm_loading import (
    compile_without_asserts,
    enter,
    extract_method,
    load_leniently,
)
from kvconform.conformance.adapters.vllm_outcomes import AdapterError, Refused, Unsupported, reason
from kvconform.conformance.adapters.vllm_specs import CLASSES, LATENT_KINDS, Release, dtype_name

INTERFACE = "vllm.v1.kv_cache_interface"
REFUSALS = (AssertionError, ValueError)

PACKING_BACKENDS = {
    "latent": ("vllm.model_executor.layers.attention.mla_attention", "MLACommonBackend"),
    "per_token_head": ("vllm.v1.attention.backends.triton_attn", "TritonAttentionBackend"),
    "nvfp4": ("vllm.v1.attention.backends.flashinfer", "FlashInferBackend"),
    "turboquant": ("vllm.v1.attention.backends.turboquant_attn", "TurboQuantAttentionBackend"),
    "octave": ("vllm.v1.attention.backends.rocm_octave_attn", "RocmOctaveAttentionBackend"),
    "ultraquant": ("vllm.v1.attention.backends.ultraquant_attn", "UltraQuantAttentionBackend"),
}
"""The attention backend that packs each family of modes, where backends publish what they store."""


class Settings:
    """Stands in for a configuration object of the release: the values that it is known to read.

    Reading any other raises `Unsupported` naming it: a default made up here would be an answer of
    the adapter, not of the release.
    """

    def __init__(self, name: str, values: Mapping[str, Any]) -> None:
        nested = {
            key: Settings(f"{name}.{key}", value) if isinstance(value, Mapping) else value
            for key, value in values.items()
        }
        self.__dict__.update(nested, _name=name)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise Unsupported(f"the configuration value {self._name}.{name}")


@dataclasses.dataclass(frozen=True)
class Question:
    """One expression over named objects, and where those names come from.

    ``imports`` are the lines that bind other names in it.
    """

    expression: str
    imports: tuple[str, ...] = ()


class Adapter:
    """Answers for one release: the one under ``root``, or the installed one."""

    def __init__(self, root: Path | None = None) -> None:
        """Import the release's spec module. Raises `AdapterError` where that fails."""
        if root is not None:
            enter(root)
        try:
            module = importlib.import_module(INTERFACE)
        except ModuleNotFoundError as error:
            raise AdapterError(f"cannot import vLLM: no module named {error.name!r}") from error
        except Exception as error:
            raise AdapterError(f"cannot import vLLM: {type(error).__name__}: {error}") from error
        self.root = Path(inspect.getfile(module)).parents[2] if root is None else root
        self.release = Release(module)
        self._compiled: dict[str, types.CodeType] = {}
        self._without_asserts: Release | None = None
        self._packers: dict[str, Callable[[Any], Any]] = {}
        self._literals: dict[str, tuple[str, ...]] = {}

    # What can be asked

    def kinds(self) -> tuple[str, ...]:
        """The base spec's kinds that the release has."""
        return tuple(self.release.classes)

    def fields(self, kind: str) -> frozenset[str]:
        """The base spec's fields that the release's kind has."""
        return frozenset(self.release.field_names(kind))

    def operations(self) -> frozenset[str]:
        """The operations that the release has, by the name of the base spec."""
        attention = self.release.module.AttentionSpec
        found = {"quant_modes", "quant_families", "get_kv_quant_mode", "stored_bytes", "construct"}
        found |= {"page_size_bytes", "copy_with_new_block_size", "max_blocks_per_request"}
        found |= {"max_memory_usage_bytes", "merge", "merge_without_asserts", "merge_side_effects"}
        for name in (
            "unpadded_page_size_bytes",
            "real_page_size_bytes",
            "state_content_size_bytes",
            "max_num_blocks_per_req",
        ):
            if hasattr(attention, name):
                found.add(name)
        if self.literal("CacheDType"):
            found |= {"cache_dtypes", "cache_element_dtype"}
        return frozenset(found)

    def revisions(self) -> tuple[str, ...]:
        """The formulas that the release computes as earlier ones did, by what it has or lacks."""
        module = self.release.module
        found = []
        if "in_flight" not in inspect.getsource(module):
            found.append("per-batch-budget")
        if "state_content_bytes" not in self.fields("full_attention"):
            found.append("scales-per-token")
        # The release that first counted speculative states in every mode first named its kinds.
        if not hasattr(module, "KVCacheSpecKind"):
            found.append("no-speculative-states")
        return tuple(found)

    def location(self, operation: str, kind: str) -> str:
        """Where the release defines what an operation asks, as ``file:line`` from its root."""
        spec_class = self.release.classes.get(kind)
        module = self.release.module
        target: Any = None
        if operation == "max_blocks_per_request" and spec_class is not None:
            startup = getattr(spec_class, "max_memory_usage_bytes", None)
            target = getattr(spec_class, "max_admission_blocks_per_request", startup)
        elif operation in ("quant_modes", "quant_families"):
            target = module.KVQuantMode
        elif operation == "get_kv_quant_mode":
            target = module.get_kv_quant_mode
        elif operation.startswith("merge") and spec_class is not None:
            target = spec_class.merge  # type: ignore[attr-defined]
        elif operation in ("construct", "stored_bytes"):
            target = spec_class
        elif spec_class is not None:
            target = getattr(spec_class, operation, None)
        if isinstance(target, property):
            target = target.fget
        if target is None:
            return ""
        try:
            line = inspect.getsourcelines(target)[1]
            path = Path(inspect.getsourcefile(target) or "")
        except (OSError, TypeError):
            return ""
        return f"{path.relative_to(self.root) if path.is_relative_to(self.root) else path}:{line}"

    def literal(self, name: str) -> tuple[str, ...]:
        """The strings of a ``Literal`` in the release's cache configuration; empty if it has none.

        Read from the source: importing the configuration needs most of the serving package.
        """
        if name not in self._literals:
            self._literals[name] = ()
            path = self.root / "vllm" / "config" / "cache.py"
            if path.exists():
                for node in ast.parse(path.read_text(encoding="utf-8")).body:
                    if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
                        constants = (c.value for c in ast.walk(node.value) if isinstance(c, ast.Constant))
                        self._literals[name] = tuple(c for c in constants if isinstance(c, str))
        return self._literals[name]

    # Asking

    def ask(self, operation: str, arguments: Mapping[str, Any]) -> Any:
        """The release's answer: a number, a string, a dictionary for a spec, or a sequence.

        Raises `Refused` with the reason and `Unsupported` naming what is missing.
        """
        method = getattr(self, f"_ask_{operation}", None)
        try:
            if method is not None:
                return method(**arguments)
            names = self.bind(arguments)
            return self.answer(self.evaluate(self.question(operation, arguments), names))
        except REFUSALS as error:
            raise Refused(reason(error, self.root)) from error
        except NotImplementedError as error:
            raise Unsupported(f"{operation} is not implemented by the release") from error

    def question(self, operation: str, arguments: Mapping[str, Any]) -> Question:
        """The expression that asks an operation of this release."""
        if operation == "max_blocks_per_request":
            return self._bound_question(arguments)
        if operation == "construct":
            return Question("spec")
        if operation == "copy_with_new_block_size":
            return Question("spec.copy_with_new_block_size(block_size)")
        if operation == "max_memory_usage_bytes":
            return Question("spec.max_memory_usage_bytes(config)")
        if operation == "max_num_blocks_per_req":
            return Question("spec.max_num_blocks_per_req(config, max_len)")
        if operation in ("merge", "merge_without_asserts"):
            kind = arguments.get("kind") or arguments["specs"][0]["kind"]
            return Question(f"{CLASSES[kind]}.merge(specs)", imports=(_import(kind),))
        if operation == "quant_modes":
            return Question(
                "{name: mode.value for name, mode in KVQuantMode.__members__.items()}",
                imports=(f"from {INTERFACE} import KVQuantMode",),
            )
        if operation == "quant_families":
            return Question(
                "[name for name in vars(KVQuantMode) if name.startswith('is_') and "
                "getattr(KVQuantMode[mode], name) is True]",
                imports=(f"from {INTERFACE} import KVQuantMode",),
            )
        if operation == "get_kv_quant_mode":
            return Question(
                "get_kv_quant_mode(cache_dtype).name", imports=(f"from {INTERFACE} import get_kv_quant_mode",)
            )
        if operation == "cache_element_dtype":
            return Question(
                "STR_DTYPE_TO_TORCH_DTYPE.get(cache_dtype)",
                imports=("from vllm.utils.torch_utils import STR_DTYPE_TO_TORCH_DTYPE",),
            )
        return Question(f"spec.{operation}")

    def _bound_question(self, arguments: Mapping[str, Any]) -> Question:
        spec_class = self.release.classes.get(arguments["spec"]["kind"])
        method = getattr(spec_class, "max_admission_blocks_per_request", None)
        if method is None:
            return Question("-(-spec.max_memory_usage_bytes(config) // spec.page_size_bytes)")
        # A release that takes one batch's budget is told that, not the tokens of all batches.
        budget = "max_num_batched_tokens" in inspect.signature(method).parameters
        tokens = "config.scheduler_config.max_num_batched_tokens" if budget else "config.max_in_flight_tokens"
        return Question(f"spec.max_admission_blocks_per_request({tokens}, config.model_config.max_model_len)")

    def bind(self, arguments: Mapping[str, Any], release: Release | None = None) -> dict[str, Any]:
        """The objects that the names of a question stand for."""
        release = release or self.release
        names: dict[str, Any] = {}
        for name, value in arguments.items():
            if name == "spec":
                names["spec"] = release.build(value)
            elif name == "specs":
                names["specs"] = [release.build(spec) for spec in value]
            elif name == "deployment":
                names["config"] = self.config(value, arguments.get("spec"))
            else:
                names[name] = value
        return names

    def config(self, deployment: Mapping[str, Any], spec: Mapping[str, Any] | None = None) -> Any:
        """A stand-in for the configuration object: the few attributes that sizing reads."""
        return Settings("config", self.config_values(deployment, spec))

    def config_values(self, deployment: Mapping[str, Any], spec: Mapping[str, Any] | None) -> dict[str, Any]:
        """The attributes of the configuration stand-in, by section."""
        mode = _mamba_cache_mode(spec)
        accepted = self.literal("MambaCacheMode")
        if accepted and mode not in accepted:
            raise Unsupported(f"mamba_cache_mode {mode}")
        return {
            "model_config": {"max_model_len": deployment["max_model_len"]},
            "parallel_config": {
                "decode_context_parallel_size": deployment["decode_context_parallel"],
                "prefill_context_parallel_size": 1,
            },
            "scheduler_config": {
                "max_num_batched_tokens": deployment["max_num_batched_tokens"],
                "max_num_encoder_input_tokens": deployment["max_encoder_tokens"],
            },
            "cache_config": {"mamba_cache_mode": mode},
            "max_in_flight_tokens": deployment["in_flight_tokens"],
        }

    def evaluate(self, question: Question, names: dict[str, Any]) -> Any:
        """The value of a question's expression over the objects given."""
        code = self._compiled.get(question.expression)
        if code is None:
            code = self._compiled[question.expression] = compile(question.expression, "<question>", "eval")
        if not question.imports:
            return eval(code, names)
        namespace = dict(names)
        for line in question.imports:
            _, source, _, imported = line.split(" ", 3)
            for name in imported.split(", "):
                namespace[name] = getattr(importlib.import_module(source), name)
        return eval(code, namespace)

    def answer(self, value: Any) -> Any:
        """A value of the release as it goes over the wire."""
        if type(value).__name__ == "dtype":
            return dtype_name(value)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return self.release.read(value)
        return value

    # Operations that are more than one expression

    def _ask_cache_dtypes(self) -> tuple[str, ...]:
        return self.literal("CacheDType")

    def _ask_get_kv_quant_mode(self, cache_dtype: str) -> str:
        load_leniently("vllm.config.cache", self.root)
        try:
            question = self.question("get_kv_quant_mode", {})
            return str(self.evaluate(question, {"cache_dtype": cache_dtype}))
        except KeyError as error:
            raise Refused(f"no mode of that name: {error}") from None

    def _ask_quant_families(self, mode: str) -> tuple[str, ...]:
        found = self.evaluate(self.question("quant_families", {}), {"mode": mode})
        return tuple(name.removeprefix("is_") for name in found)

    def _ask_merge(self, specs: Sequence[Mapping[str, Any]], kind: str | None = None) -> Any:
        arguments = {"specs": specs, "kind": kind}
        return self.answer(self.evaluate(self.question("merge", arguments), self.bind({"specs": specs})))

    def _ask_merge_without_asserts(self, specs: Sequence[Mapping[str, Any]]) -> Any:
        if self._without_asserts is None:
            self._without_asserts = Release(compile_without_asserts(self.release.module))
        release = self._without_asserts
        members = [release.build(spec) for spec in specs]
        return release.read(release.classes[specs[0]["kind"]].merge(members))  # type: ignore[attr-defined]

    def _ask_merge_side_effects(self, specs: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
        members = [self.release.build(spec) for spec in specs]
        before = [self.release.build(spec) for spec in specs]
        merged = type(members[0]).merge(members)
        changed = [i for i, member in enumerate(members) if member != before[i]]
        shared = [i for i, member in enumerate(members) if merged is member]
        return (
            *(f"member {index} was changed" for index in changed),
            *(f"the result is member {index} itself" for index in shared),
        )

    def _ask_stored_bytes(self, spec: Mapping[str, Any]) -> Any:
        built = self.release.build(spec)
        if not hasattr(built, "state_content_size_bytes"):
            # Before backends published what they pack, the spec's own page counted it.
            states = built.block_size // getattr(built, "compress_ratio", 1)
            return built.page_size_bytes // (built.num_kv_heads * states)
        pack = self._packer(spec)
        packed = pack(built) if pack else built
        return packed.num_heads * packed.state_content_size_bytes // packed.num_kv_heads

    def packing_backend(self, spec: Mapping[str, Any]) -> tuple[str, str] | None:
        """Module and class of the backend that packs the spec's mode; None where none does."""
        families = self._ask_quant_families(spec["kv_quant_mode"])
        if not families:
            return None
        family = "latent" if spec["kind"] in LATENT_KINDS else families[0]
        if family not in PACKING_BACKENDS:
            raise Unsupported(f"what modes of family {family} store: no backend is known")
        return PACKING_BACKENDS[family]

    def _packer(self, spec: Mapping[str, Any]) -> Callable[[Any], Any] | None:
        backend = self.packing_backend(spec)
        if backend is None:
            return None
        name = ".".join(backend)
        if name not in self._packers:
            self._packers[name] = extract_method(self.root, *backend, "customize_spec")
        return self._packers[name]


def _import(kind: str) -> str:
    return f"from {INTERFACE} import {CLASSES[kind]}"


def _mamba_cache_mode(spec: Mapping[str, Any] | None) -> str:
    if spec is None:
        return "none"
    for _, layer in spec.get("kv_cache_specs", ()):
        if layer["kind"] == "mamba":
            return str(layer["mamba_cache_mode"])
    return str(spec.get("mamba_cache_mode", "none"))
