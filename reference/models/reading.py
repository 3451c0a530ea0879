"""One config.json being read, and what its architectures have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvconform.reference.interface import Refused
from kvconform.reference.models import recurrent
from kvconform.reference.models.fields import Fields
from kvconform.reference.models.omissions import DERIVES_HEAD_SIZE, DERIVES_KV_HEADS
from kvconform.reference.models.storage import store
from kvconform.reference.specs import DTYPE_BYTES, Spec, make

Parts = list[dict[str, Spec]]
"""The specs of each layer, by part."""


@dataclass(frozen=True)
class Reading:
    """One config.json being read, and what the caller asked for."""

    architecture: str
    fields: Fields
    block_size: int
    cache_dtype: str
    dtype: str

    def attention(self, kind: str, num_kv_heads: int, head_size: int, **more: Any) -> Spec:
        """A spec of an attention kind, stored in the cache dtype."""
        values = {"num_kv_heads": num_kv_heads, "head_size": head_size, "dtype": self.dtype, **more}
        spec: Spec = store(make(kind, block_size=self.block_size, **values), self.cache_dtype)
        return spec

    def state(self, mamba_type: str, state_dtype: str | None = None, **dims: int) -> Spec:
        """A recurrent layer."""
        return recurrent(
            mamba_type,
            block_size=self.block_size,
            dtype=self.dtype,
            state_dtype=state_dtype or self.dtype,
            **dims,
        )


def attention_heads(reading: Reading) -> tuple[int, int]:
    """KV heads and head size of ordinary attention."""
    fields = reading.fields
    size = fields.optional("head_dim")
    if size is None and reading.architecture in DERIVES_HEAD_SIZE:
        size = head_size(fields, "hidden_size", "num_attention_heads")
    return kv_heads(reading), size or fields.number("head_dim")


def kv_heads(reading: Reading) -> int:
    """KV heads, each of which a whole number of query heads reads."""
    fields = reading.fields
    query_heads = fields.number("num_attention_heads")
    kv_heads = fields.optional("num_key_value_heads")
    if kv_heads is None and reading.architecture in DERIVES_KV_HEADS:
        return query_heads
    kv_heads = kv_heads or fields.number("num_key_value_heads")
    if query_heads % kv_heads != 0:
        raise Refused(f"num_key_value_heads: {kv_heads} do not divide the {query_heads} num_attention_heads")
    return kv_heads


def head_size(fields: Fields, size: str, heads: str) -> int:
    """The head size where none is stated: the width, shared out over the heads."""
    width, count = fields.number(size), fields.number(heads)
    if width % count != 0:
        raise Refused(f"head_dim: missing, and {size} {width} is not a multiple of the {count} {heads}")
    return width // count


def known_dtype(name: str, value: Any) -> str:
    """The dtype that a field names."""
    if value is None:
        raise Refused(f"{name}: missing; say which dtype the model runs in")
    if not isinstance(value, str) or value not in DTYPE_BYTES:
        raise Refused(f"{name}: {value!r} is unknown; known are {', '.join(DTYPE_BYTES)}")
    return value


def every(interval: int, count: int, local: str) -> list[str]:
    """Layer types: full attention on every ``interval``-th layer, ``local`` on the others."""
    return [local if (index + 1) % interval else "full_attention" for index in range(count)]


def chosen(name: str, types: Sequence[Any], known: Mapping[str, dict[str, Spec]]) -> Parts:
    """The layers by their types; a type that is not known is `Refused` in the field's name."""
    for entry in dict.fromkeys(types):
        if entry not in known:
            raise Refused(f"{name}: {entry!r} is unknown; known are {', '.join(known)}")
    return [known[entry] for entry in types]
