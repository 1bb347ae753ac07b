"""The policies of era/continuous.py against mpmath, scipy and the paper's equations."""

import itertools
import math

import mpmath
import numpy
import policy_errors
import pytest
import torch
from control_helpers import ERA
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_errors import DTYPES, ROUNDING, make, settings_of
from scipy import integrate, stats

every_dtype = pytest.mark.parametrize("dtype", DTYPES)


def set_uniform(monkeypatch, draws: torch.Tensor) -> None:
    """Every torch.rand_like gives these draws."""
    monkeypatch.setattr(torch, "rand_like", lambda like: draws.to(like.dtype).expand_as(like).clone())


def truncnorm(loc: float, log_std: float):
    std = math.exp(log_std)
    return stats.truncnorm((-1 - loc) / std, (1 - loc) / std, loc=loc, scale=std)


# Densities and entropies


@pytest.mark.parametrize("quantity, name, dtype", policy_errors.comparisons())
def test_many_digits_in_the_tails(quantity, name, dtype, say):
    found = policy_errors.errors(quantity, name, dtype)
    error, _, where = max(found, key=lambda row: row[0])
    say(f"{quantity}, {name}, {dtype}: {float(error):.1e} at {', '.join(f'{x:.7g}' for x in where)}")
    assert [(float(e), float(allowed), where) for e, allowed, where in found if not e <= allowed] == []


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
def test_no_density_outside_of_the_action_space(name):
    policy = make(name, 0.5, -1.0, torch.float32, 4)
    outside = torch.tensor([[-1.0000001], [1.0000001], [3.0], [-math.inf]])
    assert (policy.log_prob(outside) == -math.inf).all()
    assert policy.log_prob(torch.full((4, 1), math.nan)).isnan().all()
    assert policy.log_prob(torch.tensor([[-1.0], [1.0], [0.0], [0.5]])).isfinite().all()


def test_closed_forms_in_many_digits_are_the_integrals():
    """Of -p ln p over [-1, 1], plus the sum over the two probabilities at the bounds."""
    locs, stds = (-1, mpmath.mpf(3) / 10, mpmath.mpf(9) / 10), (mpmath.mpf(1) / 30, mpmath.mpf(1) / 3, 2)
    for loc, std in itertools.product(locs, stds):
        with mpmath.workdps(30):
            points = sorted({-1, 1, *(min(max(loc + n * std, -1), 1) for n in (-12, -6, -3, 0, 3, 6, 12))})
            for name, bounds in (("truncated", ()), ("clipped", (-1, 1))):
                log_density = policy_errors.log_normal if bounds else policy_errors.truncated_log_prob
                integral = mpmath.quad(
                    lambda x: -mpmath.exp(log_density(x, loc, std)) * log_density(x, loc, std), points
                )
                for x in bounds:
                    if policy_errors.tail((1 - x * loc) / std) > 0:
                        log_mass = policy_errors.clipped_log_prob(x, loc, std)
                        integral -= mpmath.exp(log_mass) * log_mass
                assert abs(policy_errors.ENTROPIES[name](loc, std) - integral) < 1e-18


def test_papers_residual_of_the_tanh_gaussian():
    """delta_tanh of Eq. squashed_gaussian_residual by quadrature, against the policy's estimate from 40,000 samples."""
    for loc, log_std in itertools.product((-3.0, 0.0, 0.5), (-4.0, -1.0, 0.0, 1.0)):
        std = math.exp(log_std)

        def moment(power):
            def integrand(x):
                minus_log_slope = -2 * (math.log(2) - abs(x) - math.log1p(math.exp(-2 * abs(x))))
                return minus_log_slope**power * stats.norm.pdf(x, loc, std)

            return integrate.quad(integrand, loc - 12 * std, loc + 12 * std, limit=200)[0]

        delta, square = moment(1), moment(2)
        torch.manual_seed(0)
        policy = make("tanh", loc, log_std, torch.float64, 40_000)
        estimate = float(ERA.gaussian_entropy(policy.log_std).mean() - policy.entropy().mean())
        assert delta >= 0 and abs(estimate - delta) <= 4 * math.sqrt((square - delta**2) / 40_000)


# Samples


@every_dtype
def test_tanh_samples_by_kolmogorov_smirnov(dtype):
    torch.manual_seed(0)
    for loc, log_std in itertools.product((-2.0, 0.0, 0.5), (-8.0, -4.0, -1.0, 0.0)):  # beyond, tanh is 1 too often
        std = math.exp(log_std)
        samples = make("tanh", loc, log_std, DTYPES[dtype], 10_000).rsample().detach().double().flatten().numpy()
        assert abs(samples).max() <= 1
        test = stats.kstest(samples, lambda x: stats.norm.cdf(numpy.arctanh(x), loc, std))
        assert test.pvalue > 1e-4, (loc, log_std)


@every_dtype
def test_clipped_samples_by_kolmogorov_smirnov(dtype):
    torch.manual_seed(0)
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


@every_dtype
def test_extreme_draws_stay_in_the_action_space(monkeypatch, dtype):
    dtype, rounding = DTYPES[dtype], ROUNDING[DTYPES[dtype]]
    draws = [[0.0], [rounding], [0.5], [1 - 2 * rounding], [1 - rounding]]
    set_uniform(monkeypatch, torch.tensor(draws, dtype=dtype))
    for loc, log_std in settings_of("truncated"):
        policy = make("truncated", loc, log_std, dtype, 5)
        action = policy.rsample()
        assert action.isfinite().all() and action.abs().max() <= 1 and (action.diff(dim=0) >= 0).all()
        # fp64 reaches 8 sigma from loc, fp32 5; nearer bounds are reached, up to the coarseness of erf.
        std, loc = policy.std[0], policy.loc[0]
        reach = std * (4 if dtype == torch.float32 else 7)
        assert action[0] <= (loc - reach).clamp(-1, 1) + 1e-3 * std
        assert action[-1] >= (loc + reach).clamp(-1, 1) - 1e-3 * std
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
    log_probs = policy.log_prob(torch.full((8, 3), action)), policy.log_prob(sample.detach())
    for output in (sample, policy.entropy(), *log_probs):
        assert output.isfinite().all()
        gradients = torch.autograd.grad(output.sum(), (mean, log_std), allow_unused=True, retain_graph=True)
        assert all(g is None or g.isfinite().all() for g in gradients)


# Gradients of samples


def test_gradient_of_a_truncated_sample_is_the_implicit_one(monkeypatch):
    """With f the standard Gaussian's density, a and b the standardised bounds:

    dx/dloc = 1 - [(1 - u) f(a) + u f(b)] / f(xi),  dx/dsigma = xi - [(1 - u) a f(a) + u b f(b)] / f(xi).
    """
    u = torch.linspace(0.001, 0.999, 41, dtype=torch.float64)[:, None]
    set_uniform(monkeypatch, u)
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


def test_gradient_of_a_clipped_sample_is_0_beyond_the_bounds(monkeypatch):
    """The pathwise one, of max(-1, min(1, loc + sigma noise)): a straight-through gradient would be biased."""
    noise = torch.linspace(-5, 5, 41, dtype=torch.float64)[:, None]
    monkeypatch.setattr(torch, "randn_like", lambda like: noise)
    policy = make("clipped", 0.5, -1.0, torch.float64, len(noise))
    by_loc, by_log_std = torch.autograd.grad(policy.rsample().sum(), (policy.loc, policy.log_std))
    inside = ((0.5 + math.exp(-1) * noise).abs() < 1).double()
    assert 0 < inside.mean() < 1
    torch.testing.assert_close(by_loc, inside)
    torch.testing.assert_close(by_log_std, inside * math.exp(-1) * noise)


def test_residual_loss_raises_delta_where_the_entropy_is_too_low():
    for entropy, sign in ((-6.0, -1), (-4.0, 1)):  # of H0 = -5: a step goes against the gradient
        delta = torch.tensor(0.3, requires_grad=True)
        policy_entropy = torch.tensor(entropy, requires_grad=True)
        loss = ERA.residual_loss(delta, policy_entropy, -5.0)
        assert float(loss) == pytest.approx(0.3 * (entropy + 5))
        by_delta, by_entropy = torch.autograd.grad(loss, (delta, policy_entropy), allow_unused=True)
        assert float(by_delta) == sign and by_entropy is None  # it does not act on the policy itself
