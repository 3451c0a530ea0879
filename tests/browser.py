"""Looking at a page in a real browser, headless: what it makes of it, and how it looks."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on the path")

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--hide-scrollbars", "--enable-logging=stderr"),
)

MARK = "seen-by-the-tests"


def look(
    page: Path, *, width: int, dark: bool = False, fragment: str = "", program: str = "return null"
) -> tuple[Any, list[str]]:
    """What a program answers that is run in the page, and what the page writes to the console.

    The page is loaded into a frame of that width, since a window cannot be as narrow as a phone.
    """
    told = f"""<script>
    addEventListener("load", async () => {{
      let seen;
      try {{ seen = await (async () => {{ {program} }})(); }} catch (error) {{ seen = String(error); }}
      parent.postMessage(JSON.stringify(seen ?? null), "*");
    }});
    </script>"""
    frame = f"""<!doctype html><link rel="icon" href="data:,">
    <script>addEventListener("message", (event) =>
      document.documentElement.setAttribute("{MARK}", encodeURIComponent(event.data)));</script>
    <iframe src="page.html{fragment}" width="{width}" height="900" style="border: 0"></iframe>"""
    with tempfile.TemporaryDirectory() as directory:
        text = page.read_text(encoding="utf-8")
        Path(directory, "page.html").write_text(text.replace("</body>", f"{told}</body>"), encoding="utf-8")
        outer = Path(directory, "frame.html")
        outer.write_text(frame, encoding="utf-8")
        patience = ("--dump-dom", "--virtual-time-budget=10000")
        ended = _run(directory, max(width, 500), 950, dark, *patience, outer.as_uri())
    found = re.search(f'{MARK}="([^"]*)"', ended.stdout)
    assert found, ended.stdout[-2000:] + ended.stderr[-2000:]
    return json.loads(unquote(found.group(1))), re.findall(r"CONSOLE[^\]]*\] (.*)", ended.stderr)


def picture(page: Path, out: Path, *, width: int, height: int = 900, dark: bool = False) -> bytes:
    """A picture of the page as PNG."""
    with tempfile.TemporaryDirectory() as directory:
        ended = _run(directory, width, height, dark, f"--screenshot={out}", page.as_uri())
    assert out.exists(), ended.stderr[-2000:]
    return out.read_bytes()


def _run(
    directory: str, width: int, height: int, dark: bool, *arguments: str
) -> subprocess.CompletedProcess[str]:
    assert CHROMIUM is not None
    return subprocess.run(
        [
            CHROMIUM,
            *FLAGS,
            f"--user-data-dir={directory}/profile",
            f"--window-size={width},{height}",
            f"--blink-settings=preferredColorScheme={0 if dark else 1}",
            *arguments,
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
