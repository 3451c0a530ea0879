"""An adapter that answers rightly, but for one operation or for ``start`` as its argument says."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import Any

ODD = "real_page_size_bytes"
COMMON = ["block_size", "num_kv_heads", "head_size", "head_size_v", "dtype", "page_size_padded"]
CAPABILITIES: dict[str, Any] = {
    "protocol": 1,
    "name": "misbehaving",
    "kinds": {"full_attention": COMMON, "sliding_window": [*COMMON, "sliding_window"]},
    "operations": ["page_size_bytes", "unpadded_page_size_bytes", ODD],
    "locations": {ODD: "misbehaving.py:1"},
}
DTYPE_BYTES = {
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "uint8": 1,
    "int8": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
}


def say(message: dict[str, Any], end: str = "\n") -> None:
    sys.stdout.write(json.dumps(message) + end)
    sys.stdout.flush()


def number(value: Any) -> int:
    return int(value)


def result(operation: str, spec: dict[str, Any]) -> int:
    key = number(spec["head_size"])
    value = key if spec["head_size_v"] is None else number(spec["head_size_v"])
    heads = number(spec["num_kv_heads"]) * (key + value) * DTYPE_BYTES[spec["dtype"]]
    padded = spec["page_size_padded"]
    unpadded = number(spec["block_size"]) * heads
    return unpadded if padded is None or operation != "page_size_bytes" else number(padded)


def wire(value: int) -> int | str:
    return value if abs(value) < 1 << 53 else str(value)


def answer(ask: dict[str, Any], mode: str) -> None:
    right = {"id": ask["id"], "result": wire(result(ask["operation"], ask["arguments"]["spec"]))}
    if ask["operation"] != ODD:
        say(right)
    elif mode == "once":
        # Never again: it remembers in a file.
        if not os.path.exists(sys.argv[2]):
            open(sys.argv[2], "w").close()
            os._exit(3)
        say(right)
    elif mode in CHANGED:
        say(CHANGED[mode](right))
    else:
        MISDEEDS[mode](right)


def hang(_: object) -> None:
    while True:
        time.sleep(60)


def die(_: object) -> None:
    print("last words", file=sys.stderr, flush=True)
    os._exit(3)


def stop_in_half(right: dict[str, Any]) -> None:
    say({"id": right["id"]}, end="")
    os._exit(0)


def close_output(_: object) -> None:
    os.close(1)
    hang(_)


def flood(right: dict[str, Any]) -> None:
    for _ in range(200):
        os.write(2, b"flood " * 10_000)
    say(right)


def flood_for_ever(_: object) -> None:
    while True:
        os.write(2, b"flood " * 10_000)


def never_end_a_line(_: object) -> None:
    while True:
        sys.stdout.write("x" * (1 << 20))


def say_twice(right: dict[str, Any]) -> None:
    say(right)
    say(right)


MISDEEDS: dict[str, Any] = {
    "dies": die,
    "killed": lambda _: os.kill(os.getpid(), signal.SIGSEGV),
    "hangs": hang,
    "stops_in_half": stop_in_half,
    "closes_output": close_output,
    "floods": flood,
    "floods_for_ever": flood_for_ever,
    "never_ends_a_line": never_end_a_line,
    "says_twice": say_twice,
    "rubbish": lambda _: print("rubbish", flush=True),
    "bytes": lambda _: os.write(1, b"\xff\xfe\n"),
}

CHANGED: dict[str, Any] = {
    "out_of_order": lambda right: {**right, "id": right["id"] + 1},
    "no_id": lambda right: {"result": right["result"]},
    "no_outcome": lambda right: {"id": right["id"]},
    "two_outcomes": lambda right: {**right, "refused": "no"},
    "more": lambda right: {**right, "extra": 1},
    "list": lambda right: [right],
    "float": lambda right: {**right, "result": float(right["result"])},
    "beyond": lambda right: {**right, "result": (1 << 53) + 1},
    "null": lambda right: {**right, "result": None},
    "error": lambda right: {"id": right["id"], "error": "ZeroDivisionError: by zero"},
    "refuses": lambda right: {"id": right["id"], "refused": "not today"},
    "lacks": lambda right: {"id": right["id"], "unsupported": "mode NONE"},
}

STARTS: dict[str, Any] = {
    "start_version": {**CAPABILITIES, "protocol": 2},
    "start_error": {"error": "no licence"},
    "start_kind": {**CAPABILITIES, "kinds": {"full_atention": COMMON}},
    "start_operation": {**CAPABILITIES, "operations": ["page_size_byte"]},
    "start_field": {**CAPABILITIES, "kinds": {"full_attention": [*COMMON, "width"]}},
    "start_lacking": {**CAPABILITIES, "kinds": {"full_attention": ["block_size"]}},
    "start_more": {**CAPABILITIES, "more": 1},
}


def start(mode: str) -> None:
    if mode == "start_hangs":
        hang(None)
    if mode == "start_dies":
        die(None)
    say(STARTS.get(mode, CAPABILITIES))


def main() -> None:
    mode = sys.argv[1]
    for line in sys.stdin:
        command = json.loads(line)
        if command["command"] == "stop":
            if mode == "stays":
                hang(None)
            if mode == "saves":
                open(sys.argv[2], "w").close()
            return
        if command["command"] == "start":
            start(mode)
        elif command["command"] == "batch":
            asks = command["asks"]
            for ask in reversed(asks) if mode == "batch_reversed" else asks:
                answer(ask, mode)
        else:
            answer(command, mode)


if __name__ == "__main__":
    MISDEEDS |= dict.fromkeys(("batch_reversed", "stays", "saves", "right"), say)
    main()
