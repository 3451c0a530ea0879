"""Which layers share a block table, and how their pages come to be equal (FACTS section 9.1 to 9.3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

from kvconform.reference.arithmetic import cdiv
from kvconform.reference.deployment import Deployment
from kvconform.reference.interface import Refused
from kvconform.reference.merging import RECONCILED, merge
from kvconform.reference.pages import construct, copy_with_new_block_size, page_size_bytes
from kvconform.reference.promotion import promote_local
from kvconform.reference.specs import LATENT, AttentionSpec, FullAttention, Mamba, Spec, UniformType
from kvconform.reference.uniform import Registry, uniform_type


@dataclass(frozen=True, kw_only=True)
class KVCacheGroupSpec:
    """Layers that share one block table.

    ``kv_cache_spec`` is one spec that stands for all of them, or a uniform_type that holds each
    layer's own. ``is_eagle_group``: the group holds layers of a draft model.
    """

    layer_names: tuple[str, ...]
    kv_cache_spec: Spec
    is_eagle_group: bool = False

    def layer_specs(self) -> dict[str, Spec]:
        """The spec of each layer of the group, by name, as it was planned."""
        if isinstance(self.kv_cache_spec, UniformType):
            inside = dict(self.kv_cache_spec.kv_cache_specs)
            return {name: inside.get(name, self.kv_cache_spec) for name in self.layer_names}
        return dict.fromkeys(self.layer_names, self.kv_cache_spec)


def get_kv_cache_groups(
    layers: Mapping[str, Spec], deployment: Deployment, registry: Registry
) -> tuple[KVCacheGroupSpec, ...]:
    """The groups of a whole model, in the order in which their first layers are listed.

    1. All layers mergeable: one group of the merged spec. 2. All uniform: one uniform_type.
    3. Else pages are made equal, and mergeable layers are bucketed and split into groups of one
    size. The layout of the tensors plays no part in it.

    Raises `Refused` for a kind that nobody registered, for a page of no bytes or not a multiple of
    the alignment declared, for pages that cannot be made equal and, without the hybrid manager,
    for layers that cannot share one group.
    """
    registry.refuse_unknown(layers)
    constructed = {spec: construct(spec) for spec in _distinct(layers).values()}
    planned = {name: constructed[spec] for name, spec in layers.items()}
    for name, spec in _distinct(planned).items():
        _refuse_unplaceable(name, spec)
    if not deployment.hybrid_kv_cache_manager:
        planned = promote_local(planned)
    groups = _single_group(planned, registry)
    if groups is None:
        if not deployment.hybrid_kv_cache_manager:
            raise Refused("without the hybrid manager all layers must share one group, and these cannot")
        groups = _split(unify_page_sizes(planned))
    drafts = frozenset(deployment.draft_layers)
    return tuple(replace(group, is_eagle_group=not drafts.isdisjoint(group.layer_names)) for group in groups)


def unify_page_sizes(layers: Mapping[str, Spec]) -> dict[str, Spec]:
    """The layers with pages as large as the largest one (FACTS section 9.3).

    A layer whose page divides the largest grows its block size by the ratio; a mamba page is
    padded; an attention page that does not divide is grown as far as it fits and padded, which
    only a backend that indexes by block stride can read, else `Refused`.

    Growing before padding goes beyond the base spec, which pads alone: so less than one page of
    the smaller layer is lost per block (plan/unify-waste).
    """
    specs = _distinct(layers)
    largest = max(page_size_bytes(spec) for spec in specs.values())
    unified = {spec: _with_page(name, spec, largest) for name, spec in specs.items()}
    return {name: unified[spec] for name, spec in layers.items()}


def group_size(counts: Sequence[int]) -> int:
    """Layers per group for buckets of so many layers each.

    The smallest bucket, or the largest when that is less than half as large again: a few filler
    layers cost less than twice the groups.
    """
    smallest = min(counts)
    largest = max(counts)
    return largest if 2 * largest < 3 * smallest else smallest


def filler_layers(counts: Sequence[int]) -> int:
    """Slots that stay empty when buckets of so many layers are split into groups of one size."""
    size = group_size(counts)
    return sum(cdiv(count, size) * size - count for count in counts)


def buckets(layers: Mapping[str, Spec]) -> list[list[str]]:
    """The names of the layers, mergeable ones together, in order of first appearance.

    Layers that merge only differ in fields that a merge reconciles. Different recorded windows or
    chunks keep apart; a layer that records nothing joins the smallest one recorded, whichever
    comes first in the model, so that the order of the layers does not change the buckets.
    """
    names_by_spec: dict[Spec, list[str]] = {}
    for name, spec in layers.items():
        names_by_spec.setdefault(spec, []).append(name)
    recorded: dict[tuple[object, ...], set[tuple[str, int]]] = {}
    for spec in names_by_spec:
        recorded.setdefault(_fixed_fields(spec), set()).update(_recorded(spec))
    joined: dict[tuple[object, ...], list[str]] = {}
    for spec, names in names_by_spec.items():
        fixed = _fixed_fields(spec)
        own = _recorded(spec) or sorted(recorded[fixed])[:1]
        joined.setdefault((fixed, *own), []).extend(names)
    position = {name: index for index, name in enumerate(layers)}
    for names in joined.values():
        names.sort(key=position.__getitem__)
    return sorted(joined.values(), key=lambda names: position[names[0]])


def _single_group(planned: Mapping[str, Spec], registry: Registry) -> list[KVCacheGroupSpec] | None:
    if not planned:
        return []
    if len(buckets(planned)) == 1:
        return [_merged_group(tuple(planned), planned)]
    uniform = uniform_type(planned, registry)
    if uniform is not None:
        return [KVCacheGroupSpec(layer_names=tuple(planned), kv_cache_spec=uniform)]
    return None


def _split(planned: Mapping[str, Spec]) -> list[KVCacheGroupSpec]:
    mergeable = buckets(planned)
    size = group_size([len(names) for names in mergeable])
    groups = []
    for names in mergeable:
        count = cdiv(len(names), size)
        # Every count-th layer, not a run of layers: each pipeline stage then owns its share of
        # every group, instead of whole groups and nothing of the others.
        groups += [_merged_group(tuple(names[first::count]), planned) for first in range(count)]
    return groups


def _merged_group(names: tuple[str, ...], planned: Mapping[str, Spec]) -> KVCacheGroupSpec:
    distinct = list(dict.fromkeys(planned[name] for name in names))
    # Only kinds that reconcile fields need the merge; for the others, a third party's included,
    # the base rule of section 7 holds: all are equal, and the result is each of them.
    merged = merge(distinct) if distinct[0].kind in RECONCILED else distinct[0]
    return KVCacheGroupSpec(layer_names=names, kv_cache_spec=merged)


def _fixed_fields(spec: Spec) -> tuple[object, ...]:
    """What layers must have in common to merge."""
    free = RECONCILED.get(spec.kind, ())
    return (spec.kind, *(getattr(spec, field.name) for field in fields(spec) if field.name not in free))


def _recorded(spec: Spec) -> list[tuple[str, int]]:
    """The window or chunk that a full layer records."""
    if not isinstance(spec, FullAttention):
        return []
    values = (("sliding_window", spec.sliding_window), ("attention_chunk_size", spec.attention_chunk_size))
    return [(name, value) for name, value in values if value is not None]


def _with_page(name: str, spec: Spec, largest: int) -> Spec:
    page = page_size_bytes(spec)
    if page == largest:
        return spec
    if isinstance(spec, Mamba):
        return replace(spec, page_size_padded=largest)
    assert isinstance(spec, AttentionSpec)
    if largest % page != 0 and not spec.indexes_kv_by_block_stride:
        raise Refused(
            f"layer {name}: page of {page} bytes does not divide the largest of {largest}, "
            "and its backend does not index by block stride"
        )
    grown = copy_with_new_block_size(spec, spec.block_size * (largest // page))
    assert isinstance(grown, AttentionSpec)
    if page_size_bytes(grown) == largest:
        return grown
    if isinstance(spec, LATENT) and spec.alignment is not None and largest % spec.alignment != 0:
        raise Refused(
            f"layer {name}: a page of {largest} bytes would leave blocks off its alignment {spec.alignment}"
        )
    return replace(grown, page_size_padded=largest)


def _distinct(layers: Mapping[str, Spec]) -> dict[str, Spec]:
    """One layer of each spec, by name: models repeat few specs often."""
    first: dict[Spec, str] = {}
    for name, spec in layers.items():
        first.setdefault(spec, name)
    return {name: spec for spec, name in first.items()}


def _refuse_unplaceable(name: str, spec: Spec) -> None:
    if spec.block_size <= 0:
        raise Refused(f"layer {name}: block size {spec.block_size} is not positive")
    page = page_size_bytes(spec)
    if page <= 0:
        raise Refused(f"layer {name}: a page of {page} bytes cannot be planned")
    if isinstance(spec, LATENT) and spec.alignment is not None and page % spec.alignment != 0:
        raise Refused(f"layer {name}: page of {page} bytes is no multiple of its alignment {spec.alignment}")
