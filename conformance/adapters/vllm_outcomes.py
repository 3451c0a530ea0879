"""How a vLLM release answers other than by a result, told alike by every file of its adapter."""

from __future__ import annotations

import traceback
from pathlib import Path


class AdapterError(Exception):
    """vLLM cannot be asked at all; one line that says why."""


class Refused(Exception):
    """The release declined the input."""


class Undocumented(Refused):
    """The release fell over the input instead of refusing it."""


class Unsupported(Exception):
    """The release has no such thing; names what is missing."""


def reason(error: BaseException, root: Path) -> str:
    """What was raised, where, and its message or the line that raised it."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    path = Path(frame.filename)
    place = f"{path.relative_to(root) if path.is_relative_to(root) else path.name}:{frame.lineno}"
    text = str(error).strip() or (frame.line or "").strip()
    return f"{type(error).__name__} at {place}: {text}"
