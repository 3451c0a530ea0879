"""The spec classes of a vLLM release: its objects built from dictionaries, and read into them.

Names stand for modes and data types. Fields are looked for, never version numbers; what a class
lacks is said.
"""

from __future__ import annotations

import dataclasses
import sys
import types
from collections.abc import Mapping
from typing import Any

from kvconform.conformance.adapters.vllm_outcomes import Unsupported

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
                wire[name] = dtype_name(value)
            elif name == "dtypes":
                wire[name] = tuple(dtype_name(dtype) for dtype in value)
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


def dtype_name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")
