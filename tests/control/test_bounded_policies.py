"""The policies of overlays/fasttd3/fast_td3/era.py against scipy and mpmath, above all in the tails.

    python tests/control/test_bounded_policies.py

prints the worst errors of log-probabilities, entropies and gradients, per distribution and dtype.
"""

import itertools
import math
from pathlib import Path

import mpmath
import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from tools.searches import gaussian_entropy as entropy_search

ERA = entropy_search.load_era()
LOCS = (-1.0, -1 + 1e-7, 0.0, 0.9, 1 - 1e-7, 1.0)
LOG_STDS = (-8.0, -4.0, -1.0, 0.0, 2.0)
TANH_LOCS = (-12.0, -3.0, 0.0, 0.5, 8.0)
DTYPES = {"fp32": torch.float32, "fp64": torch.float64}
U = {dtype: torch.finfo(dtype).eps / 2 for dtype in DTYPES.values()}
mpmath.mp.dps = 30


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def uniform(monkeypatch, draws: torch.Tensor) -> None:
    """Every torch.rand_like gives these draws."""
    monkeypatch.setattr(torch, "rand_like", lambda like: draws.to(like.dtype).expand_as(like).clone())


# ---------------------------------------------------------------------------- the distributions again, in many digits

# Each takes and gives numbers of mpmath; loc and ln sigma are those of the tensor, in its own precision.


def phi(x):
    return mpmath.exp(-x * x / 2) / mpmath.sqrt(2 * mpmath.pi)


def tail(x):
    """What a standard Gaussian has above x."""
    return mpmath.erfc(x / mpmath.sqrt(2)) / 2


def log_normal(x, loc, std):
    return -(((x - loc) / std) ** 2) / 2 - mpmath.log(std) - mpmath.log(2 * mpmath.pi) / 2


def truncated_log_prob(x, loc, std):
    return log_normal(x, loc, std) - mpmath.log(1 - tail((1 - loc) / std) - tail((1 + loc) / std))


def clipped_log_prob(x, loc, std):
    if abs(x) == 1:
        return mpmath.log(tail((1 - x * loc) / std))
    return log_normal(x, loc, std)


def tanh_log_prob(x, loc, std):
    return log_normal(mpmath.atanh(x), loc, std) - mpmath.log(1 - x * x)


def truncated_entropy(loc, std):
    a, b = (-1 - loc) / std, (1 - loc) / std
    z = 1 - tail(b) - tail(-a)
    return mpmath.log(std * z * mpmath.sqrt(2 * mpmath.pi * mpmath.e)) - (b * phi(b) - a * phi(a)) / (2 * z)


def clipped_entropy(loc, std):
    a, b = (-1 - loc) / std, (1 - loc) / std
    inside = (1 - tail(b) - tail(-a)) * mpmath.log(std * mpmath.sqrt(2 * mpmath.pi * mpmath.e)) - (
        b * phi(b) - a * phi(a)
    ) / 2
    return inside - sum(p * mpmath.log(p) for p in (tail(b), tail(-a)) if p > 0)


LOG_PROBS = {"truncated": truncated_log_prob, "tanh": tanh_log_prob, "clipped": clipped_log_prob}
ENTROPIES = {"truncated": truncated_entropy, "clipped": clipped_entropy}


def make(name: str, loc: float, log_std: float, dtype: torch.dtype, count: int = 1):
    """A policy of one dimension per state, whose loc and ln sigma require gradients."""
    loc = torch.full((count, 1), loc, dtype=dtype, requires_grad=True)
    log_std = torch.full((count, 1), log_std, dtype=dtype, requires_grad=True)
    return ERA.DISTRIBUTIONS[name](loc, log_std)


def in_digits(policy) -> tuple:
    return mpmath.mpf(float(policy.loc[0, 0])), mpmath.exp(mpmath.mpf(float(policy.log_std[0, 0])))


def actions_of(name: str, loc: float, log_std: float, dtype: torch.dtype) -> torch.Tensor:
    """Within some sigma of the location, both bounds and the other side of the action space."""
    steps = torch.tensor([-6.0, -3.0, -1.0, -0.1, 0.0, 0.1, 1.0, 3.0, 6.0], dtype=torch.float64)
    actions = loc + math.exp(log_std) * steps
    actions = actions.tanh() if name == "tanh" else actions
    ends = [-0.999, -0.5, 0.0, 0.7, 0.999] + ([] if name == "tanh" else [-1.0, 1.0])
    actions = torch.cat([actions, torch.tensor(ends, dtype=torch.float64)]).to(dtype)
    # tanh: the last three numbers before 1 stand for all of (9, infinity).
    return actions.clamp(-1, 1) if name != "tanh" else actions[actions.abs() < 1 - 4 * U[dtype]]


def settings_of(name: str):
    return itertools.product(TANH_LOCS if name == "tanh" else LOCS, LOG_STDS)


def log_prob_errors(name: str, dtype: torch.dtype):
    """Per action: the error relative to 1 + |log_prob| in nats, and what rounding explains. The standardised distance z is off by a few u of itself (of sigma,
    of the difference, of the quotient), z^2 / 2 by twice that; for tanh also by the rounding of atanh. The other terms are
    ln sigma, constants and logarithms of numbers near or below 1, whose rounding is absolute."""
    for loc, log_std in settings_of(name):
        actions = actions_of(name, loc, log_std, dtype)
        policy = make(name, loc, log_std, dtype, len(actions))
        exact_loc, std = in_digits(policy)
        for action, got in zip(actions.tolist(), policy.log_prob(actions[:, None]).tolist()):
            x = mpmath.mpf(action)
            inner = mpmath.atanh(x) if name == "tanh" else x
            z = (inner - exact_loc) / std
            bend = 4 * z * z + (4 * abs(z * inner) / std if name == "tanh" else 0)
            want = LOG_PROBS[name](x, exact_loc, std)
            allowed = U[dtype] * (bend + 2 * abs(float(log_std)) + 2 * abs(inner) + 10)
            yield abs(got - want) / (1 + abs(want)), allowed / (1 + abs(want)), (loc, log_std, action)


def log_prob_gradient_errors(name: str, dtype: torch.dtype):
    """Relative to 1 + |gradient|: d log_prob / d loc (times sigma) and / d ln sigma, the reference by differences in 30 digits."""
    step = mpmath.mpf(10) ** -12
    for loc, log_std in settings_of(name):
        actions = actions_of(name, loc, log_std, dtype)
        policy = make(name, loc, log_std, dtype, len(actions))
        exact_loc, std = in_digits(policy)
        got = torch.autograd.grad(policy.log_prob(actions[:, None]).sum(), (policy.loc, policy.log_std))
        for action, by_loc, by_log_std in zip(actions.tolist(), got[0].flatten().tolist(), got[1].flatten().tolist()):
            x = mpmath.mpf(action)
            inner = mpmath.atanh(x) if name == "tanh" else x
            z = abs((inner - exact_loc) / std)
            log_prob = LOG_PROBS[name]
            want_loc = (log_prob(x, exact_loc + step * std, std) - log_prob(x, exact_loc - step * std, std)) / (
                2 * step
            )
            up, down = std * mpmath.exp(step), std * mpmath.exp(-step)
            want_log_std = (log_prob(x, exact_loc, up) - log_prob(x, exact_loc, down)) / (2 * step)
            bend = (1 + z) * abs(inner) / std if name == "tanh" else 0
            for error, want in (
                (abs(by_loc * std - want_loc), want_loc),
                (abs(by_log_std - want_log_std), want_log_std),
            ):
                yield (
                    error / (1 + abs(want)),
                    U[dtype] * (16 + 16 * bend / (1 + abs(want))) + 1e-14,
                    (loc, log_std, action),
                )


def entropy_errors(name: str, dtype: torch.dtype):
    for loc, log_std in itertools.product(LOCS, LOG_STDS):
        policy = make(name, loc, log_std, dtype)
        exact_loc, std = in_digits(policy)
        yield (
            abs(float(policy.entropy()) - ENTROPIES[name](exact_loc, std)),
            U[dtype] * (16 + 2 * abs(log_std)),
            (loc, log_std),
        )


def entropy_gradient_errors(name: str, dtype: torch.dtype):
    """d entropy / d loc (times sigma) and / d ln sigma, by differences of the closed form in 30 digits."""
    step = mpmath.mpf(10) ** -10
    entropy = ENTROPIES[name]
    for loc, log_std in itertools.product(LOCS, LOG_STDS):
        policy = make(name, loc, log_std, dtype)
        exact_loc, std = in_digits(policy)
        by_loc, by_log_std = (
            float(g) for g in torch.autograd.grad(policy.entropy().sum(), (policy.loc, policy.log_std))
        )
        want_loc = (entropy(exact_loc + step * std, std) - entropy(exact_loc - step * std, std)) / (2 * step)
        want_log_std = (entropy(exact_loc, std * mpmath.exp(step)) - entropy(exact_loc, std * mpmath.exp(-step))) / (
            2 * step
        )
        for error in (abs(by_loc * std - want_loc), abs(by_log_std - want_log_std)):
            yield error, U[dtype] * (32 + 4 * abs(log_std)) + 1e-14, (loc, log_std)


QUANTITIES = {
    "log_prob (relative)": log_prob_errors,
    "its gradient (relative)": log_prob_gradient_errors,
    "entropy": entropy_errors,
    "its gradient": entropy_gradient_errors,
}


def comparisons():
    for (quantity, errors), name, dtype in itertools.product(QUANTITIES.items(), ERA.DISTRIBUTIONS, DTYPES):
        if name != "tanh" or errors in (log_prob_errors, log_prob_gradient_errors):
            yield quantity, name, dtype


@pytest.mark.parametrize("quantity, name, dtype", comparisons())
def test_agrees_with_many_digits_in_the_tails(quantity, name, dtype):
    beyond = [
        (float(error), float(allowed), where)
        for error, allowed, where in QUANTITIES[quantity](name, DTYPES[dtype])
        if not error <= allowed
    ]
    assert beyond == []


# ---------------------------------------------------------------------------------------------------------- and scipy


def truncnorm(loc: float, log_std: float):
    std = math.exp(log_std)
    return stats.truncnorm((-1 - loc) / std, (1 - loc) / std, loc=loc, scale=std)


def test_truncated_agrees_with_scipy():
    for loc, log_std in settings_of("truncated"):
        reference = truncnorm(loc, log_std)
        actions = torch.from_numpy(reference.ppf(numpy.linspace(0.001, 0.999, 50)))
        policy = make("truncated", loc, log_std, torch.float64, len(actions))
        torch.testing.assert_close(
            policy.log_prob(actions[:, None]), torch.from_numpy(reference.logpdf(actions)), rtol=1e-9, atol=1e-9
        )
        assert float(policy.entropy()[0]) == pytest.approx(float(reference.entropy()), abs=1e-9)


def test_dimensions_add_up_and_shapes():
    loc, log_std = torch.rand(3, 4, 7, dtype=torch.float64) * 2 - 1, -2 * torch.rand(3, 4, 7, dtype=torch.float64)
    for cls in ERA.DISTRIBUTIONS.values():
        policy = cls(loc, log_std)
        action = policy.rsample()
        assert action.shape == (3, 4, 7) and policy.entropy().shape == policy.log_prob(action).shape == (3, 4)
        single = cls(loc[1, 2, :, None], log_std[1, 2, :, None])
        torch.testing.assert_close(policy.log_prob(action)[1, 2], single.log_prob(action[1, 2, :, None]).sum())
        if cls is not ERA.TanhGaussian:
            torch.testing.assert_close(policy.entropy()[1, 2], single.entropy().sum())


@pytest.mark.parametrize("name", ERA.DISTRIBUTIONS)
def test_nothing_outside_of_the_action_space(name):
    policy = make(name, 0.5, -1.0, torch.float32, 4)
    outside = torch.tensor([[-1.0000001], [1.0000001], [3.0], [-math.inf]])
    assert (policy.log_prob(outside) == -math.inf).all()
    assert policy.log_prob(torch.full((4, 1), math.nan)).isnan().all()
    assert policy.log_prob(torch.tensor([[-1.0], [1.0], [0.0], [0.5]])).isfinite().all()


@pytest.mark.parametrize("name", ERA.DISTRIBUTIONS)
def test_from_mean(name):
    mean, log_std = torch.tensor([[-2.0, 0.3, 50.0]]), torch.full((1, 3), -8.0)
    policy = ERA.DISTRIBUTIONS[name].from_mean(mean, log_std)
    torch.testing.assert_close(
        policy.rsample(), mean.tanh(), atol=5e-3, rtol=0
    )  # up to sigma, the action without noise


# ----------------------------------------------------------------------------------------------------------- entropies


def test_closed_forms_in_many_digits_are_the_integrals():
    """Of -p ln p over [-1, 1], and of the two probabilities at the bounds."""
    for loc, std in itertools.product(
        (-1, mpmath.mpf(3) / 10, mpmath.mpf(9) / 10), (mpmath.mpf(1) / 30, mpmath.mpf(1) / 3, 2)
    ):
        points = sorted({-1, 1, *(min(max(loc + n * std, -1), 1) for n in (-12, -6, -3, 0, 3, 6, 12))})
        for name, at_bounds in (("truncated", ()), ("clipped", (-1, 1))):

            def surprise(x):
                log_density = log_normal(x, loc, std) if at_bounds else truncated_log_prob(x, loc, std)
                return -mpmath.exp(log_density) * log_density

            log_masses = [clipped_log_prob(x, loc, std) for x in at_bounds if tail((1 - x * loc) / std) > 0]
            integral = mpmath.quad(surprise, points) - sum(mpmath.exp(mass) * mass for mass in log_masses)
            assert abs(ENTROPIES[name](loc, std) - integral) < 1e-18


def test_papers_residual_of_the_truncated_gaussian():
    """H_policy = H_Gaussian - delta_TN, Eq. truncated_gaussian_residual with scipy's Phi; and delta_TN >= 0."""
    for loc, log_std in settings_of("truncated"):
        std = math.exp(log_std)
        alpha, beta = (-1 - loc) / std, (1 - loc) / std
        z = stats.norm.cdf(beta) - stats.norm.cdf(alpha)
        delta = -(math.log(z) - (beta * stats.norm.pdf(beta) - alpha * stats.norm.pdf(alpha)) / (2 * z))
        policy = make("truncated", loc, log_std, torch.float64)
        assert float(ERA.gaussian_entropy(policy.log_std) - policy.entropy()) == pytest.approx(delta, abs=1e-11)
        assert delta >= 0


def test_papers_residual_of_the_tanh_gaussian():
    """delta_tanh of Eq. squashed_gaussian_residual by quadrature; the policy's entropy is an estimate, here of 40,000 samples."""
    for loc, log_std in itertools.product((-3.0, 0.0, 0.5), (-4.0, -1.0, 0.0, 1.0)):
        std = math.exp(log_std)

        def minus_log_slope(x, power=1):
            return (-2 * (math.log(2) - abs(x) - math.log1p(math.exp(-2 * abs(x))))) ** power * stats.norm.pdf(
                x, loc, std
            )

        delta, square = (
            integrate.quad(minus_log_slope, loc - 12 * std, loc + 12 * std, args=(power,), limit=200)[0]
            for power in (1, 2)
        )
        torch.manual_seed(0)
        policy = make("tanh", loc, log_std, torch.float64, 40_000)
        estimate = float(ERA.gaussian_entropy(policy.log_std).mean() - policy.entropy().mean())
        assert delta >= 0 and abs(estimate - delta) <= 4 * math.sqrt((square - delta**2) / 40_000)


def test_log_tanh_slope_in_many_digits():
    for dtype, unit in U.items():
        values = torch.tensor([0.0, 1e-30, 1e-4, 0.3, 1.0, 5.0, 9.9, 10.1, 12.0, 20.0, 100.0, 1e4], dtype=dtype)
        for value in torch.cat([-values, values]):
            exact = -2 * mpmath.log(mpmath.cosh(mpmath.mpf(float(value))))
            value.requires_grad_()
            slope = ERA.log_tanh_slope(value)
            slope.backward()
            assert abs(float(slope) - exact) <= unit * (8 + 4 * abs(float(value)))
            assert abs(float(value.grad) + 2 * mpmath.tanh(mpmath.mpf(float(value)))) <= 8 * unit


# ------------------------------------------------------------------------------------------------------------- samples


@pytest.mark.parametrize("dtype", DTYPES)
def test_truncated_samples_by_kolmogorov_smirnov(dtype):
    torch.manual_seed(0)
    for loc, log_std in settings_of("truncated"):
        policy = make("truncated", loc, log_std, DTYPES[dtype], 10_000)
        samples = policy.rsample().detach().double().flatten()
        assert samples.abs().max() <= 1
        reference = truncnorm(float(policy.loc[0]), float(policy.log_std[0]))
        assert stats.kstest(samples.numpy(), reference.cdf).pvalue > 1e-4, (loc, log_std)


@pytest.mark.parametrize("dtype", DTYPES)
def test_tanh_and_clipped_samples_by_kolmogorov_smirnov(dtype):
    torch.manual_seed(0)
    for loc, log_std in itertools.product((-2.0, 0.0, 0.5), (-8.0, -4.0, -1.0, 0.0)):  # beyond, tanh is 1 too often
        samples = make("tanh", loc, log_std, DTYPES[dtype], 10_000).rsample().detach().double().flatten().numpy()
        assert abs(samples).max() <= 1
        assert (
            stats.kstest(samples, lambda x: stats.norm.cdf(numpy.arctanh(x), loc, math.exp(log_std))).pvalue > 1e-4
        ), (loc, log_std)
    for loc, log_std in settings_of("clipped"):
        policy = make("clipped", loc, log_std, DTYPES[dtype], 10_000)
        samples = policy.rsample().detach().double().flatten().numpy()
        assert abs(samples).max() <= 1
        exact_loc, std = float(policy.loc[0]), math.exp(float(policy.log_std[0]))
        for bound in (-1, 1):
            share = stats.norm.sf((1 - bound * exact_loc) / std)
            if dtype == "fp64" or share < 0.01 or std > 1e-2:  # elsewhere fp32 rounds what is near the bound to it
                assert stats.binomtest(int((samples == bound).sum()), len(samples), min(max(share, 0), 1)).pvalue > 1e-4
        inside = samples[abs(samples) < 1]
        if len(inside) > 100 and (dtype == "fp64" or std > 1e-2):
            assert stats.kstest(inside, truncnorm(exact_loc, math.log(std)).cdf).pvalue > 1e-4


@pytest.mark.parametrize("dtype", DTYPES)
def test_extreme_uniform_draws_stay_in_the_action_space(monkeypatch, dtype):
    dtype = DTYPES[dtype]
    largest = 1 - U[dtype]
    uniform(monkeypatch, torch.tensor([[0.0], [U[dtype]], [0.5], [1 - 2 * U[dtype]], [largest]], dtype=dtype))
    for loc, log_std in settings_of("truncated"):
        policy = make("truncated", loc, log_std, dtype, 5)
        action = policy.rsample()
        assert action.isfinite().all() and action.abs().max() <= 1 and (action.diff(dim=0) >= 0).all()
        # 8 sigma from loc is as far as fp64 goes, 5 as fp32; nearer bounds are reached, up to the coarseness of erf.
        std = policy.std[0]
        reach = std * (4 if dtype == torch.float32 else 7)
        assert (
            action[0] <= (policy.loc[0] - reach).clamp(-1, 1) + 1e-3 * std
            and action[-1] >= (policy.loc[0] + reach).clamp(-1, 1) - 1e-3 * std
        )
        by_loc, by_log_std = torch.autograd.grad(action.sum(), (policy.loc, policy.log_std))
        assert by_loc.isfinite().all() and by_log_std.isfinite().all()


numbers = st.floats(-1, 1, width=32)


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(list(ERA.DISTRIBUTIONS)),
    st.sampled_from([numbers, st.floats(-1e4, 1e4, width=32)]).flatmap(lambda n: n),
    st.floats(-8, 2, width=32),
    numbers,
    st.integers(0, 9),
)
def test_everything_is_finite_in_fp32(name, mean, log_std, action, seed):
    torch.manual_seed(seed)
    mean, log_std = torch.full((8, 3), mean, requires_grad=True), torch.full((8, 3), log_std, requires_grad=True)
    policy = ERA.DISTRIBUTIONS[name].from_mean(mean, log_std)
    sample = policy.rsample()
    assert sample.abs().max() <= 1
    for output in (
        sample,
        policy.entropy(),
        policy.log_prob(torch.full((8, 3), action)),
        policy.log_prob(sample.detach()),
    ):
        assert output.isfinite().all()
        gradients = torch.autograd.grad(output.sum(), (mean, log_std), allow_unused=True, retain_graph=True)
        assert all(g is None or g.isfinite().all() for g in gradients)


# -------------------------------------------------------------------------------------- gradients of what was sampled


def test_gradient_of_a_truncated_sample_is_the_implicit_one(monkeypatch):
    """dx/dloc = 1 - [(1 - u) phi(alpha) + u phi(beta)] / phi(xi), dx/dsigma = xi - [(1 - u) alpha phi(alpha) + u beta phi(beta)] / phi(xi)."""
    u = torch.linspace(0.001, 0.999, 41, dtype=torch.float64)[:, None]
    uniform(monkeypatch, u)
    for loc, log_std in settings_of("truncated"):
        policy = make("truncated", loc, log_std, torch.float64, len(u))
        action = policy.rsample()
        by_loc, by_log_std = torch.autograd.grad(action.sum(), (policy.loc, policy.log_std))
        std, quantile = math.exp(log_std), u.numpy()
        alpha, beta = (-1 - loc) / std, (1 - loc) / std
        below, above = stats.norm.cdf(alpha), stats.norm.cdf(beta)
        xi = stats.norm.ppf(below + (above - below) * quantile)
        density = stats.norm.pdf
        want_loc = 1 - ((1 - quantile) * density(alpha) + quantile * density(beta)) / density(xi)
        want_std = xi - ((1 - quantile) * alpha * density(alpha) + quantile * beta * density(beta)) / density(xi)
        torch.testing.assert_close(action.detach(), torch.from_numpy(loc + std * xi), rtol=0, atol=1e-12 * max(1, std))
        torch.testing.assert_close(by_loc, torch.from_numpy(want_loc), rtol=1e-9, atol=1e-10)
        torch.testing.assert_close(by_log_std, torch.from_numpy(std * want_std), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradient_of_an_expectation_is_that_of_quadrature(monkeypatch, dtype):
    """d/dloc and d/dln sigma of E[f(x)], f = sin 3x + x^2: the mean over equidistant draws against differences of scipy's integral."""
    count = 20_000
    uniform(monkeypatch, ((torch.arange(count, dtype=torch.float64) + 0.5) / count)[:, None])

    def expectation(loc, log_std):
        std, reference = math.exp(log_std), truncnorm(loc, log_std)
        points = sorted({min(max(loc + n * std, -1), 1) for n in range(-9, 10)} | {-1, 1})
        pieces = zip(points, points[1:])
        return sum(
            integrate.fixed_quad(lambda x: (numpy.sin(3 * x) + x * x) * reference.pdf(x), a, b, n=16)[0]
            for a, b in pieces
        )

    for loc, log_std in itertools.product((-0.999, 0.3, 0.9), (-4.0, -1.0, 0.0)):
        policy = make("truncated", loc, log_std, DTYPES[dtype], count)
        action = policy.rsample()
        gradients = torch.autograd.grad(((3 * action).sin() + action.square()).mean(), (policy.loc, policy.log_std))
        step = 1e-5
        want = [
            (expectation(loc + step, log_std) - expectation(loc - step, log_std)) / (2 * step),
            (expectation(loc, log_std + step) - expectation(loc, log_std - step)) / (2 * step),
        ]
        assert [float(g.sum()) for g in gradients] == pytest.approx(want, abs=1e-4 if dtype == "fp64" else 2e-3)


# --------------------------------------------------------------------------------------------------------------- delta


def test_residual_loss_raises_delta_where_the_entropy_is_too_low():
    for entropy, sign in ((-6.0, -1), (-4.0, 1)):  # of H0 = -5: a step goes against the gradient
        delta = torch.tensor(0.3, requires_grad=True)
        policy_entropy = torch.tensor(entropy, requires_grad=True)
        loss = ERA.residual_loss(delta, policy_entropy, -5.0)
        assert float(loss) == pytest.approx(0.3 * (entropy + 5))
        by_delta, by_entropy = torch.autograd.grad(loss, (delta, policy_entropy), allow_unused=True)
        assert float(by_delta) == sign and by_entropy is None  # the policy itself is not driven by it


def test_learned_delta_closes_the_gap_of_the_truncated_gaussian():
    """Means at the bound, ten dimensions, H0 = -0.5 each: without delta -0.9 or so; delta ends at delta_TN."""
    mean, pre_std = torch.full((1, 10), 9.0), torch.linspace(-0.5, 0.5, 10)[None]
    delta = torch.zeros((), requires_grad=True)
    optimizer = torch.optim.Adam([delta], lr=0.05)

    def policy():
        return ERA.TruncatedGaussian.from_mean(mean, ERA.era_log_std(pre_std, -5 + delta.detach(), -8.0, 0.0))

    assert float(policy().entropy()) < -8
    for _ in range(400):
        loss = ERA.residual_loss(delta, policy().entropy().mean(), -5.0)
        delta.grad = torch.autograd.grad(loss, delta)[0]
        optimizer.step()
    bounded = policy()
    assert float(bounded.entropy()) == pytest.approx(-5, abs=0.02)
    assert (
        float(delta) == pytest.approx(float(ERA.gaussian_entropy(bounded.log_std) - bounded.entropy()), abs=0.02)
        and delta > 3
    )


def test_learned_delta_of_the_trained_actor(patched_fasttd3, run_in):
    """fastsac_era.Actor, trained with its losses and its optimizer's groups on the toy of learned_delta.py."""
    script = Path(__file__).resolve().parents[2] / "tools/searches/learned_delta.py"
    lines = run_in(
        patched_fasttd3, script, patched_fasttd3, "--distributions", "truncated", "--values", "mean", "--updates", 900
    ).splitlines()
    rows = {
        line.split()[2]: [float(number) for number in line.split()[3:6]]
        for line in lines
        if line.startswith("truncated")
    }
    assert abs(rows["learned"][2]) < 0.03, lines  # nats per dimension, of the policy minus H0
    assert rows["0"][2] < -0.2, lines  # without delta


def test_the_table_of_errors_can_be_printed(capsys):
    print_worst_errors(["entropy"])
    table = capsys.readouterr().out
    assert table.count("fp32") == table.count("fp64") == 2


def print_worst_errors(quantities) -> None:
    print(f"{'':24} {'policy':10} {'type':5} {'worst error':>12} at loc, ln sigma, action; and of rounding's bound")
    for quantity, name, dtype in comparisons():
        if quantity in quantities:
            found = list(QUANTITIES[quantity](name, DTYPES[dtype]))
            error, _, where = max(found, key=lambda row: row[0])
            share = max(error / allowed for error, allowed, _ in found)
            print(
                f"{quantity:24} {name:10} {dtype:5} {float(error):12.1e} at {', '.join(f'{x:.7g}' for x in where)}; {float(share):.0%}",
                flush=True,
            )


if __name__ == "__main__":
    torch.set_num_threads(1)
    print_worst_errors(QUANTITIES)
