"""Asks a vLLM release for the sizes in its KV-cache spec.

One file that imports nothing of kvconform, so that it also runs in an interpreter that has only
vLLM. Specs and deployments are dictionaries; names stand for modes and data types. It looks for
fields, methods and functions, never for version numbers, and says what it cannot ask.

What is asked is kept as text (`Question`), evaluated as it stands against the release's objects,
and printed as it stands in a bug report: what ran is what is shown.
"""

from __future__ import annotations
import __future__

import ast
import dataclasses
import importlib
import inspect
import sys
import traceback
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

INTERFACE = "vllm.v1.kv_cache_interface"
REFUSALS = (AssertionError, ValueError)

CLASSES = {
    "full_attention": "FullAttentionSpec",
    "sliding_window": "SlidingWindowSpec",
    "sliding_window_mla": "SlidingWindowMLASpec",
    "chunked_local_attention": "ChunkedLocalAttentionSpec",
    "mla_attention": "MLAAttentionSpec",
    "hidden_state_cache": "HiddenStateCacheSpec",
    "rswa": "RSWASpec",
    "sink_full_attention": "SinkFullAttentionSpec",
    "cross_attention": "CrossAttentionSpec",
    "encoder_only_attention": "EncoderOnlyAttentionSpec",
    "mamba": "MambaSpec",
    "uniform_type": "UniformTypeKVCacheSpecs",
}
KIND_OF = {name: kind for kind, name in CLASSES.items()}
LATENT_KINDS = ("sliding_window_mla", "mla_attention", "hidden_state_cache")

RENAMED = {"compress_ratio": ("compress_ratio", "tokens_per_state")}
"""Fields that a release may call otherwise."""

DEFAULTS: dict[str, Any] = {
    "kv_quant_mode": "NONE",
    "page_size_padded": None,
    "indexes_kv_by_block_stride": False,
    "num_head_slots": None,
    "state_content_bytes": None,
    "sliding_window": None,
    "attention_chunk_size": None,
    "non_causal": False,
    "extra_retained_tokens": 0,
    "cache_dtype_str": None,
    "alignment": None,
    "compress_ratio": 1,
    "model_version": None,
    "non_causal_multi_token_decode": False,
    "sink_len": None,
    "mamba_type": "mamba2",
    "mamba_cache_mode": "none",
    "num_speculative_blocks": 0,
}
"""A field that a release lacks may still be given its default."""

PACKING_BACKENDS = {
    "latent": ("vllm.model_executor.layers.attention.mla_attention", "MLACommonBackend"),
    "per_token_head": ("vllm.v1.attention.backends.triton_attn", "TritonAttentionBackend"),
    "nvfp4": ("vllm.v1.attention.backends.flashinfer", "FlashInferBackend"),
    "turboquant": ("vllm.v1.attention.backends.turboquant_attn", "TurboQuantAttentionBackend"),
    "octave": ("vllm.v1.attention.backends.rocm_octave_attn", "RocmOctaveAttentionBackend"),
    "ultraquant": ("vllm.v1.attention.backends.ultraquant_attn", "UltraQuantAttentionBackend"),
}
"""The attention backend that packs each family of modes, where backends publish what they store."""


class AdapterError(Exception):
    """vLLM cannot be asked at all; one line that says why."""


class Refused(Exception):
    """The release declined the input."""


class Undocumented(Refused):
    """The release fell over the input instead of refusing it."""


class Unsupported(Exception):
    """The release has no such thing; names what is missing."""


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

    ``imports`` are the lines that bind other names in it; ``setup`` the lines before it.
    """

    expression: str
    imports: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()


class Release:
    """The spec classes of one release, in one module object."""

    def __init__(self, module: types.ModuleType) -> None:
        self.module = module
        self.classes: dict[str, type] = {
            kind: getattr(module, name) for kind, name in CLASSES.items() if hasattr(module, name)
        }
        self._names = {kind: _field_names(spec_class) for kind, spec_class in self.classes.items()}
        self._third_parties: dict[tuple[str, str], type] = {}

    def field_names(self, kind: str) -> Mapping[str, str]:
        """The base spec's field names that the kind has, with the release's own names."""
        return self._names[kind]

    def build(self, wire: Mapping[str, Any]) -> Any:
        """The release's spec object for a dictionary."""
        kind = wire["kind"]
        if "base" in wire:
            values = {name: value for name, value in wire.items() if name != "base"}
            return self.third_party(kind, wire["base"])(**self.arguments(values, wire["base"]))
        if kind not in self.classes:
            raise Unsupported(f"kind {kind}")
        if kind == "uniform_type":
            layers = {name: self.build(layer) for name, layer in wire["kv_cache_specs"]}
            return self.classes[kind](block_size=wire["block_size"], kv_cache_specs=layers)
        built = self.classes[kind](**self.arguments(wire))
        padded = wire.get("page_size_padded") if wire.get("alignment") is not None else None
        if padded is not None and padded > (built.page_size_padded or 0):
            # Some planners write a padding into a spec whose constructor derives it from the
            # alignment: the spec as planned has the padding written.
            object.__setattr__(built, "page_size_padded", padded)
        return built

    def third_party(self, kind: str, base: str) -> type:
        """A third party's kind with the fields of a base kind, or of any attention kind (empty).

        Asked again it gives the same class.
        """
        if (kind, base) not in self._third_parties:
            if base and base not in self.classes:
                raise Unsupported(f"kind {base}")
            parent = self.classes[base] if base else self.module.AttentionSpec
            bare: type = type(kind, (parent,), {"__module__": __name__})
            self._third_parties[kind, base] = dataclasses.dataclass(frozen=True)(bare)
        return self._third_parties[kind, base]

    def arguments(self, wire: Mapping[str, Any], base: str | None = None) -> dict[str, Any]:
        """The keyword arguments that build a spec, under the release's names.

        ``base`` is the kind whose fields a third party's kind has.
        """
        kind = wire["kind"] if base is None else base
        names = self._names[kind] if kind else _field_names(self.module.AttentionSpec)
        arguments: dict[str, Any] = {}
        for name, value in wire.items():
            if name == "kind" or (name == "head_size_v" and kind in LATENT_KINDS):
                # A latent has no V to size; releases differ in what they put there.
                continue
            if name not in names:
                plain = name == "head_size_v" and (value is None or value is wire.get("head_size"))
                if not plain and (name not in DEFAULTS or value != DEFAULTS[name]):
                    raise Unsupported(f"field {kind}.{name}")
            elif name == "dtype":
                arguments[name] = getattr(sys.modules["torch"], value)
            elif name == "dtypes":
                arguments[name] = tuple(getattr(sys.modules["torch"], dtype) for dtype in value)
            elif name == "kv_quant_mode":
                arguments[name] = self.mode(value)
            elif name != "mamba_type":
                arguments[names[name]] = value
        return arguments

    def mode(self, name: str) -> Any:
        """The mode of that name."""
        modes = self.module.KVQuantMode.__members__
        if name not in modes:
            raise Unsupported(f"mode {name}")
        return modes[name]

    def read(self, spec: Any) -> dict[str, Any]:
        """The dictionary for one of the release's spec objects."""
        kind = self._kind(spec)
        wire: dict[str, Any] = {"kind": kind}
        names: Mapping[str, str] = self._names.get(kind, {})
        for (third_kind, base), third_party in self._third_parties.items():
            if type(spec) is third_party:
                wire |= {"kind": third_kind, "base": base}
                names = self._names[base] if base else _field_names(self.module.AttentionSpec)
        if kind == "uniform_type":
            layers = [[name, self.read(layer)] for name, layer in spec.kv_cache_specs.items()]
            return {**wire, "block_size": spec.block_size, "kv_cache_specs": layers}
        for name, own in names.items():
            value = getattr(spec, own)
            if name == "dtype":
                wire[name] = _dtype_name(value)
            elif name == "dtypes":
                wire[name] = tuple(_dtype_name(dtype) for dtype in value)
            elif name == "kv_quant_mode":
                wire[name] = value.name
            elif name != "mamba_type" and not (name == "head_size_v" and kind in LATENT_KINDS):
                wire[name] = value
        return wire

    def _kind(self, spec: Any) -> str:
        for spec_class in type(spec).__mro__:
            if spec_class.__name__ in KIND_OF:
                return KIND_OF[spec_class.__name__]
        if type(spec) in self._third_parties.values():
            return ""
        raise Unsupported(f"kind of {type(spec).__name__}")


def _field_names(spec_class: type) -> dict[str, str]:
    own = [field.name for field in dataclasses.fields(spec_class)]
    names = {name: name for name in own}
    for name, candidates in RENAMED.items():
        for candidate in candidates:
            if candidate in own:
                names.pop(candidate)
                names[name] = candidate
    required = ("num_kv_heads", "head_size", "dtype", "block_size", "kv_cache_specs", "shapes", "dtypes")
    known = {*DEFAULTS, *required, "head_size_v", "rswa_window"}
    if KIND_OF.get(spec_class.__name__) not in LATENT_KINDS:
        # Later releases let every attention kind share a state; the base spec only latents.
        known -= set(RENAMED)
    return {name: own_name for name, own_name in names.items() if name in known}


def _dtype_name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


class Adapter:
    """Answers for one release: the one under ``root``, or the installed one."""

    def __init__(self, root: Path | None = None) -> None:
        """Import the release's spec module. Raises `AdapterError` where that fails."""
        if root is not None:
            _enter(root)
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
            return _dtype_name(value)
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
            self._without_asserts = Release(_compiled_without_asserts(self.release.module))
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
            self._packers[name] = _method_without_its_module(self.root, *backend, "customize_spec")
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


def reason(error: BaseException, root: Path) -> str:
    """What was raised, where, and its message or the line that raised it."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    path = Path(frame.filename)
    place = f"{path.relative_to(root) if path.is_relative_to(root) else path.name}:{frame.lineno}"
    text = str(error).strip() or (frame.line or "").strip()
    return f"{type(error).__name__} at {place}: {text}"


def _compiled_without_asserts(module: types.ModuleType) -> types.ModuleType:
    """The module's own source, compiled as ``python -O`` does, beside the original."""
    path = inspect.getsourcefile(module)
    assert path is not None
    twin = types.ModuleType(f"{module.__name__}_without_asserts")
    twin.__file__ = path
    sys.modules[twin.__name__] = twin
    source = Path(path).read_text(encoding="utf-8")
    exec(compile(source, path, "exec", optimize=1, dont_inherit=True), twin.__dict__)
    return twin


def _method_without_its_module(root: Path, module: str, class_name: str, method: str) -> Callable[[Any], Any]:
    """A class method of a backend, run from its source without importing its module.

    Attention backends import kernels that need a device; the method that says what they pack is
    plain arithmetic. The class is cut down to that method, and only the imports that bind names it
    uses are executed. Raises `Unsupported` where there is no such method.
    """
    path = root.joinpath(*module.split(".")).with_suffix(".py")
    missing = Unsupported(f"{class_name}.{method} in {module}")
    if not path.exists():
        raise missing
    tree = ast.parse(path.read_text(encoding="utf-8"))
    owners = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == class_name]
    if not owners:
        raise missing
    owner = owners[0]
    owner.body = [node for node in owner.body if isinstance(node, ast.FunctionDef) and node.name == method]
    if not owner.body:
        raise missing
    owner.keywords, owner.decorator_list = [], []
    used = {node.id for node in ast.walk(owner) if isinstance(node, ast.Name)}
    if "super" not in used:
        used -= {base.id for base in owner.bases if isinstance(base, ast.Name)}
        owner.bases = []
    for node in ast.walk(owner):
        if isinstance(node, ast.ImportFrom) and node.module:
            _make_importable(node.module, root)
    namespace: dict[str, Any] = {}
    for statement in tree.body:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            for alias in statement.names:
                if (alias.asname or alias.name) in used:
                    if isinstance(statement, ast.ImportFrom) and statement.module:
                        _make_importable(statement.module, root)
                    only = ast.copy_location(_only(statement, alias), statement)
                    try:
                        exec(_compile(only, path), namespace)
                    except ImportError as error:
                        raise Unsupported(f"{class_name}.{method}: {error}") from error
    exec(_compile(owner, path), namespace)
    bound: Callable[[Any], Any] = getattr(namespace[class_name], method)
    return bound


def _make_importable(module: str, root: Path) -> None:
    """Load a module of the release leniently where it cannot be imported as it is."""
    if module.startswith("vllm.") and root.joinpath(*module.split(".")).with_suffix(".py").exists():
        try:
            importlib.import_module(module)
        except Exception:
            load_leniently(module, root)


def _compile(statement: ast.stmt, path: Path) -> types.CodeType:
    # Annotations stay unevaluated: they name much that is not here.
    module = ast.Module([statement], [])
    code: types.CodeType = compile(module, str(path), "exec", _UNEVALUATED, dont_inherit=True)
    return code


def _only(statement: ast.Import | ast.ImportFrom, alias: ast.alias) -> ast.stmt:
    if isinstance(statement, ast.Import):
        return ast.Import([alias])
    return ast.ImportFrom(statement.module, [alias], statement.level)


def _enter(root: Path) -> None:
    """Have the release's modules found without running what its top package does on import.

    That patches torch's compiler, which takes two seconds to load and has no say in sizes.
    """
    if "vllm" not in sys.modules and (root / "vllm").is_dir():
        package = types.ModuleType("vllm")
        package.__path__ = [str(root / "vllm")]
        sys.modules["vllm"] = package


class StandIn(types.ModuleType):
    """Takes the place of what cannot be imported; using anything in it raises `Unsupported`."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise Unsupported(f"{self.__name__}.{name}, which cannot be imported here")

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise Unsupported(f"{self.__name__}, which cannot be imported here")


STOOD_IN: set[str] = set()
"""What `load_leniently` put a stand-in for, as dotted names."""


def load_leniently(name: str, root: Path, *, siblings: Sequence[str] = ()) -> types.ModuleType:
    """Import a module of the release although much of what it imports is not installed.

    Its package is entered without running the package's own imports, and each statement at the top
    of the module that fails binds a stand-in which raises once anything in it is used. ``siblings``
    are modules that it needs more of than such stand-ins: those the release has are loaded first.
    """
    if name in sys.modules:
        return sys.modules[name]
    for sibling in siblings:
        if root.joinpath(*sibling.split(".")).with_suffix(".py").exists():
            load_leniently(sibling, root)
    parts = name.split(".")
    for depth in range(2, len(parts)):
        package = ".".join(parts[:depth])
        if package not in sys.modules:
            bare = StandIn(package)
            bare.__path__ = [str(root.joinpath(*parts[:depth]))]
            sys.modules[package] = bare
    path = root.joinpath(*parts).with_suffix(".py")
    if not path.exists():
        raise Unsupported(f"module {name}")
    module = types.ModuleType(name)
    module.__file__ = str(path)
    module.__package__ = name.rpartition(".")[0]
    sys.modules[name] = module
    try:
        for statement in ast.parse(path.read_text(encoding="utf-8")).body:
            try:
                exec(_compile(statement, path), module.__dict__)
            except Exception as error:
                for bound in _names_bound(statement):
                    STOOD_IN.add(f"{name}.{bound}")
                    module.__dict__[bound] = StandIn(f"{name}.{bound} ({type(error).__name__}: {error})")
    except BaseException:
        # Interrupted, as by a time limit: half a module must not pass for the whole one.
        del sys.modules[name]
        raise
    return module


_UNEVALUATED = __future__.annotations.compiler_flag


def _names_bound(statement: ast.stmt) -> list[str]:
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return [(alias.asname or alias.name).partition(".")[0] for alias in statement.names]
    if isinstance(statement, ast.ClassDef | ast.FunctionDef):
        return [statement.name]
    if isinstance(statement, ast.Assign):
        return [target.id for target in statement.targets if isinstance(target, ast.Name)]
    return []
