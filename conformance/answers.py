"""Answers of two implementations to one question: when they are the same, and how they differ."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from kvconform.conformance.common import Common
from kvconform.conformance.process import Fell, ProcessImplementation
from kvconform.conformance.questions import Arguments
from kvconform.properties.comparison import differences
from kvconform.reference import pages
from kvconform.reference.grouping import KVCacheGroupSpec
from kvconform.reference.interface import Implementation, Refused, Undocumented, Unsupported
from kvconform.reference.layout import allocated_bytes, placements
from kvconform.reference.planning import KVCacheConfig
from kvconform.reference.schedules import Trace
from kvconform.reference.specs import Spec, UniformType, defaults, field_names

CLOSE = 1e-9
"""How far two ratios may be apart by rounding: some are exact fractions, others doubles."""

MORE_MEMORY, LESS_MEMORY = "more memory", "less memory"
MORE_CAPACITY, LESS_CAPACITY = "more capacity", "less capacity"
NOW_REFUSED, NOW_ANSWERED = "now refused", "now answered"
NOW_FALLS, FALLS_NO_MORE = "now falls over", "no longer falls over"

MEMORY = (
    "page_size_bytes",
    "unpadded_page_size_bytes",
    "real_page_size_bytes",
    "state_content_size_bytes",
    "stored_bytes",
    "max_blocks_per_request",
    "max_memory_usage_bytes",
    "max_num_blocks_per_req",
    "max_admission_blocks_per_request",
)
"""Operations whose number is memory that something takes: a larger one costs more."""

CAPACITY = ("get_max_concurrency", "estimate_max_model_len")
"""Operations whose number is what the memory holds: a smaller one serves less."""

ANSWER, REFUSALS = "answer", "refusals"
BLOCKS, BYTES, GROUPS, DRAFTS, PLACES = "blocks", "bytes", "groups", "drafts", "places"
ASPECTS = (BLOCKS, BYTES, GROUPS, DRAFTS, PLACES)
"""What a plan is compared in: the number of blocks, the bytes of all tensors, which layers share a
table, which groups are a draft model's, and where each layer's pages lie."""


@dataclass(frozen=True)
class Refusal:
    """Stands for a refused question; one reason is as good as another."""

    reason: str

    def __str__(self) -> str:
        return f"refused: {self.reason}"


@dataclass(frozen=True)
class Fall:
    """Stands for a question that the implementation raised an exception over."""

    reason: str

    def __str__(self) -> str:
        return f"fell over: {self.reason}"


class View(dict[str, Any]):
    """One aspect of a plan, or the events of a trace, by names that say what is where."""


def answer(side: Implementation, operation: str, arguments: Arguments) -> Any:
    """The answer, or the refusal or fall that stands for it. Raises `Unsupported`."""
    (outcome,) = _answers(side, [(operation, arguments)])
    if isinstance(outcome, Unsupported):
        raise outcome
    return outcome


def ask_both(
    left: Implementation, right: Implementation, questions: Sequence[tuple[str, Arguments]]
) -> list[tuple[Any, Any]]:
    """What each side answers to each question; an `Unsupported` stands for what it cannot be asked.

    Processes are asked at the same time.
    """
    if not isinstance(left, ProcessImplementation) or not isinstance(right, ProcessImplementation):
        return list(zip(_answers(left, questions), _answers(right, questions), strict=True))
    try:
        awaited = [side.begin(_handed_over(questions)) for side in (left, right)]
        answers = [await_answers() for await_answers in awaited]
    except BaseException:
        # An answer that was not read would be taken for that to the next question.
        left.kill()
        right.kill()
        raise
    return [(_stand_in(one), _stand_in(other)) for one, other in zip(*answers, strict=True)]


def _answers(side: Implementation, questions: Sequence[tuple[str, Arguments]]) -> list[Any]:
    answers: list[Any] = []
    for operation, arguments in _handed_over(questions):
        try:
            answers.append(getattr(side, operation)(**arguments))
        except Exception as error:
            answers.append(_stand_in(error))
    return answers


def _stand_in(outcome: Any) -> Any:
    """What stands for an answer: the answer itself, or what tells how there was none."""
    if isinstance(outcome, Undocumented):
        return Refusal(f"by an exception: {outcome}")
    if isinstance(outcome, Refused):
        return Refusal(str(outcome))
    if isinstance(outcome, Exception) and not isinstance(outcome, Unsupported):
        return Fall(str(outcome) if isinstance(outcome, Fell) else f"{type(outcome).__name__}: {outcome}")
    return outcome


def _handed_over(questions: Sequence[tuple[str, Arguments]]) -> list[tuple[str, Arguments]]:
    """The questions with mappings of layers as copies: a planner may change its own."""

    def copied(value: Any) -> Any:
        if isinstance(value, dict):
            return dict(value)
        return [copied(part) for part in value] if isinstance(value, list) else value

    return [
        (operation, {name: copied(value) for name, value in arguments.items()})
        for operation, arguments in questions
    ]


def differ(common: Common, one: Any, other: Any) -> bool:
    """Whether two answers differ, in what both implementations have."""
    if isinstance(one, Refusal | Fall) or isinstance(other, Refusal | Fall):
        return type(one) is not type(other)
    if isinstance(one, Spec) and isinstance(other, Spec):
        if one.kind != other.kind:
            return True
        missing = set(field_names(one.kind)) - set(common.kinds[one.kind])
        return bool(differences(one, other, but=tuple(missing)))
    if isinstance(one, Trace) and isinstance(other, Trace):
        return _events(one) != _events(other)
    if isinstance(one, Fraction | float) or isinstance(other, Fraction | float):
        return not math.isclose(one, other, rel_tol=CLOSE)
    return bool(one != other)


def in_words(answer: Any, beside: Any) -> str:
    """An answer; of a spec, a plan or a trace only what is different in the other one."""
    if isinstance(answer, Trace) and isinstance(beside, Trace):
        return in_words(_events(answer), _events(beside))
    if isinstance(answer, View) and isinstance(beside, View):
        names = [name for name in {**answer, **beside} if answer.get(name) != beside.get(name)]
        return "; ".join(f"{name}: {answer.get(name, 'none')}" for name in names)
    if isinstance(answer, Spec):
        names = list(field_names(answer.kind))
        if isinstance(beside, Spec) and answer.kind == beside.kind:
            names = [name for name in names if getattr(answer, name) != getattr(beside, name)]
            return ", ".join(f"{name}={getattr(answer, name)}" for name in names)
        usual = defaults(answer.kind)
        told = [name for name in names if name not in usual or getattr(answer, name) != usual[name]]
        return f"{answer.kind} of {', '.join(f'{name}={getattr(answer, name)}' for name in told)}"
    if isinstance(answer, tuple) and answer and isinstance(answer[0], KVCacheConfig):
        return f"planned, {answer[0].num_blocks} blocks"
    if isinstance(answer, tuple) and answer and isinstance(answer[0], KVCacheGroupSpec):
        return f"planned, {len(answer)} groups"
    return f"{float(answer):.9g}" if isinstance(answer, Fraction | float) else str(answer)


def _events(trace: Trace) -> View:
    """What each event did; which of the free blocks are taken is up to the implementation."""
    told = View(start=f"{trace.free_blocks} blocks free")
    for index, moment in enumerate(trace.moments):
        words = f"{moment.outcome}, {moment.free_blocks} free"
        if moment.outcome == "scheduled":
            words = f"scheduled up to token {moment.computed_tokens}, {moment.hit_tokens} found, "
            words += f"{moment.reserved_blocks} blocks reserved, {moment.free_blocks} free"
        for request, tables in enumerate(moment.tables):
            shapes = " ".join(_shape(table, trace.null_block) for table in tables)
            words += f", request {request} has {shapes}" if tables else ""
        told[f"event {index}"] = words
    return told


def _shape(table: Sequence[int], null: int) -> str:
    """A table with a letter for each block: held or freed."""
    return "".join("-" if block == null else "x" for block in table) or "none"


def direction(operation: str, aspect: str, one: Any, other: Any) -> str:
    """Which way memory or capacity goes from one answer to the other; empty where neither moves."""
    falls = isinstance(one, Fall), isinstance(other, Fall)
    if any(falls):
        return NOW_FALLS if falls[1] else FALLS_NO_MORE
    if isinstance(one, Refusal) or isinstance(other, Refusal):
        return NOW_REFUSED if isinstance(other, Refusal) else NOW_ANSWERED
    if operation in CAPACITY or aspect == BLOCKS:
        return MORE_CAPACITY if _first(other, one) > _first(one, other) else LESS_CAPACITY
    if operation in MEMORY or aspect == BYTES:
        return MORE_MEMORY if _first(other, one) > _first(one, other) else LESS_MEMORY
    return ""


def _first(answer: Any, beside: Any) -> Any:
    """The number that differs: in a view of several ranks, the first one's."""
    if not isinstance(answer, View):
        return answer
    return next(value for name, value in answer.items() if value != beside.get(name))


class Viewer:
    """Looks at the plans of one implementation; its pages are its own."""

    def __init__(self, side: Implementation) -> None:
        self._side = side
        self._pages: dict[Spec, int | str] = {}

    def parts(self, operation: str, answer: Any) -> Mapping[str, Any]:
        """What is compared of an answer about a whole model, by aspect.

        A plan is told apart into its `ASPECTS`, so that a difference in one of them hides none in
        another. Neither the order of groups and layers nor the shape of tensors is in them.
        """
        if operation == "get_kv_cache_groups":
            return {GROUPS: View(groups=self._groups(answer)), DRAFTS: View(drafts=_drafts(answer))}
        if operation == "get_kv_cache_configs":
            return self._config(answer, [f"rank {rank}: " for rank in range(len(answer))])
        if isinstance(answer, KVCacheConfig):
            return self._config([answer], ("",))
        return {ANSWER: answer}

    def _config(self, configs: Sequence[KVCacheConfig], ranks: Sequence[str]) -> dict[str, View]:
        allocated = any(config.kv_cache_tensors for config in configs)
        told = ASPECTS if allocated else (BLOCKS, GROUPS, DRAFTS)
        found = {aspect: View() for aspect in told}
        for rank, config in zip(ranks, configs, strict=True):
            found[BLOCKS][f"{rank}blocks"] = config.num_blocks
            found[GROUPS][f"{rank}groups"] = self._groups(config.kv_cache_groups)
            found[DRAFTS][f"{rank}drafts"] = _drafts(config.kv_cache_groups)
            if allocated:
                found[BYTES][f"{rank}bytes of all tensors"] = allocated_bytes(config)
                for layer, place in self._places(config):
                    found[PLACES][f"{rank}{layer}"] = place
        return found

    def _groups(self, groups: Sequence[KVCacheGroupSpec]) -> str:
        """Each group's layers, kinds, tokens of a block and bytes of a page."""
        told = []
        for group in groups:
            spec = group.kv_cache_spec
            kind = spec.kind
            if isinstance(spec, UniformType):
                kind += f" of {' and '.join(sorted({layer.kind for layer in spec.layers()}))}"
            layers = ", ".join(sorted(group.layer_names)) or "no layer"
            told.append(f"{layers}: {kind}, blocks of {spec.block_size}, page {self._page(spec)}")
        return " | ".join(sorted(told))

    def _places(self, config: KVCacheConfig) -> Iterator[tuple[str, str]]:
        """For each layer its page, the bytes from one block's to the next, and what lies there too."""
        inside = {spec for group in config.kv_cache_groups for spec in group.layer_specs().values()}
        sizes = {spec: self._page(spec) for spec in inside}
        readable = {spec: size for spec, size in sizes.items() if isinstance(size, int)}
        if len(readable) < len(sizes):
            return
        try:
            places = placements(config, readable.__getitem__)
        except Refused as stray:
            yield "tensors", str(stray)
            return
        together: dict[tuple[int, int], list[str]] = {}
        for place in places:
            together.setdefault((place.allocation, place.offset), []).append(place.layer)
        for place in sorted(places, key=lambda place: place.layer):
            others = sorted({*together[place.allocation, place.offset]} - {place.layer})
            beside = f", where {', '.join(others)} lies too" if others else ""
            yield place.layer, f"{place.page} bytes every {place.stride}{beside}"

    def _page(self, spec: Spec) -> int | str:
        """The page in bytes, or how reading it is refused."""
        if spec not in self._pages:
            asked = "page_size_bytes" in self._side.operations()
            try:
                page: int | str = self._side.page_size_bytes(spec) if asked else pages.page_size_bytes(spec)
            except (Refused, Unsupported) as refusal:
                page = f"that cannot be read ({refusal})"
            self._pages[spec] = page
        return self._pages[spec]


def _drafts(groups: Sequence[KVCacheGroupSpec]) -> str:
    """The layers of the groups that are taken for a draft model's."""
    flagged = [", ".join(sorted(group.layer_names)) for group in groups if group.is_eagle_group]
    return " | ".join(sorted(flagged)) or "none"
