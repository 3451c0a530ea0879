"""The planners of real releases: that they are asked, and that what they do is told apart."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from commands import environment
from kvconform.conformance.adapters import vllm, vllm_loading
from kvconform.conformance.adapters.vllm_outcomes import Unsupported
from releases import ALSO, CHECKED, root_of
from scheduled_scripts import SECTION, compare

RELEASES = (*ALSO, *CHECKED)

PREAMBLE = """
import json, sys
from pathlib import Path

root = Path(sys.argv[1])
sys.path.insert(0, str(root))
import kvconform.properties.laws
from kvconform.conformance.adapters.vllm_implementation import VllmImplementation
from kvconform.conformance.cases import ReplayGiven
from kvconform.conformance.recording import record
from kvconform.properties.law import CATALOGUE, Violation
from kvconform.properties.sampling import run_law, sample
from kvconform.reference.deployment import Deployment
from kvconform.reference.interface import Refused, Undocumented, Unsupported
from kvconform.reference.specs import *
from kvconform.reference.uniform import third_party

release = VllmImplementation(root, "release")
FULL = FullAttention(block_size=16, num_kv_heads=1, head_size=8, dtype="bfloat16")
SLIDING = SlidingWindow(block_size=16, num_kv_heads=1, head_size=8, dtype="bfloat16", sliding_window=32)
LATENT = MLAAttention(block_size=16, num_kv_heads=1, head_size=16, dtype="bfloat16")
NEAR = SlidingWindowMLA(block_size=16, num_kv_heads=1, head_size=16, dtype="bfloat16", sliding_window=32)
PAGE = 16 * 2 * 8 * 2
HUNDRED = Deployment(max_model_len=100, max_num_batched_tokens=16)
everything = {}
SCRIPTED = (
    "plan/promotion-total",
    "plan/check-counts-all",
    "plan/leaves-inputs",
    "plan/unify-waste",
    "plan/own-layers-only",
    "uniform/symmetric",
    "uniform/total",
    "zero/state-read-before-write",
    "plan/concurrency",
)

def what(ask, *arguments):
    try:
        return ask(*arguments)
    except (Refused, Unsupported) as error:
        return [type(error).__name__, str(error)]
"""


SECTIONS = {
    "hybrid": """
        layers = {"f.0": FULL, "s.0": SLIDING, "f.1": FULL, "s.1": SLIDING}
        ranks = [{"f.0": FULL, "s.0": SLIDING}, {"f.1": FULL, "s.1": SLIDING}]
        groups = release.get_kv_cache_groups(layers, HUNDRED)
        found["groups"] = [list(group.layer_names) for group in groups]
        configs = release.get_kv_cache_configs(ranks, HUNDRED, [40 * PAGE + 7, 30 * PAGE + 7])
        found["blocks"] = [config.num_blocks for config in configs]
        found["names"] = [
            sorted({n for tensor in config.kv_cache_tensors for n in tensor.names()}) for config in configs
        ]
        view = release.generate_scheduler_kv_cache_config(configs)
        found["kinds"] = [group.kv_cache_spec.kind for group in view.kv_cache_groups]
        found["sizes"] = release.resolve_kv_cache_block_sizes(view, HUNDRED)
        found["requests"] = release.get_max_concurrency(view, HUNDRED)
        found["bounds"] = [release.max_blocks_per_request(g.kv_cache_spec, HUNDRED) for g in groups]
        found["admitted"] = [
            release.max_admission_blocks_per_request(g.kv_cache_spec, HUNDRED) for g in groups
        ]
        found["zeroing"] = release.needs_kv_cache_zeroing(view)
        found["compiler"] = "torch._dynamo" in sys.modules
        found["longest"] = [
            release.estimate_max_model_len([layers], HUNDRED, [2 * blocks * PAGE]) for blocks in (1, 8, 80)
        ]
    """,
    "refusing": """
        plan = release.get_kv_cache_configs
        found["no room"] = what(plan, [{"f": FULL}], HUNDRED, [3 * PAGE])
        found["differ"] = what(plan, [{"f": FULL}, {"f": LATENT}], HUNDRED, [1 << 30, 1 << 30])
        odd = {"f": FULL, "m": SlidingWindow(
            block_size=16, num_kv_heads=3, head_size=9, dtype="bfloat16", sliding_window=32)}
        found["pages"] = what(lambda: len(plan([odd], HUNDRED, [1 << 30])))
        found["no layers"] = what(lambda: release.is_uniform_type([]))
        found["nobody's"] = what(plan, [{"odd one": third_party("TheirCache", AttentionSpec)(
            block_size=16, num_kv_heads=1, head_size=8, dtype="bfloat16")}], HUNDRED, [1 << 30])
    """,
    "changed": """
        from dataclasses import replace
        layers = {"f": FULL, "s": SLIDING}
        release.get_kv_cache_groups(layers, HUNDRED)
        found["with"] = [spec.kind for spec in layers.values()]
        release.get_kv_cache_groups(layers, replace(HUNDRED, hybrid_kv_cache_manager=False))
        found["without"] = [spec.kind for spec in layers.values()]
        found["window"] = layers["s"].sliding_window
    """,
    "third party": """
        own = third_party("TheirSliding", SlidingWindow)(
            block_size=16, num_kv_heads=1, head_size=8, dtype="bfloat16", sliding_window=32)
        found["registered"] = what(release.register_kv_cache_spec, "TheirSliding", "sliding_window")
        found["again"] = what(release.register_kv_cache_spec, "TheirSliding", "sliding_window")
        found["uniform"] = release.is_uniform_type([own, SLIDING])
        (group,) = release.get_kv_cache_groups({"own": own}, HUNDRED)
        found["kind"] = group.kv_cache_spec.kind
    """,
    "packed": """
        from dataclasses import replace
        from kvconform.reference.layout import allocated_bytes, placements
        layers = {"f": FULL, "s": SLIDING, "s.1": SLIDING, "draft": FULL}
        packed = replace(HUNDRED, packed_layout=True, draft_layers=("draft",))
        found["packed"] = what(lambda: [
            [place.stride for place in placements(config)]
            for config in release.get_kv_cache_configs([layers], packed, [1 << 20])
        ])
        drafted = replace(HUNDRED, draft_layers=("draft",))
        (config,) = release.get_kv_cache_configs([layers], drafted, [1 << 20])
        found["flags"] = {
            name: group.is_eagle_group for group in config.kv_cache_groups for name in group.layer_names
        }
        found["within"] = allocated_bytes(config) <= 1 << 20
    """,
    "laws": """
        also = ("bound/one-number", "bound/lookahead-counts")
        for law in CATALOGUE.values():
            if law.area in ("plan", "uniform", "zero") or law.id in also:
                for kind in law.kinds:
                    outcome = sample(law, release, kind, examples=8, seed_number=0)
                    found[f"{law.id} {kind}"] = [outcome.verdict, outcome.message]
    """,
    "scripts": """
        import contextlib, io
        found["scripts"] = []
        release.planner.modules.load_all()
        for name in SCRIPTED:
            law = CATALOGUE[name]
            kind = "sliding_window" if "sliding_window" in law.kinds else "-"
            outcome = sample(law, release, kind, examples=60, seed_number=0)
            if outcome.verdict != "violated":
                continue
            calls = []
            try:
                run_law(law, record(release, calls), ReplayGiven(release, kind, outcome.case))
            except Violation as violation:
                message = str(violation)
            asked = [(call.operation, call.arguments, call.answer) for call in calls]
            script = release.script(asked, message)
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(compile(script, "<script>", "exec"), {"__name__": "script"})
            answers = ["refused" if isinstance(c.answer, Exception) else c.answer for c in calls]
            answers = [a if isinstance(a, (bool, int, float, str)) else None for a in answers]
            found["scripts"].append([name, script, out.getvalue().splitlines(), answers])
    """,
    "schedules": SECTION,
    "known": """
        outcome = sample(CATALOGUE["zero/state-read-before-write"], release, "-", examples=60, seed_number=0)
        found["verdict"], found["message"] = outcome.verdict, outcome.message
        config = Deployment(max_model_len=100, hybrid_kv_cache_manager=False)
        found["promoted"] = what(lambda: len(release.get_kv_cache_groups({"l": LATENT, "n": NEAR}, config)))
    """,
}
"""Lines by the name of the test that reads what they put into ``found``."""


@cache
def asked(version: str) -> dict[str, Any]:
    """What every section found, in one process that holds the release."""
    lines = [PREAMBLE]
    for name, code in SECTIONS.items():
        lines += [f"found = everything[{name!r}] = {{}}", textwrap.dedent(code)]
    lines.append('print("\\n" + json.dumps(everything))')
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines), str(root_of(version))],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    everything: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return everything


@pytest.mark.release
@pytest.mark.parametrize("version", RELEASES)
def test_a_hybrid_is_planned_as_by_hand(version: str) -> None:
    found = asked(version)["hybrid"]
    assert found["groups"] == [["f.0", "f.1"], ["s.0", "s.1"]]
    # One layer of each group on a rank: a block is one page, and the poorer rank decides.
    assert found["blocks"] == [30, 30]
    assert found["names"] == [["f.0", "s.0"], ["f.1", "s.1"]]
    assert found["kinds"] == ["full_attention", "sliding_window"]
    assert found["sizes"] == [16, 16]
    # 100 tokens are 7 blocks; a window of 32 with 16 in flight is 47 tokens, 3 blocks and 1.
    assert found["bounds"] == found["admitted"] == [7, 4]
    assert found["requests"] == 30 / 11
    assert found["zeroing"] is False
    assert found["compiler"] is False, "it takes a second or two to load, and sizes nothing"
    nothing, some, all_of_it = found["longest"]
    assert nothing == 0
    assert 0 < some < 100
    assert all_of_it == 100


@pytest.mark.release
@pytest.mark.parametrize("version", RELEASES)
def test_refusing_and_falling_over_are_told_apart(version: str) -> None:
    found = asked(version)["refusing"]
    assert found["no room"][0] == "Refused"
    assert "larger than the available" in found["no room"][1]
    assert found["differ"][0] == "Undocumented"
    assert "AssertionError at vllm/v1/core/kv_cache_" in found["differ"][1]
    # Some pad such pages and others refuse them.
    assert found["pages"] == 1 or found["pages"][0] == "Refused"
    assert found["no layers"][0] == "Undocumented"
    assert "StopIteration" in found["no layers"][1]
    assert found["nobody's"][0] == "Refused"
    assert version == "0.20.2" or "odd one" in found["nobody's"][1]


@pytest.mark.release
@pytest.mark.parametrize("version", RELEASES)
def test_layers_that_the_planner_changes_are_changed(version: str) -> None:
    found = asked(version)["changed"]
    assert found["with"] == ["full_attention", "sliding_window"]
    assert found["without"] == ["full_attention", "full_attention"]
    assert found["window"] == 32


@pytest.mark.release
@pytest.mark.parametrize("version", RELEASES)
def test_a_third_partys_kind_is_uniform_once_registered(version: str) -> None:
    found = asked(version)["third party"]
    if version == "0.20.2":
        assert found["registered"][0] == "Unsupported"
    else:
        assert found["registered"] is found["again"] is None
    assert found["uniform"] is True
    assert found["kind"] == "TheirSliding"


@pytest.mark.release
@pytest.mark.parametrize("version", RELEASES)
def test_packed_layouts_and_drafts_are_asked_for(version: str) -> None:
    found = asked(version)["packed"]
    if version == "0.20.2":
        assert found["packed"] == ["Unsupported", "a packed layout"]
    else:
        # Two layers of 512 bytes in each group.
        assert found["packed"] == [[1024] * 4]
    assert found["within"]
    # Earlier releases flag the drafts of one model only.
    assert version not in ("0.31.0", "0.33.0") or found["flags"]["draft"]


@pytest.mark.release
@pytest.mark.parametrize("version", RELEASES)
def test_no_planning_law_is_broken(version: str) -> None:
    found = asked(version)["laws"]
    fallen = {name: outcome for name, outcome in found.items() if outcome[0] == "broken"}
    assert not fallen
    lacking = {name.split()[0] for name, outcome in found.items() if outcome[0] == "unsupported"}
    lacking = {name for name in lacking if name.startswith("plan/")}
    assert lacking <= {"plan/wrapping-free"}
    assert not lacking or version in ("0.20.2", "0.24.0")
    unnamed = [name for name, outcome in found.items() if outcome[0] == "unsupported" and not outcome[1]]
    assert not unnamed


@pytest.mark.release
def test_what_is_known_of_releases_is_found() -> None:
    old, new = (asked(version)["known"] for version in ("0.28.0", "0.33.0"))
    assert old["verdict"] == "violated"
    assert "uniform_type of mamba" in old["message"]
    assert new["verdict"] == "held"
    assert old["promoted"] == 1
    assert new["promoted"][0] == "Undocumented"
    assert "bounded_replay" in new["promoted"][1]


@pytest.mark.release
@pytest.mark.parametrize("version", RELEASES)
def test_a_violation_prints_as_plain_lines_that_answer_the_same(version: str) -> None:
    found = asked(version)["scripts"]
    assert len(found["scripts"]) >= 4
    for law, script, printed, answers in found["scripts"]:
        assert "kvconform" not in script
        assert len(printed) == len(answers), f"{law}\n{script}\n{printed}"
        for line, answer in zip(printed, answers, strict=True):
            if answer == "refused":
                assert line.startswith("refused: "), f"{law}\n{script}"
            elif answer is not None:
                assert line == str(answer), f"{law}\n{script}"


@pytest.mark.release
@pytest.mark.parametrize("version", RELEASES)
def test_scripts_of_schedules_ask_what_the_adapter_asked(version: str) -> None:
    found = asked(version)["schedules"]
    assert len(found["followed"]) > 30
    everything = "".join(line for _, printed, _ in found["followed"] for line in printed)
    for did in ("scheduled up to token", "given up", "finished", "hits"):
        assert did in everything
    assert found["refused"] == ""
    for script, printed, trace in found["followed"]:
        assert "kvconform" not in script
        differs = any(each["reserved_blocks"] != each["taken_blocks"] for each in trace["moments"])
        assert ("necessary" in script) is differs
        compare(script, printed, trace)


@pytest.mark.release
@pytest.mark.parametrize("version", RELEASES)
def test_scripts_of_schedules_show_what_else_may_be_wrong(version: str) -> None:
    found = asked(version)["schedules"]
    script, printed, trace = found["wrong"]
    compare(script, printed, trace)
    # 40 tokens in blocks of 16, 16 at a time; one of the 8 blocks is the null block.
    necessary = [line for line in printed if "necessary" in line]
    assert necessary == ["1 blocks found necessary, 7 free", "1 blocks found necessary, 6 free"]
    if found["sinks"] is None:
        assert version != "0.20.2"
        return
    script, printed, trace = found["sinks"]
    assert printed[0] == f"withheld: {trace['withheld_blocks']}"
    assert len(trace["withheld_blocks"]) == 2
    compare(script, printed, trace)


def test_a_setting_that_nobody_gave_is_named() -> None:
    settings = vllm.Settings("config", {"cache_config": {"block_size": 16}, "limit": None})
    assert settings.cache_config.block_size == 16
    assert settings.limit is None
    with pytest.raises(Unsupported, match=r"config\.cache_config\.colour"):
        _ = settings.cache_config.colour
    with pytest.raises(Unsupported, match=r"config\.colour"):
        getattr(settings, "colour", 3)
    settings.cache_config.colour = "blue"
    assert settings.cache_config.colour == "blue"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of a release, of which not everything can be imported."""
    folder = tmp_path / "fakellm" / "core"
    folder.mkdir(parents=True)
    (tmp_path / "fakellm" / "__init__.py").write_text("")
    (folder / "__init__.py").write_text("raise RuntimeError('not to be run')\n")
    (folder / "layout.py").write_text("import not_installed_anywhere\n\ndef width():\n    return 7\n")
    (folder / "planner.py").write_text(
        "from fakellm.core.layout import width\n"
        "from not_installed_anywhere import thing\n\n"
        "def plan():\n    return width()\n\n"
        "def other():\n    return thing.colour\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [name for name in sys.modules if name.startswith("fakellm")]:
        monkeypatch.delitem(sys.modules, name)
    return tmp_path


def test_a_sibling_is_loaded_first_and_a_stand_in_raises(package: Path) -> None:
    siblings = ("fakellm.core.layout", "fakellm.core.absent")
    planner = vllm_loading.load_leniently("fakellm.core.planner", package, siblings=siblings)
    assert planner.plan() == 7
    with pytest.raises(Unsupported, match="not_installed_anywhere"):
        planner.other()
    assert "fakellm.core.planner.thing" in vllm_loading.STOOD_IN
    with pytest.raises(Unsupported, match=r"module fakellm\.core\.absent"):
        vllm_loading.load_leniently("fakellm.core.absent", package)
    for name in [name for name in sys.modules if name.startswith("fakellm")]:
        del sys.modules[name]
