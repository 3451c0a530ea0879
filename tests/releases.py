"""The vLLM releases that tests check, fetched once into the cache."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import pytest
from kvconform.conformance.releases import ReleaseError, cached, release

CHECKED = ("0.28.0", "0.33.0")
"""Run in full."""

ALSO = ("0.20.2", "0.24.0", "0.26.0", "0.31.0")
"""Run quickly: no fault of the adapter may show."""


@cache
def root_of(version: str) -> Path:
    """The unpacked release; skips the test where torch or the release is not here.

    KVCONFORM_FETCH=1 fetches what is not cached.
    """
    pytest.importorskip("torch", reason="vLLM's spec module needs torch")
    if version not in cached() and os.environ.get("KVCONFORM_FETCH") != "1":
        pytest.skip(f"vLLM {version} is not in the cache; KVCONFORM_FETCH=1 fetches it")
    try:
        return release(version)
    except ReleaseError as error:
        pytest.skip(str(error))
