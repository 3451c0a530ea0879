"""What the tests of schedules' scripts look for: wrong lines do not pass."""

from __future__ import annotations

from typing import Any

import pytest
from scheduled_scripts import compare, shows

PRINTED = [
    "before: {'request 1': ([], [])}, 7 free",
    "event 0, request 1 hits 2 tokens: ([1], [2])",
    "event 0, request 1 scheduled up to token 4: {'request 1': ([1, 3], [0, 4])}, 3 free",
    "event 2, request 1 refused: KeyError('request 1')",
]

TRACE: dict[str, Any] = {
    "free_blocks": 7,
    "moments": [
        {
            "outcome": "scheduled",
            "free_blocks": 3,
            "tables": [[], [[1, 3], [0, 4]]],
            "hit_tokens": 2,
            "hit_blocks": [[1], [2]],
        },
        {"outcome": "nothing", "free_blocks": 3, "tables": [[], [[1, 3], [0, 4]]], "hit_tokens": 0},
        {"outcome": "fell", "free_blocks": 3, "tables": [], "reason": "KeyError at a line"},
    ],
}


def test_lines_show_their_trace() -> None:
    compare("", PRINTED, TRACE)


@pytest.mark.parametrize(
    ("line", "right", "wrong"),
    [
        (0, "7 free", "6 free"),
        (1, "2 tokens", "4 tokens"),
        (1, "[2]", "[3]"),
        (2, "[0, 4]", "[4, 0]"),
        (2, "3 free", "4 free"),
        (2, "request 1'", "request 0'"),
        (2, "event 0", "event 1"),
        (3, "KeyError", "TypeError"),
        (3, "event 2", "event 1"),
    ],
)
def test_a_line_that_differs_is_noticed(line: int, right: str, wrong: str) -> None:
    printed = list(PRINTED)
    assert right in printed[line]
    printed[line] = printed[line].replace(right, wrong)
    with pytest.raises((AssertionError, KeyError)):
        compare("", printed, TRACE)


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("event 0, request 1 scheduled up to token 4: holds 1 blocks of mamba, wanted at most 0", True),
        ("event 0, request 1 scheduled up to token 4: holds 2 blocks of mamba, wanted at most 1", True),
        ("event 0, request 1 scheduled up to token 4: holds 3 blocks of mamba, wanted at most 1", False),
        ("event 2, request 1 to finish: the manager fell over it: KeyError at a line", True),
        ("event 2, request 1 to finish: the manager fell over it: TypeError at a line", False),
    ],
)
def test_a_message_is_shown_by_its_event(message: str, shown: bool) -> None:
    assert shows(message, PRINTED) is shown
