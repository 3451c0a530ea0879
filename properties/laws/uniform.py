"""Which layers may share one block table (FACTS section 8)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvconform.properties import drawn, drawn_changes
from kvconform.properties.given import Given
from kvconform.properties.law import ensure, ensure_equal, law
from kvconform.reference.deployment import Deployment
from kvconform.reference.interface import Implementation, Refused, Unsupported
from kvconform.reference.residency import freed_blocks, held_blocks
from kvconform.reference.specs import KINDS, AttentionSpec, Spec, field_names
from kvconform.reference.uniform import BASES, third_party

SHARING = tuple(kind for kind in BASES if kind not in ("cross_attention", "encoder_only_attention"))
"""Kinds whose layers hold blocks for the tokens of a request."""

NEEDS = ("is_uniform_type",)
NONE = ("none",)

CHANGED = (
    "num_kv_heads",
    "block_size",
    "sliding_window",
    "extra_retained_tokens",
    "attention_chunk_size",
    "rswa_window",
    "num_speculative_blocks",
)
"""Fields in which layers of one kind are drawn to differ: one of storage, and those that decide blocks.

The mamba cache mode is not among them: a deployment fixes it for all layers.
"""


def neighbour(given: Given, name: str, spec: Spec) -> Spec:
    """A layer that stands beside another one: of its kind with a field changed, or of another kind.

    The other kind has the same values in the fields that both have.
    """
    kind = spec.kind
    if given.flag(f"{name}.other_kind"):
        has = given.implementation.kinds()
        kind = given.choice(f"{name}.kind", [other for other in SHARING if other in has])
    if kind == spec.kind:
        changeable = drawn_changes.changeable(given, spec)
        return drawn_changes.changed(given, name, spec, [field for field in CHANGED if field in changeable])
    if kind == "mamba" or spec.kind == "mamba":
        other: Spec = drawn.spec(given, name, kind, padding=NONE, block_size=spec.block_size)
        return other
    shared: dict[str, Any] = {
        field: getattr(spec, field)
        for field in field_names(kind)
        if hasattr(spec, field) and field not in ("head_size_v", "page_size_padded")
    }
    missing = {field: value for field, value in drawn.needed(kind).items() if shared.get(field) is None}
    for field in missing:
        shared[field] = given.integer(f"{name}.{field}", at_least=1, at_most=1 << 32, typical=drawn.WINDOWS)
    made: Spec = KINDS[kind](**shared)
    return made


def described(specs: Sequence[Spec]) -> str:
    """The kinds of some specs, for a message."""
    return ", ".join(spec.kind for spec in specs)


@law("uniform/reflexive", severity="agreement", kinds=SHARING, needs=NEEDS, proved=True)
def reflexive(implementation: Implementation, given: Given) -> None:
    """A spec is uniform with copies of itself.

    Layers that are equal in everything can share whatever one of them can have.
    """
    spec = drawn.spec(given, padding=NONE)
    copies = [spec] * given.choice("copies", (1, 2, 3))
    ensure(
        implementation.is_uniform_type(copies),
        f"is_uniform_type: got False for {len(copies)} equal {spec.kind} layers, wanted True",
    )


@law("uniform/symmetric", severity="agreement", kinds=SHARING, needs=NEEDS, proved=True)
def symmetric(implementation: Implementation, given: Given) -> None:
    """The answer does not depend on which layer is asked, nor on their order.

    A planner that asks only the first layer groups a model differently when its layers are listed
    in another order.
    """
    first = drawn.spec(given, padding=NONE)
    specs = [first, neighbour(given, "second", first)]
    if given.flag("third_layer"):
        specs.append(neighbour(given, "third", first))
    answer = implementation.is_uniform_type(specs)
    for turn in range(1, len(specs)):
        turned = specs[turn:] + specs[:turn]
        got = implementation.is_uniform_type(turned)
        ensure_equal(got, answer, f"is_uniform_type({described(turned)})", f"that for {described(specs)}")


@law(
    "uniform/same-tokens",
    severity="safety",
    kinds=SHARING,
    needs=(*NEEDS, "max_blocks_per_request"),
    proved=True,
)
def same_tokens(implementation: Implementation, given: Given) -> None:
    """Layers called uniform need the same number of blocks for every request.

    One table is sized for one of them; a layer that needs more runs out of it.
    """
    first = drawn.spec(given, padding=NONE)
    second = neighbour(given, "second", first)
    deployment = drawn.deployment(given)
    given.assume(implementation.is_uniform_type([first, second]))
    try:
        needed = implementation.max_blocks_per_request(first, deployment)
    except Refused:
        given.reject()
    ensure_equal(
        implementation.max_blocks_per_request(second, deployment),
        needed,
        f"blocks per request of the {second.kind} layer",
        f"blocks of the {first.kind} layer it is called uniform with",
    )


@law("uniform/same-blocks-kept", severity="safety", kinds=SHARING, needs=NEEDS, proved=True)
def same_blocks_kept(implementation: Implementation, given: Given) -> None:
    """Layers called uniform, or sharing a table for any other reason, keep and free the same blocks.

    At every step of every request: windows, retained tokens, chunks and R-SWA windows all agree.
    The table frees for all layers what one of them has done with, and the others still read it.
    """
    first = drawn.spec(given, padding=NONE)
    second = neighbour(given, "second", first)
    length = given.tokens("max_model_len", at_least=1)
    settled = length - given.tokens("left", at_most=length)
    prompt = given.tokens("prompt", at_most=settled)
    deployment = Deployment(max_model_len=length)
    if implementation.is_uniform_type([first, second]):
        shared, why = [first, second], "called uniform"
    else:
        shared, why = planned_together(implementation, first, second, deployment), "planned as one group"
    given.assume(len(shared) == 2)
    one, other = (kept_blocks(spec, settled, length, prompt) for spec in shared)
    ensure(
        one == other,
        f"{why}: with {settled} tokens settled a {shared[0].kind} layer has (freed, holds) {one} blocks, "
        f"a {shared[1].kind} layer {other}",
    )


def planned_together(
    implementation: Implementation, first: Spec, second: Spec, deployment: Deployment
) -> list[Spec]:
    """The specs of two layers as planned, when the planner puts them into one group; else none."""
    if "get_kv_cache_groups" not in implementation.operations():
        return []
    try:
        groups = implementation.get_kv_cache_groups({"first": first, "second": second}, deployment)
    except Refused:
        return []
    return list(groups[0].layer_specs().values()) if len(groups) == 1 else []


def kept_blocks(spec: Spec, settled: int, length: int, prompt: int) -> tuple[int, int]:
    """Blocks that a layer has freed and blocks that it holds, by the model of FACTS section 6."""
    freed = freed_blocks(spec, settled, prompt) if isinstance(spec, AttentionSpec) else 0
    return freed, held_blocks(spec, settled, 1, length, prompt=prompt)


@law("uniform/total", severity="agreement", needs=NEEDS)
def total(implementation: Implementation, given: Given) -> None:
    """The test answers on any set of specs, the empty one included, and never raises.

    A planner asks it to choose a path; an exception there is no answer to any model.
    """
    kinds = [kind for kind in SHARING if kind in implementation.kinds()]
    chosen = [given.choice(f"{index}.kind", kinds) for index in range(given.choice("layers", (0, 1, 2, 3)))]
    specs = [drawn.spec(given, str(index), kind, padding=NONE) for index, kind in enumerate(chosen)]
    asked = described(specs) or "no layers"
    try:
        answer: object = implementation.is_uniform_type(specs)
    except Unsupported:
        raise
    except Refused as refusal:
        answer = str(refusal)
    except Exception as error:
        answer = f"{type(error).__name__}: {error}"
    ensure(isinstance(answer, bool), f"is_uniform_type({asked}): got {answer}, wanted True or False")


def unregistered(kind: str, given: Given) -> Spec:
    """An attention spec of a kind that nobody registered and that derives from no registered one."""
    fields: dict[str, Any] = {"num_kv_heads": 1, "head_size": 64, "dtype": "bfloat16"}
    return third_party(kind, AttentionSpec)(block_size=given.choice("block_size", (16, 32)), **fields)


@law("uniform/unregistered-refused", severity="hygiene", needs=("get_kv_cache_configs",))
def unregistered_refused(implementation: Implementation, given: Given) -> None:
    """A layer of a kind that nobody registered is refused by name.

    Nothing is known of which blocks such a layer keeps; the refusal must say which layer it was.
    """
    kind = given.choice("kind", ("NobodysAttention", "StrangeCache"))
    layers: dict[str, Spec] = {}
    if given.flag("beside_full"):
        layers["layers.0"] = drawn.spec(given, "full", "full_attention", padding=NONE, packed=False)
    layers["layers.strange"] = unregistered(kind, given)
    deployment = Deployment(max_model_len=given.tokens("max_model_len", at_least=1))
    try:
        implementation.get_kv_cache_configs([layers], deployment, [1 << 80])
    except Refused as refusal:
        named = kind in str(refusal) or "layers.strange" in str(refusal)
        ensure(named, f"the refusal names neither layer nor kind: {refusal}")
        return
    ensure(False, f"planned a layer of kind {kind}, which nobody registered; wanted it refused by name")


BASE_KINDS = tuple(kind for kind, base in BASES.items() if kind == base and kind in SHARING)


@law(
    "uniform/registered-base",
    severity="agreement",
    kinds=BASE_KINDS,
    needs=(*NEEDS, "register_kv_cache_spec"),
)
def registered_base(implementation: Implementation, given: Given) -> None:
    """A registered kind is uniform with its base.

    That is what a third party registers it for: its layers stand beside ordinary ones.
    """
    spec = drawn.spec(given, padding=NONE)
    kind = f"ThirdParty_{given.kind}"
    implementation.register_kv_cache_spec(kind, given.kind)
    fields = {field: getattr(spec, field) for field in field_names(given.kind)}
    own = third_party(kind, KINDS[given.kind])(**fields)
    pair = [own, spec] if given.flag("own_first") else [spec, own]
    ensure(
        implementation.is_uniform_type(pair),
        f"is_uniform_type({described(pair)}): got False, wanted True for a kind registered with its base",
    )
