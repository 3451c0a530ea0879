"""Real models as data: the layers that cache something, each with the public source of its dims.

One TOML file per model. Its ``part`` tables are specs that lack only what a deployment chooses;
its ``runs`` lay them over the layers: ``[5, "sliding"]`` is five layers with one part each, a
layer may have several parts or none, and a run may repeat. ``draft`` are a draft model's layers.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any

from kvconform.reference.arithmetic import cdiv, round_up, total
from kvconform.reference.blocks import max_memory_usage_bytes
from kvconform.reference.deployment import Deployment
from kvconform.reference.models.figures import Figure
from kvconform.reference.models.states import STATES
from kvconform.reference.models.storage import keep, kv_heads_per_rank, store
from kvconform.reference.pages import page_size_bytes
from kvconform.reference.specs import AttentionSpec, FullAttention, Mamba, Spec, make

WITHOUT_MODEL = {
    "hidden_state_cache": "no checkpoint has one: an engine adds it to read a model's hidden states",
    "uniform_type": "no layer is one: a planner makes it of the layers that share a block table",
}
"""Kinds that no model of the collection has, and why."""

Run = tuple[int, tuple[tuple[int, tuple[str, ...]], ...]]
"""How often it repeats, and (layers, the parts of each of them)."""

Layers = tuple[tuple[str, Spec], ...]


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model's caches as its makers describe them.

    ``dtype`` is what the cache holds unless a cache dtype says otherwise; ``max_model_len`` and
    ``max_encoder_len`` are tokens; ``block_size`` (tokens) is what its layers' blocks are
    multiples of. ``source`` says where the numbers are from.
    """

    name: str
    source: str
    dtype: str
    max_model_len: int
    max_encoder_len: int = 0
    block_size: int = 16
    runs: tuple[Run, ...]
    draft: tuple[Run, ...] = ()
    parts: Mapping[str, Mapping[str, Any]] = field(hash=False)
    figures: tuple[Figure, ...] = ()

    def layers(
        self, block_size: int | None = None, cache_dtype: str = "auto", tensor_parallel: int = 1
    ) -> Layers:
        """The layers of one tensor parallel rank, by name, in the model's order.

        ``block_size`` in tokens, by default `own_block_size`; parts whose block size is fixed by a
        kernel keep it. Raises `Refused` for a cache dtype that has no layout for a layer and for
        heads that cannot be shared by the ranks.
        """
        if block_size is None:
            block_size = self.own_block_size(cache_dtype, tensor_parallel)
        specs = self.specs(block_size, cache_dtype, tensor_parallel)
        return tuple((name, specs[part]) for name, part in self._placed())

    def draft_layers(self) -> tuple[str, ...]:
        """The names of the layers of a draft model."""
        return tuple(name for name, _ in self._placed() if name.startswith("draft."))

    def deployment(self, **changes: Any) -> Deployment:
        """A deployment at the model's own lengths, with its draft layers, and the changes."""
        own = Deployment(
            max_model_len=self.max_model_len,
            max_encoder_tokens=self.max_encoder_len,
            draft_layers=self.draft_layers(),
        )
        return replace(own, **changes)

    def own_block_size(self, cache_dtype: str = "auto", tensor_parallel: int = 1) -> int:
        """The block size, in tokens, at which an engine serves the model if it is not told any.

        Beside recurrent layers, the least multiple of ``block_size`` whose attention page covers
        the state: the planner can then pad the state's page up to it.
        """
        specs = self.specs(self.block_size, cache_dtype, tensor_parallel).values()
        state = max((page_size_bytes(spec) for spec in specs if isinstance(spec, Mamba)), default=0)
        page = max((page_size_bytes(spec) for spec in specs if isinstance(spec, AttentionSpec)), default=0)
        if state == 0 or page == 0:
            return self.block_size
        return round_up(cdiv(state * self.block_size, page), self.block_size)

    def specs(self, block_size: int, cache_dtype: str = "auto", tensor_parallel: int = 1) -> dict[str, Spec]:
        """The spec of each part, by its name; see `layers`."""
        return {
            name: self._spec(part, block_size, cache_dtype, tensor_parallel)
            for name, part in self.parts.items()
        }

    def kv_bytes(self, figure: Figure) -> int:
        """The bytes that a figure is about, by the reference: see `Figure`."""
        specs = self.specs(1, figure.cache_dtype)
        deployment = Deployment(max_model_len=figure.tokens)
        counted = [
            specs[part]
            for name, part in self._placed()
            if (not figure.parts or part in figure.parts) and not name.startswith("draft.")
        ]
        kept = [spec for spec in counted if isinstance(spec, FullAttention)]
        return total(max_memory_usage_bytes(spec, deployment) for spec in kept[: figure.layers])

    def _spec(self, part: Mapping[str, Any], block_size: int, cache_dtype: str, ranks: int) -> Spec:
        values = {"block_size": block_size, "dtype": self.dtype, **part}
        if part["kind"] == Mamba.kind:
            return recurrent(
                part["mamba_type"],
                block_size=block_size,
                dtype=self.dtype,
                state_dtype=part.get("state_dtype", self.dtype),
                ranks=ranks,
                **part["dims"],
            )
        values["num_kv_heads"] = kv_heads_per_rank(part["num_kv_heads"], ranks)
        spec: AttentionSpec = make(**values)
        return keep(spec, cache_dtype) if "dtype" in part else store(spec, cache_dtype)

    def _placed(self) -> Iterator[tuple[str, str]]:
        yield from place(self.runs, "layers")
        yield from place(self.draft, "draft")


def models() -> tuple[str, ...]:
    """The names of all models, sorted."""
    data = (entry.name for entry in files(__name__).iterdir())
    return tuple(sorted(name.removesuffix(".toml") for name in data if name.endswith(".toml")))


@cache
def model(name: str) -> Model:
    """The model of that name; `ValueError` names the nearest ones where there is none."""
    if name not in models():
        near = difflib.get_close_matches(name, models(), n=3, cutoff=0.4)
        hint = f"; did you mean {' or '.join(near)}?" if near else f"; there are {', '.join(models())}"
        raise ValueError(f"no model {name!r}{hint}")
    return read(name, (files(__name__) / f"{name}.toml").read_text(encoding="utf-8"))


def read(name: str, text: str) -> Model:
    """The model that a TOML text describes."""
    data = tomllib.loads(text)
    return Model(
        name=name,
        runs=_runs(data.pop("runs")),
        draft=_runs(data.pop("draft", ())),
        parts=MappingProxyType(data.pop("part")),
        figures=tuple(_figure(entry) for entry in data.pop("figure", ())),
        **data,
    )


def place(runs: Sequence[Run], prefix: str) -> Iterator[tuple[str, str]]:
    """(layer name, part) for every part of every layer: ``layers.5.sliding``."""
    layer = 0
    for repeat, entries in runs:
        for count, parts in entries * repeat:
            for index in range(layer, layer + count):
                yield from ((f"{prefix}.{index}.{part}", part) for part in parts)
            layer += count


def recurrent(
    mamba_type: str, *, block_size: int, dtype: str, state_dtype: str, ranks: int = 1, **dims: int
) -> Mamba:
    """A recurrent layer: the convolution's inputs in ``dtype``, its state in ``state_dtype``."""
    return Mamba(
        block_size=block_size,
        shapes=STATES[mamba_type](ranks=ranks, **dims),
        dtypes=(dtype, state_dtype),
        mamba_type=mamba_type,
    )


def _runs(entries: Sequence[Mapping[str, Any]]) -> tuple[Run, ...]:
    return tuple(
        (entry.get("repeat", 1), tuple((count, tuple(parts)) for count, *parts in entry["layers"]))
        for entry in entries
    )


def _figure(entry: Mapping[str, Any]) -> Figure:
    values = {**entry, "value": Decimal(entry["value"]), "parts": tuple(entry.get("parts", ()))}
    return Figure(**values)
