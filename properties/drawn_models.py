"""Whole models and the memory they are planned in, built from the primitives of `Given`.

A model is a few kinds of layers in unequal counts, laid over one or more ranks. Pages are drawn to
divide one another, or, where every backend indexes by block stride, to be of any size. Memory is
drawn around the number of bytes at which one more block fits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvconform.properties.given import TYPICAL_TOKENS, Given
from kvconform.reference import grouping, planning
from kvconform.reference.deployment import Deployment
from kvconform.reference.interface import Refused
from kvconform.reference.pages import construct, page_size_bytes
from kvconform.reference.specs import KINDS, LATENT_KINDS, Mamba, Spec
from kvconform.reference.uniform import Registry

HYBRIDS = {
    "full": ("full_attention",),
    "full, sliding": ("full_attention", "sliding_window"),
    "full, full": ("full_attention", "full_attention"),
    "full, mamba": ("full_attention", "mamba"),
    "sliding, sliding": ("sliding_window", "sliding_window"),
    "full, chunked": ("full_attention", "chunked_local_attention"),
    "full, sliding, sliding": ("full_attention", "sliding_window", "sliding_window"),
    "full, sliding, mamba": ("full_attention", "sliding_window", "mamba"),
    "full, full, sliding": ("full_attention", "full_attention", "sliding_window"),
    "latent": ("mla_attention",),
    "latent, full": ("mla_attention", "full_attention"),
    "latent, sliding": ("mla_attention", "sliding_window"),
    "latent, sliding latent": ("mla_attention", "sliding_window_mla"),
    "latent, mamba": ("mla_attention", "mamba"),
    "mamba": ("mamba",),
    "mamba, mamba": ("mamba", "mamba"),
    "sink": ("sink_full_attention",),
    "sink, sliding": ("sink_full_attention", "sliding_window"),
    "full, cross": ("full_attention", "cross_attention"),
    "rswa": ("rswa",),
    "full, rswa": ("full_attention", "rswa"),
    "latent, hidden states": ("mla_attention", "hidden_state_cache"),
    "full, hidden states": ("full_attention", "hidden_state_cache"),
}
"""The kinds of a model's layers, by what the model is called in a recorded case."""

BESIDE_FULL = (
    "full, sliding",
    "full, chunked",
    "full, sliding, sliding",
    "full, full, sliding",
    "latent, sliding",
    "latent, sliding latent",
)
"""Models in which local layers stand beside full ones."""

WRAPPED = ("full, full", "latent, full", "full", "latent", "mamba, mamba", "full, sliding", "full, mamba")
"""Models of which some plans hold a uniform_type, and plain ones beside them."""

PARTITIONS = ("one rank", "pipeline", "tensor")
"""How layers lie on ranks."""

WITH_EMPTY = (*PARTITIONS, "empty stage")
"""And with a stage of a pipeline whose layers keep nothing of their own."""

PRECISIONS = {
    "16-bit": {"dtype": "bfloat16"},
    "8-bit": {"dtype": "uint8", "kv_quant_mode": "FP8_PER_TENSOR"},
}

CHUNK_BLOCKS = 5040
"""A chunk is this many blocks: whole blocks still when unifying pages grows them a few times."""


@dataclass(frozen=True)
class Model:
    """The layers of each rank, by name, and the deployment that they are planned for."""

    ranks: tuple[dict[str, Spec], ...]
    deployment: Deployment

    def layers(self) -> dict[str, Spec]:
        """The layers of all ranks together."""
        return {name: spec for rank in self.ranks for name, spec in rank.items()}

    def handed_over(self) -> list[dict[str, Spec]]:
        """The layers of each rank, as mappings of their own.

        A planner that changes what it is given changes nothing for the next question asked of the
        same model: only plan/leaves-inputs is about that.
        """
        return [dict(rank) for rank in self.ranks]

    def with_layers(self, changed: dict[str, Spec]) -> Model:
        """The same model with some layers' specs exchanged."""
        ranks = tuple({name: changed.get(name, spec) for name, spec in rank.items()} for rank in self.ranks)
        return replace(self, ranks=ranks)

    def deployed(self, **changes: Any) -> Model:
        """The same model under another deployment."""
        return replace(self, deployment=replace(self.deployment, **changes))

    def total_pages(self) -> int:
        """Bytes of one block of every layer, filler apart."""
        return sum(page_size_bytes(spec) for spec in self.layers().values())


def model(
    given: Given,
    *,
    hybrids: Sequence[str] = tuple(HYBRIDS),
    pages: Sequence[str] = ("dividing", "any"),
    layouts: Sequence[str] = ("shared", "packed"),
    partitions: Sequence[str] = PARTITIONS,
    precisions: Sequence[str] = tuple(PRECISIONS),
    max_model_len: int | None = None,
) -> Model:
    """A model of one of the hybrids whose kinds the implementation has, with one to four layers each.

    ``pages``: whether they divide one another or may be of any size. ``layouts``: whether tensors
    are shared or packed. ``partitions``: how layers lie on ranks.
    """
    has = given.implementation.kinds()
    possible = [name for name in hybrids if all(kind in has for kind in HYBRIDS[name])]
    if not possible:
        given.reject()
    kinds = HYBRIDS[given.choice("model", possible)]
    if max_model_len is None:
        max_model_len = given.tokens("max_model_len", at_least=1)
    buckets = _buckets(given, kinds, pages, precisions, max_model_len)
    layers, drafts = _layers(given, given.alike(buckets))
    return Model(
        ranks=_partition(given, layers, partitions),
        deployment=Deployment(
            max_model_len=max_model_len,
            max_num_batched_tokens=given.integer(
                "max_num_batched_tokens", at_least=1, at_most=1 << 32, typical=TYPICAL_TOKENS
            ),
            max_concurrent_batches=given.choice("max_concurrent_batches", (1, 2)),
            max_encoder_tokens=_encoder_tokens(given, kinds),
            packed_layout=given.choice("layout", layouts) == "packed",
            draft_layers=drafts,
        ),
    )


def _encoder_tokens(given: Given, kinds: Sequence[str]) -> int:
    """The longest encoder input, where a layer caches it."""
    if "cross_attention" not in kinds:
        return 0
    return given.tokens("max_encoder_tokens", at_least=1, at_most=1 << 20)


def _buckets(
    given: Given, kinds: Sequence[str], pages: Sequence[str], precisions: Sequence[str], max_model_len: int
) -> list[Spec]:
    """One spec for each kind; the page of all is a multiple of one unit, unless pages are any.

    Derived fields are filled in, so that what a planner changes can be told from what it derives.
    """
    block_size = given.choice("block_size", (16, 4, 32, 64))
    heads = given.choice("num_kv_heads", (1, 2, 8))
    head_size = given.choice("head_size", (8, 64, 128))
    any_size = given.choice("pages", pages) == "any"
    state = given.choice("mamba_cache_mode", ("none", "align", "all")) if "mamba" in kinds else "none"
    speculative = given.choice("num_speculative_blocks", (0, 1, 2)) if "mamba" in kinds else 0
    specs: list[Spec] = []
    for index, kind in enumerate(kinds):
        name = f"kind.{index}"
        times = given.choice(f"{name}.times", (1, 2, 4))
        if kind == "mamba":
            # The unit is the page of a 16-bit full layer with the heads drawn.
            floats = block_size * heads * head_size * times
            odd = given.choice(f"{name}.less", (0, 1)) if any_size else 0
            specs.append(
                Mamba(
                    # Without caching a state stands for the whole request: one block, whatever
                    # its length, which is how an allocator comes to give it one.
                    block_size=max_model_len if state == "none" else block_size,
                    shapes=((floats - odd,),),
                    dtypes=("float32",),
                    mamba_cache_mode=state,
                    num_speculative_blocks=speculative,
                )
            )
            continue
        has = given.implementation.fields(kind)
        fields: dict[str, Any] = {"block_size": block_size, **_own_fields(given, name, kind, block_size)}
        known = {
            key: value
            for key, value in PRECISIONS[given.choice(f"{name}.precision", precisions)].items()
            if key in has
        }
        wider = given.choice(f"{name}.wider", (0, 1, 8)) if any_size else 0
        if kind in LATENT_KINDS:
            fields |= {"num_kv_heads": 1, "head_size": 2 * heads * head_size * times + wider}
        else:
            fields |= {"num_kv_heads": heads * times, "head_size": head_size + wider}
        if any_size and "indexes_kv_by_block_stride" in has:
            fields["indexes_kv_by_block_stride"] = True
        specs.append(construct(KINDS[kind](**{**fields, **known})))
    return specs


def _own_fields(given: Given, name: str, kind: str, block_size: int) -> dict[str, int]:
    if kind.startswith("sliding_window"):
        return {"sliding_window": given.choice(f"{name}.sliding_window", (1, 5, 128, 1024))}
    if kind == "chunked_local_attention":
        return {"attention_chunk_size": block_size * CHUNK_BLOCKS}
    if kind == "sink_full_attention":
        return {"sink_len": block_size * given.choice(f"{name}.sink_blocks", (1, 2))}
    if kind == "rswa":
        return {"rswa_window": given.choice(f"{name}.rswa_window", (1, 5, 128, 1024))}
    return {}


def _layers(given: Given, buckets: Sequence[Spec]) -> tuple[dict[str, Spec], tuple[str, ...]]:
    """The layers by name, in order, and which of them are a draft model's."""
    counts = [given.choice(f"kind.{index}.layers", (1, 2, 3, 4)) for index in range(len(buckets))]
    order = given.choice("order", ("by kind", "interleaved"))
    kinds = [index for index, count in enumerate(counts) for _ in range(count)]
    if order == "interleaved":
        kinds = [index for turn in range(max(counts)) for index, count in enumerate(counts) if turn < count]
    layers = {f"layers.{place}": buckets[index] for place, index in enumerate(kinds)}
    draft = given.choice("draft_layer", ("none", *(f"kind.{index}" for index in range(len(buckets)))))
    if draft == "none":
        return layers, ()
    layers["draft.0"] = buckets[int(draft.removeprefix("kind."))]
    return layers, ("draft.0",)


def _partition(
    given: Given, layers: dict[str, Spec], partitions: Sequence[str]
) -> tuple[dict[str, Spec], ...]:
    """The layers of each rank: all on one, stages of a pipeline, or the same on two.

    A stage is empty where all its layers read what an earlier stage's layers keep.
    """
    partition = given.choice("partition", partitions)
    if partition == "one rank":
        return (dict(layers),)
    if partition == "tensor":
        return dict(layers), dict(layers)
    if partition == "empty stage":
        return dict(layers), {}
    if len(layers) < 2:
        given.reject()
    names = list(layers)
    cut = given.choice("first_stage_layers", range(1, len(names)))
    return (
        {name: layers[name] for name in names[:cut]},
        {name: layers[name] for name in names[cut:]},
    )


def memory(given: Given, drawn: Model, *, spare_blocks: int | None = None) -> list[int]:
    """Bytes for each rank, from exactly one request of max length upwards.

    ``spare_blocks`` beyond what the request and the withheld blocks take are drawn unless given;
    a negative number is too little for the request. Each rank has at most one block less a byte
    more than that, and ranks after the first may have blocks more. A rank without layers has as
    much as the first.
    """
    if spare_blocks is None:
        spare_blocks = given.integer("spare_blocks", at_most=1 << 20)
    blocks, sizes = request_in_blocks(drawn)
    available = []
    for index, own_size in enumerate(sizes):
        size = own_size or sizes[0]
        beyond = spare_blocks
        if index > 0:
            beyond += given.choice(f"rank.{index}.more_blocks", (0, 1, 1000))
        rest = given.choice(f"rank.{index}.rest", ("none", "one byte", "one byte less than a block", "half"))
        extra = {"none": 0, "one byte": 1, "half": size // 2}.get(rest, size - 1)
        available.append(max((blocks + beyond) * size + min(extra, size - 1), 0))
    return available


def request_in_blocks(drawn: Model) -> tuple[int, list[int]]:
    """Blocks of one request of max length, withheld ones included, and bytes per block of each rank.

    By the reference's plan; where it refuses the model, as if every layer were a group.
    """
    try:
        groups = grouping.get_kv_cache_groups(drawn.layers(), drawn.deployment, Registry())
        packed = drawn.deployment.packed_layout
        sizes = [planning.bytes_per_block(planning.project(groups, rank), packed) for rank in drawn.ranks]
        needed = planning.blocks_per_request(groups, drawn.deployment)
        return needed + planning.withheld_blocks(groups), sizes
    except Refused:
        sizes = [sum(page_size_bytes(spec) for spec in rank.values()) for rank in drawn.ranks]
        return len(drawn.layers()) * (drawn.deployment.max_model_len + 1), sizes
