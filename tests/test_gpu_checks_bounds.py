"""Half a step: the error bounds of the uniform codecs, proved over the reals.

Everything is divided by the step, so a step is 1 and the arithmetic linear. A nearest whole number
is any within half: ties may go either way.
"""

from __future__ import annotations

from typing import Any

import pytest
import z3

torch = pytest.importorskip("torch")

from kvconform.gpu_checks.codecs_per_token_head import nearest_code  # noqa: E402


def nearest(value: z3.ArithRef, name: str) -> tuple[z3.ArithRef, z3.BoolRef]:
    """A whole number nearest to the value, and the condition that it is."""
    code = z3.Int(name)
    return code, z3.And(2 * code - 1 <= 2 * value, 2 * value <= 2 * code + 1)


def clamped(value: Any, least: int, greatest: int) -> Any:
    """The value, within least..greatest."""
    return z3.If(value < least, least, z3.If(value > greatest, greatest, value))


def within_half(one: Any, other: Any) -> Any:
    """Whether two reals are at most half a step apart."""
    return z3.And(2 * (one - other) <= 1, 2 * (other - one) <= 1)


def holds(assumptions: list[Any], claim: Any) -> bool:
    """Whether the claim follows; the assumptions alone must have a model, or it would mean nothing."""
    solver = z3.Solver()
    solver.add(*assumptions)
    assert solver.check() == z3.sat
    solver.add(z3.Not(claim))
    found = solver.check()
    assert found != z3.unknown
    return bool(found == z3.unsat)


def test_int8_is_within_half_a_step() -> None:
    value = z3.Real("value")
    code, is_nearest = nearest(value, "code")
    claim = within_half(value, clamped(code, -127, 127))
    # A float32 scale falls short of the greatest magnitude / 127 by at most 2^-24 of itself.
    limit = 127 * (1 + z3.Q(1, 1 << 23))
    in_range = z3.And(-limit <= value, value <= limit)
    assert holds([is_nearest, in_range], claim)
    assert not holds([is_nearest], claim)


@pytest.mark.parametrize("greatest", [7, 15])
def test_an_asymmetric_code_is_within_half_a_step(greatest: int) -> None:
    """int4: zero point nearest to -lo, and lo..hi, 0 within, spans no more than all steps."""
    low, high, value = z3.Reals("low high value")
    zero_point, zero_is_nearest = nearest(-low, "zero_point")
    code, is_nearest = nearest(value, "code")
    claim = within_half(value, clamped(code + zero_point, 0, greatest) - zero_point)
    inside = z3.And(low <= value, value <= high)
    with_zero = z3.And(low <= 0, high >= 0)
    covers = high - low <= greatest
    assert holds([zero_is_nearest, is_nearest, inside, with_zero, covers], claim)
    assert holds([zero_is_nearest, with_zero, covers], z3.And(zero_point >= 0, zero_point <= greatest))
    assert not holds([zero_is_nearest, is_nearest, inside, with_zero], claim)
    assert not holds([zero_is_nearest, is_nearest, with_zero, covers], claim)
    # Without 0 in the range the zero point would not fit its four bits.
    assert not holds([zero_is_nearest, covers, low <= high], z3.And(zero_point >= 0, zero_point <= greatest))


@pytest.mark.parametrize("greatest", [7, 15])
def test_a_value_code_is_within_half_a_step(greatest: int) -> None:
    """turboquant values: a zero at or below the least value, and a step that covers the greatest."""
    low, high, value, zero, step = z3.Reals("low high value zero step")
    inside = z3.And(low <= value, value <= high)
    below, covers = zero <= low, greatest * step >= high - zero
    in_steps = z3.And(value - zero >= 0, value - zero <= greatest * step)
    assert holds([inside, below, covers, step > 0], in_steps)
    assert not holds([inside, covers, step > 0], in_steps)
    assert not holds([inside, below, step > 0], in_steps)
    steps = z3.Real("steps")
    code, is_nearest = nearest(steps, "code")
    claim = within_half(steps, clamped(code, 0, greatest))
    assert holds([is_nearest, steps >= 0, steps <= greatest], claim)
    assert not holds([is_nearest], claim)


def test_the_code_s_own_rounding_is_the_proved_one() -> None:
    steps = torch.linspace(-140, 140, 100_001, dtype=torch.float64)
    for least, greatest in ((-127, 127), (0, 15), (0, 7)):
        inside = (steps >= least - 0.5) & (steps <= greatest + 0.5)
        assert bool(((nearest_code(steps, least, greatest) - steps).abs()[inside] <= 0.5).all())
