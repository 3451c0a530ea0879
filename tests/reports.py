"""Reports made up for the tests of how they are shown."""

from __future__ import annotations

from typing import Any

from kvconform.conformance.report.document import (
    Asked,
    Finding,
    Known,
    Report,
    Result,
    Subject,
    exit_code,
)

GATING = ("safety", "agreement", "formula")

NASTY = 'got <script>alert("1")</script> & `3` | "4" \\ ]]> \x1b[31m \x00 ](x) *b*, wanted a multiple'
"""A message that means something in every format that it is written in."""


def make_result(law: str, kind: str, verdict: str, severity: str = "safety", **more: Any) -> Result:
    """A result; what is shown whole comes with a case, a question and a line."""
    if verdict in ("violated", "broken", "expected"):
        more = {
            "message": "page: got 1, wanted a multiple of 512",
            "case": {"spec.block_size": 64, "spec.head_size": 576, "deployment.max_model_len": 1 << 60},
            "asked": (Asked("page_size_bytes", "vllm/v1/kv_cache_interface.py:123", "1", "spec=1"),),
            "reproduce": f'kvconform replay vllm==1.2 \'{{"law":"{law}","given":"{"x" * 200}"}}\'',
            "script": "import vllm\n\nprint('" + "y" * 150 + "')\n",
            **more,
        }
    return Result(law=law, kind=kind, severity=severity, verdict=verdict, engines=("sample",), **more)


RESULTS = (
    make_result("page/positive", "mla_attention", "held", examples=12),
    make_result("page/positive", "mamba", "proved", examples=12),
    make_result("page/aligned", "mla_attention", "violated", message=NASTY),
    make_result("page/aligned", "sliding_window_mla", "violated"),
    make_result("page/aligned", "hidden_state_cache", "broken", message="KeyError: 'page'"),
    make_result("merge/idempotent", "mamba", "unsupported", message="operation merge"),
    make_result("resize/composes", "mla_attention", "violated", "economy"),
    make_result(
        "resize/still-covers",
        "mamba",
        "expected",
        known=Known("https://example.org/issues/1", "@owner", "2027-06-30", "the kernel <pads>"),
    ),
    make_result("quant/never-larger", "-", "inconclusive", "formula", message="no input met the assumptions"),
)


def make_report(*results: Result, address: str = "vllm==1.2", complete: bool = True, **more: Any) -> Report:
    """A report of these results, of one more pair if it is not complete."""
    findings = more.get("findings", ())
    return Report(
        kvconform="0.1",
        implementation=Subject(address, "vllm", "1.2"),
        seed=7,
        profile="quick",
        examples=12,
        fail_on=GATING,
        selected=len(results) + (not complete),
        results=results,
        complete=complete,
        exit=exit_code(results, fail_on=GATING, complete=complete, findings=findings),
        **more,
    )


def make_full_report() -> Report:
    """A report with every verdict, a finding and something on standard error."""
    finding = Finding("holds", "page/positive", "mamba", "holds on 12 examples", "known.toml:4")
    return make_report(
        *RESULTS,
        findings=(finding,),
        expectations="known.toml",
        stderr={"page/aligned hidden_state_cache": "Traceback <here>\x1b[0m"},
    )
