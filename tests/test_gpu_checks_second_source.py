"""What an implementation reports beside what a codec writes: a number that differs is caught."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kvconform.gpu_checks import second_source  # noqa: E402
from kvconform.gpu_checks.codec import Codec  # noqa: E402
from kvconform.gpu_checks.codecs import CODECS  # noqa: E402
from kvconform.properties.cells import cells, name_of  # noqa: E402
from kvconform.properties.law import Violation  # noqa: E402
from kvconform.reference.interface import Refused, Unsupported  # noqa: E402
from torch import Tensor  # noqa: E402


@dataclass(frozen=True)
class Short(Codec):
    """Stores a byte less than it should."""

    def pack(self, keys: Tensor, values: Tensor | None) -> Tensor:
        return super().pack(keys, values)[:, :-1]


def test_each_cell_has_a_name_of_its_own() -> None:
    known = list(cells())
    assert len({name_of(cell) for cell in known}) == len(known) > 10_000


def lying(
    stored: Callable[[int], int] = int, page: Callable[[int], int] = int, error: Exception | None = None
) -> second_source.Reported:
    """The reference's answers, changed, or an exception in place of each."""
    honest = second_source.reference()

    def changed(answer: Callable[[Any], int], by: Callable[[int], int]) -> Callable[[Any], int]:
        def reported(spec: Any) -> int:
            if error is not None:
                raise error
            return by(answer(spec))

        return reported

    return second_source.Reported("liar", changed(honest.stored, stored), changed(honest.page, page))


def test_three_numbers_are_one() -> None:
    codec = CODECS["int4_per_token_head"]
    for check in (second_source.check_stored_bytes, second_source.check_pages):
        compared = check(codec, torch.float16, second_source.reference())
        assert compared.agreed > 1000
        assert not compared.missing


def test_an_implementation_that_reports_another_number_is_caught() -> None:
    codec = CODECS["int4_per_token_head"]
    with pytest.raises(Violation, match="liar: got 25, wanted 24 = what the codec really writes"):
        second_source.check_stored_bytes(codec, torch.float16, lying(stored=lambda size: size + 1))
    with pytest.raises(Violation, match="page of 3 heads x 64 states of int4_per_token_head for K 16, V 16"):
        second_source.check_pages(codec, torch.float16, lying(page=lambda size: size - 1))


def test_a_codec_beside_the_table_is_caught() -> None:
    fields = {name: getattr(CODECS["nvfp4"], name) for name in Codec.__dataclass_fields__}
    with pytest.raises(Violation, match="bytes written for K 16, V 16: got 17, wanted 18 = the reference's"):
        second_source.check_stored_bytes(Short(**fields), torch.float16, second_source.reference())


def test_an_answer_that_is_no_number_is_not_passed_over() -> None:
    """A refusal of what a codec stores is a difference, a lack is counted, and a fall is no verdict."""
    codec = CODECS["fp8_e4m3"]
    with pytest.raises(Violation, match=r"liar refuses \(no such head\), wanted 32 = what the codec writes"):
        second_source.check_stored_bytes(codec, torch.float16, lying(error=Refused("no such head")))
    with pytest.raises(second_source.Fell):
        second_source.check_stored_bytes(codec, torch.float16, lying(error=second_source.Fell("KeyError")))
    compared = second_source.check_stored_bytes(codec, torch.float16, lying(error=Unsupported("mode")))
    assert (compared.agreed, set(compared.missing)) == (0, {"mode"})
