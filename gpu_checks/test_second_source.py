"""quant/content-formula and page/content-formula: the codecs beside an implementation's numbers."""

from __future__ import annotations

import pytest
from kvconform.gpu_checks import second_source
from kvconform.gpu_checks.codec import Codec
from kvconform.gpu_checks.codecs import CODECS
from kvconform.gpu_checks.plugin import Tally
from kvconform.gpu_checks.second_source import Compared, Reported

each_codec = pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)


def settle(compared: Compared, reported: Reported, tally: Tally) -> None:
    """Count what was compared; skips where nothing was, with what is missing."""
    tally.count(f"cells and pages like those of {reported.implementation}", compared.agreed)
    if compared.beyond:
        what = f"cells and pages that {reported.implementation} stores and no codec does: not compared"
        tally.counts[what] += compared.beyond
    if compared.agreed == 0:
        ((lack, _),) = compared.missing.most_common(1)
        pytest.skip(lack)


@pytest.mark.law("quant/content-formula")
@each_codec
def test_stored_bytes_are_what_is_reported(codec: Codec, reported: Reported, tally: Tally) -> None:
    settle(second_source.check_stored_bytes(codec, codec.dtypes[-1], reported), reported, tally)


@pytest.mark.law("page/content-formula")
@each_codec
def test_pages_are_made_of_what_is_stored(codec: Codec, reported: Reported, tally: Tally) -> None:
    settle(second_source.check_pages(codec, codec.dtypes[-1], reported), reported, tally)
