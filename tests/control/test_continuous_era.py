"""The activation of era/continuous.py against the paper's equations; its listing: ../test_copied.py."""

import itertools
import math

import hypothesis
import mpmath
import pytest
import torch
from control_helpers import ERA, HIGH, LOW, C
from hypothesis import given, settings
from hypothesis import strategies as st

RANGES = ((-8.0, 0.0), (-10.0, 2.0), (-5.0, -0.7), (-20.0, 2.0))
ROUNDING = torch.finfo(torch.float32).eps / 2


def feasible(dim: int, fraction: float, low: float = LOW, high: float = HIGH) -> float:
    return dim * (low + C + fraction * (high - low))


def equation(pre_std, target: float, low: float, high: float) -> list[float]:
    """Eq. continuous_era for one state, in 50 digits."""
    with mpmath.workdps(50):
        weights = [mpmath.exp(mpmath.mpf(x)) for x in pre_std]
        c = mpmath.log(mpmath.sqrt(2 * mpmath.pi * mpmath.e))
        k = mpmath.mpf(target) - len(weights) * c - len(weights) * mpmath.mpf(high)
        return [float(max(high + k * weight / sum(weights), mpmath.mpf(low))) for weight in weights]


def batch_level(pre_std: torch.Tensor, target, low: float = LOW, high: float = HIGH) -> torch.Tensor:
    """The activation with the batch's own mean, as in training."""
    return ERA.batch_level_log_std(pre_std, ERA.log_mean_exp(pre_std), target, low, high)


def states(dim: int) -> torch.Tensor:
    """Ordinary, tied, one-hot, shifted and denormal, (8, D), fp64."""
    pre_std = torch.randn(8, dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    pre_std[1] *= 30
    pre_std[2] = 0.0
    pre_std[3, : dim // 2] = 5.0
    pre_std[4, 0], pre_std[4, 1:] = 1e4, -1e4
    pre_std[5] += 1e4
    pre_std[6] *= 1e-40
    pre_std[7, :2] = 1e4
    return pre_std


# Values


@pytest.mark.parametrize("low, high", RANGES)
def test_values_are_the_equations(low, high):
    for dim, fraction in itertools.product((2, 3, 10, 61), (1e-6, 0.3, 0.77, 1 - 1e-6)):
        target = feasible(dim, fraction, low, high)
        # The states' own rounding to fp32 is not the activation's.
        for pre_std, rtol, atol in ((states(dim), 1e-12, 1e-12), (states(dim).float(), 3e-6, 1e-5)):
            expected = torch.tensor([equation(row.tolist(), target, low, high) for row in pre_std], dtype=torch.float64)
            found = ERA.era_log_std(pre_std, target, low, high).double()
            torch.testing.assert_close(found, expected, rtol=rtol, atol=atol)


def test_batch_level_is_the_equation():
    for dim, rows, fraction in itertools.product((1, 2, 61), (1, 16), (0.3, 0.77)):
        target = feasible(dim, fraction)
        pre_std = torch.randn(rows, dim, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
        log_mean = ERA.log_mean_exp(pre_std)
        expected = math.log(pre_std.exp().mean())
        assert log_mean.shape == () and float(log_mean) == pytest.approx(expected, rel=1e-12, abs=1e-14)
        running_average = torch.tensor(math.log(3.0), dtype=torch.float64)
        for mean in (log_mean, running_average):
            expected = (HIGH + (target / dim - C - HIGH) * pre_std.exp() / mean.exp()).clamp(min=LOW)
            found = ERA.batch_level_log_std(pre_std, mean, target, LOW, HIGH)
            torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_gaussian_entropy():
    log_std = torch.randn(3, 4, 7, dtype=torch.float64)
    normal = torch.distributions.Normal(torch.zeros_like(log_std), log_std.exp())
    torch.testing.assert_close(ERA.gaussian_entropy(log_std), normal.entropy().sum(-1))
    for dtype in (torch.float16, torch.bfloat16):  # bf16 has steps of 1/8 at 30 nats
        half = log_std.to(dtype)
        torch.testing.assert_close(ERA.gaussian_entropy(half), ERA.gaussian_entropy(half.float()))
    constant = float(mpmath.log(mpmath.sqrt(2 * mpmath.pi * mpmath.e)))
    assert pytest.approx(constant, rel=1e-15) == ERA.ENTROPY_CONSTANT


# Shapes and types


def test_shapes_and_memory_layouts():
    pre_std = torch.randn(2, 3, 4, 10)
    expected = ERA.era_log_std(pre_std, -5.0, LOW, HIGH)
    assert torch.allclose(ERA.era_log_std(pre_std[1, 2, 3], -5.0, LOW, HIGH), expected[1, 2, 3], atol=1e-6)
    strided = pre_std.transpose(0, 3).contiguous().transpose(0, 3)
    assert not strided.is_contiguous()
    assert torch.allclose(ERA.era_log_std(strided, -5.0, LOW, HIGH), expected, atol=1e-6)
    empty = torch.empty(0, 10, requires_grad=True)
    ERA.era_log_std(empty, -5.0, LOW, HIGH).sum().backward()
    assert empty.grad.shape == (0, 10)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_half_precision_is_computed_in_fp32(dtype):
    pre_std = (2 * torch.randn(16, 61, generator=torch.Generator().manual_seed(0))).to(dtype).requires_grad_()
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    expected = ERA.era_log_std(pre_std.detach().to(wide), -30.5, LOW, HIGH)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        autocast = ERA.era_log_std(pre_std, -30.5, LOW, HIGH)
        assert batch_level(pre_std, -30.5).dtype == ERA.log_mean_exp(pre_std).dtype == wide
    for output in (ERA.era_log_std(pre_std, -30.5, LOW, HIGH), autocast):
        assert output.dtype == wide and torch.equal(output, expected)
    (autocast * torch.randn(16, 61)).sum().backward()
    assert pre_std.grad.dtype == dtype and pre_std.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int64])
def test_tensor_targets(dtype):
    pre_std = states(61).float()
    target = torch.tensor(-30.0, dtype=dtype)  # a number that every type can hold
    expected = ERA.era_log_std(pre_std, -30.0, LOW, HIGH)
    torch.testing.assert_close(ERA.era_log_std(pre_std, target, LOW, HIGH), expected, rtol=1e-6, atol=2e-5)
    expected = batch_level(pre_std[:3], -30.0)
    torch.testing.assert_close(batch_level(pre_std[:3], target), expected, rtol=1e-5, atol=2e-5)


# Properties


@st.composite
def problems(draw):
    """States (B, D), their target and the range of ln sigma. One state is drawn number by number, which makes ties."""
    dim, (low, high) = draw(st.integers(2, 61)), draw(st.sampled_from(RANGES))
    scale = draw(st.sampled_from([0.0, 1e-38, 0.1, 1.0, 10.0, 1e4]))
    numbers = st.floats(-1, 1, width=32) if draw(st.booleans()) else st.sampled_from([-1.0, 0.0, 1.0])
    first = torch.tensor([draw(st.lists(numbers, min_size=dim, max_size=dim))])
    generator = torch.Generator().manual_seed(draw(st.integers(0, 9)))
    others = torch.randn(draw(st.integers(0, 63)), dim, generator=generator)
    pre_std = scale * torch.cat([first, others]) + draw(st.sampled_from([0.0, 100.0]))
    return pre_std, feasible(dim, draw(st.floats(0.001, 0.999)), low, high), low, high


def rounding_of_a_state(dim: int, target: float, high: float) -> float:
    """How many roundings u of 1 can move the sum of ln sigma_i = high + k p_i.

    p_i are the computed exponentials, however exact, times the reciprocal of their sum, in which D - 1 additions round:
    the p_i sum to 1 within (D + 1) u. k and the products k p_i are rounded once (2 u |k|), and so are high and
    high + k p_i (u (2 D |high| + |k|)). This is the worst case; independent roundings add up to about 1 / D of it.
    """
    return abs(target - dim * (C + high)) * (dim + 4) + 2 * dim * abs(high)


def rounding_of_a_batch(count: int, dim: int, target: float, high: float, log_mean: float) -> float:
    """The same with one sum over the batch of n = count D numbers.

    In exp(x - ln mean) the exponentials no longer cancel: each may be off by 4 u, and its argument by u of itself, at
    most u (ln n + 1) on weighted average. ln mean is rounded three times (the logarithm, the maximum that logsumexp
    takes out, ln n), to 3 u (|ln mean| + ln n).
    """
    n = count * dim
    relative = (n - 1) + 8 + (math.log(n) + 1) + 3 * (abs(log_mean) + math.log(n))
    return abs(target - dim * (C + high)) * (relative + 3) + 2 * dim * abs(high)


@settings(deadline=None)
@given(problems())
def test_entropy_is_at_least_the_target_and_equal_without_clipping(problem):
    """Of each state, and in the mean over a batch. `make entropy-search` looks longer for what is farthest off."""
    pre_std, target, low, high = problem
    dim = pre_std.shape[-1]
    for dtype, rounding in ((torch.bfloat16, ROUNDING), (torch.float32, ROUNDING), (torch.float64, 2**-53)):
        x = pre_std.to(dtype)
        log_mean = ERA.log_mean_exp(x)
        levels = {
            "state": (ERA.era_log_std(x, target, low, high), rounding_of_a_state(dim, target, high)),
            "batch": (
                ERA.batch_level_log_std(x, log_mean, target, low, high),
                rounding_of_a_batch(*x.shape, target, high, float(log_mean)),
            ),
        }
        for level, (log_std, roundings) in levels.items():
            margin, clipped = (log_std.double() + C).sum(-1) - target, (log_std <= low).any(-1)
            if level == "batch":
                margin, clipped = margin.mean(0, keepdim=True), clipped.any(0, keepdim=True)
            allowed = rounding * roundings + 2**-50 * dim * 20  # the latter: sums in fp64 here
            assert (margin >= -allowed).all() and (clipped | (margin <= allowed)).all(), level
            # low and high are themselves rounded to the type.
            rounded_low, rounded_high = torch.tensor([low, high], dtype=log_std.dtype)
            assert log_std.max() <= rounded_high and log_std.min() >= rounded_low
            if dtype == torch.float32 and (low, high) == (LOW, HIGH) and not clipped.all():
                hypothesis.target(float(margin[~clipped].abs().max()), label=f"nats off H0' per {level}")


# Gradients


def test_first_and_second_derivatives_by_differences():
    """By pre_std and by a tensor target."""
    pre_std = torch.randn(3, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True)
    target = torch.tensor(-2.5, dtype=torch.float64, requires_grad=True)
    for function in (lambda x, t: ERA.era_log_std(x, t, LOW, HIGH), batch_level):
        assert torch.autograd.gradcheck(function, (pre_std, target))
        assert torch.autograd.gradgradcheck(function, (pre_std, target))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_outputs_and_gradients_are_finite(dtype):
    for dim, (low, high) in itertools.product((2, 61), RANGES):
        ends = ERA.feasible_targets(dim, low, high)
        for target in (math.nextafter(ends[0], ends[1]), sum(ends) / 2, math.nextafter(ends[1], ends[0])):
            for activation in (ERA.era_log_std, batch_level):
                pre_std = states(dim).to(dtype).requires_grad_()
                log_std = activation(pre_std, target, low, high)
                assert log_std.isfinite().all() and log_std.exp().gt(0).all()
                assert float(log_std.detach().max()) <= high + 8 * ROUNDING * abs(high)
                log_std.exp().sum().backward()
                assert pre_std.grad.isfinite().all()


# torch.compile


def test_compiled_equals_eager_without_a_graph_break():
    """Traced forward and backward, without inductor's code generation, which takes a C++ compiler a minute.

    Of a tensor target only the form without checks compiles, which is why the actor calls that.
    """
    torch.compiler.reset()
    pre_std, weights = torch.randn(2, 16, 10, generator=torch.Generator().manual_seed(0))
    target = torch.tensor(-5.0)
    for function in (
        lambda x: ERA.era_log_std(x, -5.0, LOW, HIGH),
        lambda x: ERA.state_level_log_std(x, target, LOW, HIGH),
        lambda x: batch_level(x, -5.0),
    ):
        results = []
        for run in (function, torch.compile(function, fullgraph=True, backend="aot_eager")):
            x = pre_std.clone().requires_grad_()
            output = run(x)
            results.append((output.detach(), torch.autograd.grad((output * weights).sum(), x)[0]))
        torch.testing.assert_close(results[0], results[1], rtol=2e-6, atol=2e-6)


# Feasible range


@pytest.mark.parametrize("low, high", RANGES)
def test_infeasible_targets_are_refused(low, high):
    for dim in (2, 19, 61):
        ends = ERA.feasible_targets(dim, low, high)
        assert ends == pytest.approx((feasible(dim, 0, low, high), feasible(dim, 1, low, high)), rel=1e-15)
        beyond = (ends[0] - 1e-9, ends[1] + 1e-9, ends[0] - 100, ends[1] + 100, math.nan, math.inf, -math.inf)
        for target, as_tensor in itertools.product(ends + beyond, (False, True)):
            target = torch.tensor(target, dtype=torch.float64) if as_tensor else target
            with pytest.raises(ValueError, match="not feasible") as error:
                ERA.era_log_std(torch.zeros(dim), target, low, high)
            for end in ends:
                assert f"{end:.4f}" in str(error.value) and f"{end / dim:.4f}" in str(error.value)
        for target in (math.nextafter(ends[0], math.inf), math.nextafter(ends[1], -math.inf)):
            ERA.era_log_std(torch.zeros(dim), target, low, high)


def test_infeasible_targets_are_refused_by_compiled_code():
    """After the second target torch.compile takes targets for dynamic."""
    torch.compiler.reset()
    compiled = torch.compile(ERA.era_log_std, backend="eager")
    for target in (-5.0, -6.0):
        compiled(torch.zeros(10), target, LOW, HIGH)
    with pytest.raises(ValueError, match=r"target_entropy = 100 nats, .* not feasible for 10 .*-65\.8106 and 14\.1894"):
        compiled(torch.zeros(10), 100.0, LOW, HIGH)


def test_one_dimension_is_refused_per_state_with_the_reason():
    for shape in ((1,), (5, 1), (5, 0)):
        with pytest.raises(ValueError, match="at least two dimensions.*same constant.*batch-level"):
            ERA.era_log_std(torch.zeros(shape), -0.5, LOW, HIGH)


@pytest.mark.parametrize(
    "low, high", [(0.0, 0.0), (1.0, 0.0), (math.nan, 0.0), (-8.0, math.nan), (-math.inf, 0.0), (-8.0, math.inf)]
)
def test_other_ranges_are_refused(low, high):
    with pytest.raises(ValueError, match="log_std_min"):
        ERA.era_log_std(torch.zeros(3), -1.5, low, high)


@pytest.mark.parametrize("wrong", ["-1.5", None, True, torch.zeros(2), [-1.5]], ids=str)
def test_what_is_not_a_number_is_refused(wrong):
    given = {"target_entropy": -1.5, "log_std_min": LOW, "log_std_max": HIGH}
    for name in given:
        with pytest.raises(ValueError, match=f"^{name} is .*: a number of .* expected"):
            ERA.era_log_std(torch.zeros(3), **(given | {name: wrong}))
