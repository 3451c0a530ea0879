"""The standard streams of a process that is spoken to over them."""

from __future__ import annotations

import os
import sys
from typing import BinaryIO


def take_streams() -> tuple[BinaryIO, BinaryIO]:
    """Standard input and output, taken away from whatever else runs in this process.

    What it prints from now on goes to standard error, and it reads nothing.
    """
    questions = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    # One stream for both, so that what is printed stays in order.
    sys.stdout = sys.stderr
    return questions, answers
