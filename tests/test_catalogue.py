"""The set of laws is closed: what is planned is written, and nothing else is."""

from __future__ import annotations

import kvconform.properties.laws  # noqa: F401
import pytest
from kvconform.properties.law import CATALOGUE, NO_KIND, SEVERITIES, Law, law
from kvconform.properties.laws.device import DEVICE_LAWS, DeviceLaw
from kvconform.reference.interface import OPERATIONS
from kvconform.reference.specs import KINDS, field_names

PLANNED = """
quant: modes-distinct families-disjoint names-total quantised-means-quantised formats-injective
 content-holds-payload content-formula never-larger scale-share mla-single-latent
page: padded-covers-unpadded padding-is-exact unpadded-formula content-formula format-not-kind
 state-shapes-paired aligned whole-states additive monotone real-is-unpadded v-head-defaults
 state-is-sum-of-parts layers-add-up marker-is-free positive exact-at-scale
resize: same-is-identity like-fresh still-covers composes padding-share keeps-the-rest reaches-inside
bound: window-suffices window-is-tight window-within-length chunk-suffices chunk-is-tight rswa-suffices
 full-is-exact retained-counts in-flight-counts lookahead-counts not-above-full one-number monotone
 memory-is-blocks-times-page table-covers dcp-agrees encoder-length state-ignores-length exact-at-scale
 formula
merge: idempotent commutative associative keeps-every-field keeps-page covers-bound refuses-conflicts
 refuses-without-asserts non-causal-spreads leaves-inputs empty-refused
uniform: reflexive symmetric same-tokens same-blocks-kept total unregistered-refused registered-base
plan: every-layer-once total own-layers-only leaves-inputs wrapping-free blocks-aligned blocks-apart
 promotion-keeps-storage promotion-total unify-waste check-counts-all within-budget maximal
 backs-every-block disjoint shares-across-groups-only one-stride pages-unified order-free filler-bounded
 ranks-agree monotone override-checked startup-implies-admission cheaper-is-not-worse concurrency
 longest-fits no-layers lengths-match
zero: state-read-before-write mixed-precision only-when-needed every-view-agrees new-blocks-reported
 exact-span
hold: constructs total within-bound conserves keeps-what-is-read returns-all reserves-what-it-takes
 hits-are-pinned withholds-reserved
device: allocates-what-was-computed views-cover guards-survive roundtrip-bytes roundtrip-error
 same-as-host far-offsets zero-exact
"""


def ids(table: str) -> set[str]:
    """The law ids of a table of areas and names."""
    found: set[str] = set()
    area = ""
    for word in table.split():
        if word.endswith(":"):
            area = word
        else:
            found.add(area.replace(":", "/") + word)
    return found


def test_what_is_planned_is_written_and_nothing_else() -> None:
    assert not set(CATALOGUE) & set(DEVICE_LAWS)
    assert set(CATALOGUE) | set(DEVICE_LAWS) == ids(PLANNED)


@pytest.mark.parametrize("entry", DEVICE_LAWS.values(), ids=list(DEVICE_LAWS))
def test_a_law_about_real_memory_is_well_formed(entry: DeviceLaw) -> None:
    assert entry.severity == ("agreement" if entry.id == "device/same-as-host" else "safety")
    assert entry.area in ("device", "zero")
    assert entry.sentence.endswith(".")
    assert entry.sentence != entry.explanation, "it says why, too"
    assert all("#" in report for report in entry.reports)


@pytest.mark.parametrize("entry", CATALOGUE.values(), ids=list(CATALOGUE))
def test_a_law_is_well_formed(entry: Law) -> None:
    assert entry.severity in SEVERITIES
    assert entry.sentence.endswith("."), "the first paragraph is the sentence that is the law"
    assert entry.kinds, "a law is about at least one kind, or about none by name"
    assert set(entry.kinds) <= {*KINDS, NO_KIND}
    for need in entry.needs:
        if need.startswith("."):
            assert any(need[1:] in field_names(kind) for kind in entry.kinds)
        else:
            assert need in OPERATIONS
    assert all("#" in report for report in entry.reports)


def test_an_id_is_declared_once() -> None:
    with pytest.raises(ValueError, match="declared twice"):
        law("page/positive", severity="safety", needs=())
    with pytest.raises(ValueError, match="unknown severity"):
        law("page/new", severity="terrible", needs=())


def test_no_law_names_a_release_or_an_implementation() -> None:
    import inspect

    for entry in CATALOGUE.values():
        code = inspect.getsource(entry.check)
        body = code.partition('"""')[2].partition('"""')[2]
        assert "vllm" not in body.lower(), f"{entry.id} knows an implementation"
        assert ".version" not in body, f"{entry.id} knows a version"
        assert ".name ==" not in body, f"{entry.id} knows a name"
