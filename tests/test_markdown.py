"""Markdown: the summary of a job."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from commands import kvconform
from kvconform.conformance.report import markdown
from kvconform.conformance.report.markdown import encode_markdown
from reports import make_full_report, make_report, make_result


def test_the_summary_says_how_the_run_ended_and_counts_verdicts() -> None:
    lines = encode_markdown(make_full_report()).decode().splitlines()
    assert lines[0] == "# vllm==1.2: broken: the implementation, its adapter or a law fell over"
    assert "| verdict | safety | formula | economy (reported) | all |" in lines
    assert "| violated | 2 |  | 1 | 3 |" in lines
    assert "| inconclusive |  | 1 |  | 1 |" in lines


def test_failures_come_worst_first_with_what_reproduces_them() -> None:
    report = make_full_report()
    text = encode_markdown(report).decode()
    titles = re.findall(r"<summary><b>(\w+)</b> ([^ ]*) \((\w+)\)", text)
    assert titles == [
        ("broken", "page/aligned[hidden_state_cache]", "safety"),
        ("violated", "page/aligned[mla_attention]", "safety"),
        ("violated", "page/aligned[sliding_window_mla]", "safety"),
        ("violated", "resize/composes[mla_attention]", "economy"),
        ("inconclusive", "quant/never-larger", "formula"),
    ]
    assert f"```sh\n{report.results[3].reproduce}\n```" in text
    assert "| resize/still-covers | mamba | the kernel \\<pads\\>; https://example.org/issues/1;" in text
    assert "- known.toml:4: listed law holds: page/positive mamba: holds on 12 examples" in text


def test_nothing_of_a_message_is_taken_for_markup() -> None:
    text = encode_markdown(make_full_report()).decode()
    assert "<script" not in text
    assert '&lt;script&gt;alert("1")&lt;/script&gt; &amp; `3`' in text
    assert "\\|" in text or "| `3` |" not in text


def test_a_fence_is_longer_than_what_it_holds() -> None:
    broken = make_result("page/aligned", "mamba", "violated", script="a\n````\nb\n")
    assert "`````python\na\n````\nb\n`````" in encode_markdown(make_report(broken)).decode()


def test_a_summary_that_is_too_long_says_what_it_leaves_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(markdown, "LONGEST", 3000)
    many = [make_result("page/aligned", "mla_attention", "violated") for _ in range(20)]
    text = encode_markdown(make_report(*many)).decode()
    assert len(text.encode()) < 3200
    told = text.count("<details>")
    assert 0 < told < 20
    assert text.count("</details>") == told
    assert f"... and {20 - told} more parts" in text


def test_a_run_that_conforms_is_short() -> None:
    text = encode_markdown(make_report(make_result("page/positive", "mamba", "held"))).decode()
    assert text.startswith("# vllm==1.2: conforms\n")
    assert "##" not in text


def test_one_format_alone_on_standard_output(tmp_path: Path) -> None:
    run = ("run", "reference", "--laws", "page/positive", "--kinds", "mamba", "--examples", "2")
    ended = kvconform(*run, "--markdown", "-", "--json", "r.json", cwd=tmp_path)
    assert ended.returncode == 0
    assert ended.stdout.startswith("# reference (base): conforms\n")
    assert json.loads((tmp_path / "r.json").read_text())["exit"] == 0


def test_two_formats_do_not_go_to_one_place(tmp_path: Path) -> None:
    for path in ("-", "same", "./same"):
        ended = kvconform(
            "run", "reference", "--json", "same" if path != "-" else "-", "--junit", path, cwd=tmp_path
        )
        assert ended.returncode == 2
        assert "--json and --junit both write to" in ended.stderr
        assert list(tmp_path.iterdir()) == []
