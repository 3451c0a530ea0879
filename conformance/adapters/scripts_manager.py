"""A schedule as plain vLLM Python: a manager, stand-in requests, and what each event asks of it."""

from __future__ import annotations

import copy
import math
import re
from inspect import signature
from typing import TYPE_CHECKING, Any

from kvconform.conformance.adapters.vllm_manager import (
    COORDINATOR,
    MANAGER,
    POOL,
    StandIn,
    manager_arguments,
    slots_arguments,
)
from kvconform.conformance.adapters.vllm_modules import MANAGERS

if TYPE_CHECKING:
    from kvconform.conformance.adapters.scripts import Writer

Wire = dict[str, Any]

READERS = (POOL, MANAGERS, COORDINATOR, MANAGER)
"""Modules that read a request's attributes."""

SHOW = """\
def show(event):  # Block {null} is the null block.
    held = {{request.request_id: manager.get_block_ids(request.request_id) for request in [{requests}]}}
    print(f"{{event}}: {{held}}, {{manager.block_pool.get_num_free_blocks()}} free")
"""

WATCH = """\
find_necessary = manager.coordinator.get_num_blocks_to_allocate

def watched(*args, **kwargs):
    necessary = find_necessary(*args, **kwargs)
    print(f"{necessary} blocks found necessary, {manager.block_pool.get_num_free_blocks()} free")
    return necessary

manager.coordinator.get_num_blocks_to_allocate = watched
"""

WITHHELD = (
    'print("withheld:", [block.block_id for each in manager.coordinator.single_type_managers '
    'for block in getattr(each, "sink_blocks", ())])'
)


class ScheduleWriter:
    """Adds to a script the lines of one schedule, as the release's manager followed it.

    What is asked is the adapter's: the same stand-in requests, with the same arguments.
    """

    def __init__(self, writer: Writer, config: Wire, deployment: Wire, schedule: Wire) -> None:
        modules = writer.planner.modules
        sizes = [group["kv_cache_spec"]["block_size"] for group in config["kv_cache_groups"]]
        unit = math.gcd(*sizes)
        self.writer = writer
        self.config = config
        self.schedule = schedule
        self.longest: int = deployment["max_model_len"]
        self.manager_class = modules.load(MANAGER).KVCacheManager
        self.given = manager_arguments(self.manager_class, sizes, deployment, schedule)
        self.requests = [StandIn(index, wire, unit) for index, wire in enumerate(schedule["requests"])]
        read = set(re.findall(r"\brequest\.(\w+)", "".join(map(modules.text, READERS))))
        self.read = [name for name in vars(self.requests[0]) if name in read]

    def write(self, trace: Wire) -> None:
        """Add the lines of all that was done by the trace, which says after each event what is held.

        What was found necessary is shown where it is not what was taken, withheld blocks where
        there are sinks.
        """
        writer = self.writer
        writer.imports.setdefault(MANAGER, set()).add("KVCacheManager")
        writer.imports.setdefault("types", set()).add("SimpleNamespace")
        config = writer.kv_cache_config(self.config)
        begun = {index: self._construction(request) for index, request in enumerate(self.requests)}
        asked: list[str] = []
        seen = set()
        for index, (event, moment) in enumerate(zip(self.schedule["events"], trace["moments"], strict=False)):
            lines = self._event(index, event, moment)
            asked += lines
            if lines:
                seen.add(event["request"])
        requests = sorted(seen)
        writer.lines.append(f"manager = KVCacheManager({config}, {named_arguments(self.given)})")
        writer.lines += [begun[index] for index in requests]
        names = ", ".join(f"request{index}" for index in requests)
        writer.lines += ["", *SHOW.format(null=trace["null_block"], requests=names).splitlines(), ""]
        if any(moment["reserved_blocks"] != moment["taken_blocks"] for moment in trace["moments"]):
            writer.lines += [*WATCH.splitlines(), ""]
        kinds = [group["kv_cache_spec"]["kind"] for group in self.config["kv_cache_groups"]]
        if "sink_full_attention" in kinds:
            writer.lines.append(WITHHELD)
        writer.lines += ['show("before")', *asked]

    def _construction(self, request: StandIn) -> str:
        values = ", ".join(f"{name}={_literal(name, getattr(request, name))}" for name in self.read)
        return f"{_name(request)} = SimpleNamespace({values})"

    def _event(self, index: int, event: Wire, moment: Wire) -> list[str]:
        """The lines of one event; none where it did nothing."""
        request = self.requests[event["request"]]
        label = f"event {index}, {request.request_id}"
        before = copy.deepcopy(vars(request))
        if event["action"] == "settle":
            request.settle(event["rejected"])
            changes = self._changes(request, before)
            return [f"# {label}: its oldest step is done", *changes] if changes else []
        if request.ended or (event["action"] == "schedule" and moment["outcome"] == "nothing"):
            return []
        if event["action"] == "finish":
            asked, did = [f"manager.free({_name(request)})"], "finished"
            request.end()
        else:
            asked, did = self._schedule(label, request, event, moment)
        if moment["outcome"] == "fell":
            return [
                "try:",
                *(f"    {line}" for line in asked),
                "except Exception as error:",
                f'    print(f"{label} refused: {{error!r}}")',
            ]
        return [*asked, *self._changes(request, before), f'show("{label} {did}")']

    def _schedule(self, label: str, request: StandIn, event: Wire, moment: Wire) -> tuple[list[str], str]:
        """The lines that schedule a step, and what became of it."""
        name = _name(request)
        lines, given = [], {}
        hit_tokens = moment["hit_tokens"]
        if not request.admitted:
            boundary = "shared_prefix_boundary"
            rest = f"{name}.{boundary}" if boundary in self.read else "*_"
            lines.append(f"blocks, hit_tokens, {rest} = manager.get_computed_blocks({name})")
            if not moment["hit_blocks"]:
                # It fell over that: what it would have found has one list for each group.
                return lines, ""
            if hit_tokens:
                lines.append(f'print("{label} hits", hit_tokens, "tokens:", blocks.get_block_ids())')
            given["new_computed_blocks"] = "blocks"
        step = request.next_step(event, hit_tokens, self.longest)
        named = slots_arguments(self.manager_class, request, event, hit_tokens)
        defaults = signature(self.manager_class.allocate_slots).parameters
        given |= {key: repr(value) for key, value in named.items() if value != defaults[key].default}
        arguments = ", ".join([name, str(step.tokens), *(f"{key}={value}" for key, value in given.items())])
        allocation = f"manager.allocate_slots({arguments})"
        if moment["outcome"] == "scheduled":
            request.advance(step)
            return [*lines, allocation], f"scheduled up to token {moment['computed_tokens']}"
        request.end()
        return [*lines, f"if {allocation} is None:", f"    manager.free({name})"], "given up"

    def _changes(self, request: StandIn, before: Wire) -> list[str]:
        return [
            f"{_name(request)}.{name} = {_literal(name, getattr(request, name))}"
            for name in self.read
            if getattr(request, name) != before[name]
        ]


def _name(request: StandIn) -> str:
    return str(request.request_id).replace(" ", "")


def _literal(name: str, value: Any) -> str:
    return f"[0] * {len(value)}" if name == "all_token_ids" else repr(value)


def named_arguments(values: Wire) -> str:
    """Arguments by name, as they are written in a call."""
    return ", ".join(f"{name}={value!r}" for name, value in values.items())
