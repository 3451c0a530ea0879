"""The HTML pages, in a real browser: what is in them, what they do, and how they look."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest
from browser import look, needs_chromium, picture
from kvconform.conformance.report.matrix_page import encode_matrix
from kvconform.conformance.report.page import encode_page
from kvconform.conformance.selection import find_laws
from reports import NASTY, make_full_report, make_report, make_result

BROKEN_PAGE = b"""<!doctype html><html><body><main><p style="width: 2000px">wide</p></main>
<script>nosuch();</script></body></html>"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A report, a matrix of three reports, and a page that has everything wrong."""
    folder = tmp_path_factory.mktemp("pages")
    full = make_full_report()
    more = make_report(*(make_result("page/aligned", "mla_attention", "held"),), address="reference")
    written = {
        "report": encode_page(full),
        "matrix": encode_matrix([full, full, more]),
        "broken": BROKEN_PAGE,
    }
    paths = {name: folder / f"{name}.html" for name in written}
    for name, content in written.items():
        paths[name].write_bytes(content)
    return paths


# What is written


class Outline(HTMLParser):
    """The tags of a page in order, with their attributes, and its text."""

    def __init__(self, content: bytes) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(content.decode())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


@pytest.mark.parametrize("name", ["report", "matrix"])
def test_a_page_needs_nothing_else(pages: dict[str, Path], name: str) -> None:
    outline = Outline(pages[name].read_bytes())
    for tag, attributes in outline.tags:
        for attribute in ("src", "href", "action", "data"):
            value = attributes.get(attribute)
            assert value is None or value.startswith(("#", "data:")), f"<{tag} {attribute}={value}>"
    assert not re.search(r"url\(|@import|https?://(?!example\.org)", pages[name].read_text())
    policy = next(
        one["content"] for _, one in outline.tags if one.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy is not None
    assert policy.startswith("default-src 'none';")


@pytest.mark.parametrize("name", ["report", "matrix"])
def test_a_page_can_be_read_without_seeing_it(pages: dict[str, Path], name: str) -> None:
    outline = Outline(pages[name].read_bytes())
    levels = [int(tag[1]) for tag, _ in outline.tags if re.fullmatch("h[1-6]", tag)]
    assert levels.count(1) == 1
    assert levels[0] == 1
    assert ("html", {"lang": "en"}) in outline.tags
    headers = [attributes for tag, attributes in outline.tags if tag == "th"]
    assert headers
    assert all(attributes.get("scope") in ("col", "row") for attributes in headers)
    ids = [attributes["id"] for _, attributes in outline.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    for _, attributes in outline.tags:
        for reference in (attributes.get("aria-labelledby"), (attributes.get("href") or "")):
            if reference and not reference.startswith("data:"):
                assert unquote(reference.removeprefix("#")) in ids
        if attributes.get("role") == "region":
            assert attributes.get("tabindex") == "0"
            assert attributes.get("aria-label") or attributes.get("aria-labelledby")


def contrast(one: str, other: str) -> float:
    """The contrast of two colours as WCAG 2 defines it."""

    def luminance(colour: str) -> float:
        parts = (int(colour[index : index + 2], 16) / 255 for index in (1, 3, 5))
        red, green, blue = (
            part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
        )
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_text_stands_out_from_its_ground(pages: dict[str, Path]) -> None:
    schemes = re.findall(r":root \{([^}]*)\}", pages["report"].read_text())
    assert len(schemes) == 2
    for scheme in schemes:
        colours = dict(re.findall(r"--([a-z]+): (#[0-9a-f]{6})", scheme))
        assert len(colours) >= 13
        for name, colour in colours.items():
            if name not in ("paper", "panel", "line"):
                for ground in ("paper", "panel"):
                    assert contrast(colour, colours[ground]) >= 4.5, (name, ground)


def test_the_same_report_makes_the_same_page() -> None:
    assert encode_page(make_full_report()) == encode_page(make_full_report())


# What a browser makes of it


@needs_chromium
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("name", ["report", "matrix"])
def test_a_page_fits_and_has_no_errors(pages: dict[str, Path], name: str, width: int) -> None:
    program = """
      for (const one of document.querySelectorAll("details")) one.open = true;
      return [innerWidth, document.documentElement.scrollWidth];
    """
    (inner, scroll), said = look(pages[name], width=width, program=program)
    assert inner == width
    assert scroll <= width
    assert said == []


@needs_chromium
def test_a_page_that_does_not_fit_and_has_errors_is_seen(pages: dict[str, Path]) -> None:
    scroll, said = look(pages["broken"], width=390, program="return document.documentElement.scrollWidth")
    assert scroll > 390
    assert "nosuch is not defined" in " ".join(said)


@needs_chromium
def test_violations_come_first_and_are_shown_whole(pages: dict[str, Path]) -> None:
    program = """
      const all = [...document.querySelectorAll("main article")];
      return {
        heading: document.querySelector("h1").textContent,
        laws: all.map((one) => one.querySelector("h3").textContent.replace(/\\\\s+/g, " ").trim()),
        text: all[0].innerText,
        lines: [...all[0].querySelectorAll("pre")].map((one) => one.textContent),
        verdicts: [...all[0].querySelectorAll("[data-verdict]")].map((one) => one.dataset.verdict),
        scripts: document.scripts.length,
        findings: [...document.querySelectorAll("main li")].map((one) => one.textContent),
      };
    """.replace("\\\\", "\\")
    report = make_full_report()
    seen, _ = look(pages["report"], width=1280, program=program)
    (law,) = find_laws("page/aligned")
    assert seen["heading"] == "vllm==1.2: broken: the implementation, its adapter or a law fell over"
    assert seen["laws"] == [
        "page/aligned (safety)",
        "resize/composes (economy, reported only)",
        "quant/never-larger (formula)",
        "resize/still-covers (safety)",
    ]
    assert seen["verdicts"] == ["broken", "violated", "violated"]
    for part in (law.sentence, "KeyError: 'page'", "page_size_bytes(spec=1)", "kv_cache_interface.py:123"):
        assert part in seen["text"]
    assert report.results[4].reproduce in seen["lines"]
    assert "spec: block_size=64 head_size=576\ndeployment: max_model_len=1152921504606846976" in seen["lines"]
    # What a message says is text, not markup: one script is the page's, one is the test's.
    assert seen["scripts"] == 2
    assert NASTY.split("\x1b")[0] in seen["text"]
    assert seen["findings"] == ["known.toml:4: listed law holds: page/positive mamba: holds on 12 examples"]


@needs_chromium
def test_verdicts_can_be_filtered(pages: dict[str, Path]) -> None:
    program = """
      const visible = () => [...document.querySelectorAll("main [data-verdict]")]
        .filter((one) => one.getClientRects().length).map((one) => one.dataset.verdict);
      const articles = () => [...document.querySelectorAll("main article")]
        .filter((one) => one.getClientRects().length).length;
      const before = [visible(), articles()];
      for (const box of document.querySelectorAll(".filter input"))
        if (box.value !== "violated") box.click();
      const after = [visible(), articles()];
      document.querySelector(".filter input[value=held]").click();
      return [before, after, visible()];
    """
    (before, after, again), said = look(pages["report"], width=1280, program=program)
    assert before[1] == 4
    assert set(before[0]) == {
        *("broken", "violated", "inconclusive", "expected", "unsupported", "held", "proved")
    }
    assert after == [["violated", "violated", "violated"], 2]
    assert again == ["violated", "violated", "violated", "held"]
    assert said == []


@needs_chromium
def test_the_line_that_reproduces_can_be_copied(pages: dict[str, Path]) -> None:
    program = """
      let copied = null;
      Object.defineProperty(navigator, "clipboard", {
        configurable: true, value: { writeText: async (text) => { copied = text; } } });
      const button = document.querySelector("article button.copy");
      button.click();
      await new Promise((done) => setTimeout(done, 50));
      const told = button.textContent;
      Object.defineProperty(navigator, "clipboard", {
        value: { writeText: async () => { throw new Error("not allowed"); } } });
      document.execCommand = () => false;
      button.click();
      await new Promise((done) => setTimeout(done, 50));
      return [copied, told, button.textContent, String(getSelection())];
    """
    (copied, told, later, selected), said = look(pages["report"], width=1280, program=program)
    line = make_full_report().results[4].reproduce
    assert (copied, told) == (line, "Copied")
    assert (later, selected.strip()) == ("Selected", line)
    assert said == []


@needs_chromium
def test_a_cell_of_the_matrix_leads_to_its_case(pages: dict[str, Path]) -> None:
    program = """
      const rows = [...document.querySelectorAll("#matrix tbody tr")].map((row) =>
        [...row.children].map((cell) => cell.textContent.trim()));
      const row = [...document.querySelectorAll("#matrix tbody tr")]
        .find((row) => row.children[0].textContent === "page/aligned");
      row.querySelector("a").click();
      await new Promise((done) => setTimeout(done, 100));
      const target = document.querySelector(":target");
      return [rows, target.querySelector("details").open, target.innerText, scrollY > 0];
    """
    (rows, opened, text, moved), said = look(pages["matrix"], width=1280, program=program)
    assert ["page/aligned", "safety", "broken 1 of 3", "broken 1 of 3", "held"] in rows
    assert ["merge/idempotent", "safety", "unsupported", "unsupported", "not run"] in rows
    assert opened is True
    assert text.startswith("vllm==1.2\n")
    assert "kvconform replay vllm==1.2" in text
    assert moved
    assert said == []


@needs_chromium
def test_a_link_to_a_case_opens_it(pages: dict[str, Path]) -> None:
    program = "return document.querySelector(':target').open"
    fragment = "#page/aligned.sliding_window_mla"
    assert look(pages["report"], width=1280, fragment=fragment, program=program) == (True, [])


@needs_chromium
def test_the_matrix_can_be_narrowed_to_what_differs(pages: dict[str, Path]) -> None:
    program = """
      const rows = () => [...document.querySelectorAll("#matrix tbody tr")]
        .filter((row) => row.getClientRects().length).map((row) => row.children[0].textContent);
      const before = rows().length;
      document.querySelector("#differing").click();
      return [before, rows()];
    """
    (before, after), _ = look(pages["matrix"], width=1280, program=program)
    assert before == 6
    assert after == ["page/aligned"]


@needs_chromium
@pytest.mark.parametrize("name", ["report", "matrix"])
def test_light_and_dark_differ(pages: dict[str, Path], tmp_path: Path, name: str) -> None:
    program = "const style = getComputedStyle(document.body); return [style.backgroundColor, style.color]"
    (light, _), (dark, _) = (
        look(pages[name], width=390, dark=dark, program=program) for dark in (False, True)
    )
    assert light == ["rgb(255, 255, 255)", "rgb(27, 31, 36)"]
    assert dark == ["rgb(15, 20, 25)", "rgb(230, 237, 243)"]
    day = picture(pages[name], tmp_path / "light.png", width=390)
    night = picture(pages[name], tmp_path / "dark.png", width=390, dark=True)
    assert day != night
    assert day == picture(pages[name], tmp_path / "again.png", width=390)
