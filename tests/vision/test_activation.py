"""The activation of era/discrete_activation.py against the paper's equation; its listing: ../test_copied.py."""

import io
import itertools
import math
import warnings

import hypothesis
import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from vision_helpers import entropy, entropy_range, equation

INVERSES = ("approx", "exact")
TAUS = (math.e, 3.0, 4.0, 10.0, 100.0, 1000.0)
CLASSES = (2, 3, 10, 100, 1000, 21841)
both_inverses = pytest.mark.parametrize("inverse", INVERSES)


def inside(classes: int, tau: float, fraction: float) -> float:
    low, high = entropy_range(classes, tau)
    return low + fraction * (high - low)


def floor_in_many_digits(classes: int, min_entropy: float, tau: float, inverse: str) -> tuple[float, float]:
    """Entropy and largest probability of the one-hot limit, from the equation in mpmath."""
    with mpmath.workdps(60):
        exact_tau = mpmath.e if tau == math.e else mpmath.mpf(tau)
        kappa = mpmath.log(exact_tau) / exact_tau
        constant = mpmath.exp(mpmath.mpf(min_entropy) - 1)

        def log_q(h):
            if inverse == "exact":
                return mpmath.lambertw(-h, -1).real
            log_h = mpmath.log(h)
            return -mpmath.mpf(1) / 4 - mpmath.sqrt(max(2 * (-1 - log_h), 0)) + mpmath.mpf(3) / 4 * log_h

        top, other = log_q(kappa), log_q((constant - kappa) / (classes - 1))
        weights = [mpmath.exp(top), (classes - 1) * mpmath.exp(other)]
        total = sum(weights)
        entropy = mpmath.log(total) - (weights[0] * top + weights[1] * other) / total
        return float(entropy), float(weights[0] / total)


def rows(classes: int) -> torch.Tensor:
    """Ordinary, tied, extreme, huge, shifted and masked logits, fp64."""
    logits = torch.randn(8, classes, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    logits[1] *= 30
    logits[2] = 0.0
    logits[3, : classes // 2 + 1] = 5.0
    logits[4] *= 1e30
    logits[5] += 1e4
    logits[6, 1:] = -math.inf
    logits[7, 0] = -math.inf
    return logits


def margins(activation: torch.nn.Module, logits: torch.Tensor) -> tuple[float, float, float]:
    """Smallest entropy - floor (nats), largest probability - max_probability, and how far rounding can move either.

    They are those of the activation's fp32 output z', summed in fp64. A rounding of z' is eps |z'|. Where d = -1 - z'
    is small (tau near e), z' behaves like sqrt(2 u), u a logarithm near 0 with an absolute error of eps, hence eps / d.
    Either moves the entropy by at most that times the largest -ln p, about 1 + ln(n). The sum of n terms in fp64 comes
    on top.
    """
    with torch.no_grad():
        outputs = activation(logits)
    off_by = float(outputs.abs().amax()) + 1 / float((-1 - outputs).amin())
    classes, eps = outputs.shape[-1], torch.finfo(outputs.dtype).eps
    allowed = (eps * off_by + classes * torch.finfo(torch.float64).eps) * (1 + math.log(classes))
    top = float(outputs.double().softmax(-1).amax())
    return float(entropy(outputs).amin()) - activation.floor, top - activation.max_probability, allowed


# Values


@pytest.mark.parametrize("classes", [2, 3, 10, 1000])
@both_inverses
def test_values_are_the_equations(era, classes, inverse):
    for tau, fraction in itertools.product((2.8, 4.0, 100.0), (1e-3, 0.3, 0.99)):
        min_entropy = inside(classes, tau, fraction)
        activation = era.EntropyRegularizingActivation(classes, min_entropy, tau, inverse)
        logits, single = rows(classes), rows(classes).float()  # the logits' own rounding is not the activation's
        expected = equation(logits, min_entropy, tau, inverse)
        torch.testing.assert_close(activation(logits), expected, rtol=1e-11, atol=1e-11)
        expected = equation(single.double(), min_entropy, tau, inverse)
        torch.testing.assert_close(activation(single).double(), expected, rtol=3e-6, atol=3e-6)


def test_exact_inverse_in_many_digits(era):
    """From the smallest h that fp64 has an H0 for, to h = 1/e, where the condition number of ln q is infinite."""
    taus, fractions = (math.e, math.e * (1 + 1e-9), 2.75, 4.0, 1000.0), (1e-15, 1e-9, 0.01, 0.5, 0.999)
    for tau, fraction in itertools.product(taus, fractions):
        activation = era.EntropyRegularizingActivation(1000, inside(1000, tau, fraction), tau, "exact")
        logits = torch.zeros(1000, dtype=torch.float64)
        logits[0], logits[1] = 12.0, 11.0
        probs = logits.softmax(dim=-1)
        for got, p in zip(activation(logits)[:3].tolist(), probs[:3].tolist()):
            x = activation.slope * p + activation.offset  # e h, as fp64 has it
            with mpmath.workdps(50):
                want = mpmath.lambertw(-min(mpmath.mpf(x) / mpmath.e, mpmath.exp(-1)), -1).real
                d = max(float(-1 - want), 2e-8)
            assert abs(got - float(want)) <= 4e-16 * (1 + 1 / d) * abs(got) * 4, (tau, fraction, p)


def test_shapes_and_memory_layouts(era):
    activation = era.EntropyRegularizingActivation(10, 0.6)
    logits = torch.randn(2, 3, 4, 10)
    expected = activation(logits)
    assert torch.equal(activation(logits[1, 2, 3]), expected[1, 2, 3])
    strided = logits.transpose(0, 3).contiguous().transpose(0, 3)
    assert not strided.is_contiguous() and torch.allclose(activation(strided), expected, atol=1e-6)
    assert activation(torch.empty(0, 10, requires_grad=True)).shape == (0, 10)


@both_inverses
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_output_is_fp32_or_fp64_also_under_autocast(era, dtype, inverse):
    activation = era.EntropyRegularizingActivation(100, 1.0, inverse=inverse)
    logits = (5 * torch.randn(16, 100, generator=torch.Generator().manual_seed(0))).to(dtype).requires_grad_()
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    expected = activation(logits.detach().to(wide))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        autocast = activation(logits)
    for output in (activation(logits), activation(logits.detach()), autocast):
        assert output.dtype == wide and torch.equal(output, expected)
    autocast.sum().backward()
    assert logits.grad.dtype == dtype and logits.grad.isfinite().all()


def test_nan_and_infinite_logits_stay_in_their_row(era):
    logits = torch.zeros(4, 10)
    logits[1, 3], logits[2, 3], logits[3] = math.inf, math.nan, -math.inf
    outputs = era.EntropyRegularizingActivation(10, 0.6)(logits)
    assert outputs[0].isfinite().all() and outputs[1:].isnan().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@both_inverses
def test_order_of_the_classes_is_kept_up_to_ties(era, inverse, dtype):
    for classes, tau, fraction in itertools.product((2, 10, 1000), TAUS, (1e-6, 0.2, 0.9, 0.999999)):
        logits = rows(classes).to(dtype)
        outputs = era.EntropyRegularizingActivation(classes, inside(classes, tau, fraction), tau, inverse)(logits)
        steps = outputs.gather(-1, logits.argsort(dim=-1)).diff(dim=-1)
        rounding = torch.finfo(dtype).eps * float(outputs.abs().amax())
        if inverse == "exact":  # Newton's last digit; near tau = e, where d is small, of d itself
            rounding = 4 * (rounding + torch.finfo(dtype).eps / float((-1 - outputs).amin()))
        assert float(steps.amin()) >= -rounding


# Gradients


@both_inverses
def test_gradient_is_that_of_the_equation(era, inverse):
    for classes, tau, fraction in itertools.product((2, 10, 1000), (2.8, 4.0, 100.0), (0.01, 0.4, 0.95)):
        min_entropy = inside(classes, tau, fraction)
        activation = era.EntropyRegularizingActivation(classes, min_entropy, tau, inverse)
        logits = 3 * torch.randn(4, classes, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        weights = torch.randn(4, classes, generator=torch.Generator().manual_seed(2), dtype=torch.float64)

        def gradient(function, dtype):
            z = logits.to(dtype).requires_grad_()
            return torch.autograd.grad((function(z) * weights.to(dtype)).sum(), z)[0].double()

        want = gradient(lambda z: equation(z, min_entropy, tau, inverse), torch.float64)
        torch.testing.assert_close(gradient(activation, torch.float64), want, rtol=1e-8, atol=1e-10)
        atol = 1e-5 * float(want.abs().max())
        torch.testing.assert_close(gradient(activation, torch.float32), want, rtol=1e-3, atol=atol)


@both_inverses
@pytest.mark.parametrize("tau", [math.e, 2.8, 4.0, 50.0])
def test_first_and_second_derivatives_by_differences(era, tau, inverse):
    activation = era.EntropyRegularizingActivation(5, inside(5, tau, 0.3), tau, inverse)
    logits = torch.randn(3, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(activation, logits)
    assert torch.autograd.gradgradcheck(activation, logits)


@both_inverses
def test_functorch_transforms(era, inverse):
    activation = era.EntropyRegularizingActivation(6, 0.4, inverse=inverse)
    logits, tangents = torch.randn(2, 3, 6, dtype=torch.float64)

    def loss(z):
        return activation(z).square().sum()

    z = logits.clone().requires_grad_()
    want = torch.autograd.grad(loss(z), z)[0]
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(loss))(logits), want)
    _, derivative = torch.func.jvp(loss, (logits,), (tangents,))
    torch.testing.assert_close(derivative, (want * tangents).sum())
    hessian = torch.autograd.functional.hessian(loss, logits[0])
    torch.testing.assert_close(torch.func.hessian(loss)(logits[0]), hessian)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@both_inverses
def test_gradients_are_finite_at_the_extremes(era, inverse, dtype):
    for classes, tau in itertools.product(CLASSES, (math.e, math.nextafter(math.e, 3), 2.7183, 4.0, 1000.0)):
        low, high = entropy_range(classes, tau)
        ends = (math.nextafter(low, high), low + 1e-12, (low + high) / 2, high - 1e-12, math.nextafter(high, low))
        for min_entropy in ends:
            logits = torch.zeros(4, classes, dtype=dtype)
            logits[0, 0], logits[1, :2], logits[2, 1:] = 3e4, 3e4, -math.inf
            logits.requires_grad_()
            outputs = era.EntropyRegularizingActivation(classes, min_entropy, tau, inverse)(logits)
            assert outputs.isfinite().all(), (classes, tau, min_entropy)
            torch.nn.functional.cross_entropy(outputs, torch.full((4,), classes - 1)).backward()
            assert logits.grad.isfinite().all(), (classes, tau, min_entropy)


# Compilers and exporters with the exact inverse; test_models.py has them with the paper's, in models


def test_traced_and_exported(era):
    activation = era.EntropyRegularizingActivation(10, 0.6, inverse="exact")
    example, logits = torch.randn(4, 10), 10 * torch.randn(7, 10)
    expected = activation(logits)
    torch.testing.assert_close(torch.jit.trace(activation, example.clone().requires_grad_())(logits), expected)
    dynamic = ({0: torch.export.Dim("batch")},)
    trained = torch.nn.Sequential(torch.nn.Linear(10, 10), activation)  # logits with a gradient
    for model, strict in itertools.product((activation, trained), (True, False)):
        program = torch.export.export(model, (example,), dynamic_shapes=dynamic, strict=strict)
        torch.testing.assert_close(program.module()(logits), model(logits))

    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    file, axes = io.BytesIO(), {"z": {0: "batch"}}
    torch.onnx.export(activation, (example,), file, dynamo=False, input_names=["z"], dynamic_axes=axes)
    session = runtime.InferenceSession(file.getvalue(), providers=["CPUExecutionProvider"])
    (output,) = session.run(None, {"z": logits.numpy()})
    torch.testing.assert_close(torch.from_numpy(output), expected, rtol=2e-6, atol=2e-6)


def test_in_a_classifier_of_transformers_on_the_page(era, run_example):
    """Its loss is that of ERA's logits; its own class alone reads its files."""
    transformers = pytest.importorskip("transformers")
    left = run_example("vision/plug-in.md", "A classifier of transformers")
    model, again, tokens, labels = left["model"].eval(), left["again"], left["tokens"], left["labels"]
    floor, output = era.find_era(model).floor, model(tokens, labels=labels)
    torch.testing.assert_close(output.loss, torch.nn.functional.cross_entropy(output.logits, labels))
    assert torch.equal(again(tokens).logits, output.logits)
    for run in (model, model.to(torch.bfloat16)):  # the second is the same object, in half precision
        logits = run(tokens).logits
        assert logits.dtype == torch.float32 and entropy(logits).min() > floor - 1e-5
    plain = transformers.BertForSequenceClassification
    _, found = plain.from_pretrained("my-classifier", output_loading_info=True)
    assert sorted(found["missing_keys"]) == ["classifier.bias", "classifier.weight"]
    with pytest.raises(TypeError, match=r"num_classes = n; else put EntropyRegularizingActivation\(n, 0.3\) behind"):
        era.attach_era(plain(model.config), 0.3)
    with_number = plain(model.config)
    with_number.num_classes = 4
    with pytest.raises(TypeError, match="returned a SequenceClassifierOutput. Put EntropyReg"):
        era.attach_era(with_number, 0.3)(tokens)


def test_a_model_may_be_built_without_memory(era):
    """As transformers 5 and accelerate build it before they load its weights."""
    with torch.device("meta"):
        made = era.EntropyRegularizingActivation(10, 0.6)
    assert made.floor == era.EntropyRegularizingActivation(10, 0.6).floor > 0.6


# Feasible range


def test_a_floor_near_the_uniform_distribution_is_said(era):
    """The paper's 0.6 for ten classes leaves two classes at .55 to .45 at most."""
    with pytest.warns(UserWarning, match=r"2 classes min_entropy=0.6 keeps predictions at 0.688 .* at 0.55 or less"):
        era.EntropyRegularizingActivation(2, 0.6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        era.EntropyRegularizingActivation(10, 0.6)


@pytest.mark.parametrize("classes, tau", itertools.product((2, 10, 21841), TAUS))
def test_infeasible_entropies_are_refused(era, classes, tau):
    low, high = entropy_range(classes, tau)
    for min_entropy in (low, high, low - 1e-9, high + 1e-9, low - 100, high + 100, math.nan, math.inf, -math.inf):
        with pytest.raises(ValueError, match="not feasible") as error:
            era.EntropyRegularizingActivation(classes, min_entropy, tau)
        assert f"{low:.4f}".lstrip("-") in str(error.value) and f"{high:.4f}" in str(error.value)
    for floor in (0.0, -1.0, math.log(classes), math.log(classes) + 1, math.nan, math.inf):
        with pytest.raises(ValueError, match=f"{math.log(classes):.4f}"):
            era.calibrate_min_entropy(floor, classes, tau)


def test_other_tensors_are_refused(era):
    activation = era.EntropyRegularizingActivation(10, 0.6)
    for shape in ((), (9,), (10, 2)):
        with pytest.raises(ValueError, match=r"logits of shape \(\.\.\., 10\) expected, found \("):
            activation(torch.zeros(shape))
    for dtype in (torch.int64, torch.bool, torch.complex64):
        with pytest.raises(ValueError, match=f"floating-point logits expected, found {dtype}"):
            activation(torch.zeros(10, dtype=dtype))


@pytest.mark.parametrize(
    "setting",
    [{"num_classes": n} for n in (1, 0, -3, 10.0, True, None, "10")]
    + [{"tau": t} for t in (2.7, 1.0, 0.0, -4.0, math.nan, math.inf)]
    + [{"inverse": i} for i in ("newton", "", None)],
)
def test_other_values_are_refused(era, setting):
    (name,) = setting
    with pytest.raises(ValueError, match=name):
        era.EntropyRegularizingActivation(**{"num_classes": 10, "min_entropy": 0.6, **setting})
    with pytest.raises(ValueError, match=name):
        era.calibrate_min_entropy(**{"num_classes": 10, "floor": 0.6, **setting})


# Floor and calibration


@both_inverses
def test_floor_and_cap_in_many_digits_are_reached(era, inverse):
    for classes, tau, fraction in itertools.product((2, 10, 21841), TAUS, (1e-4, 0.3, 0.7, 0.999)):
        min_entropy = inside(classes, tau, fraction)
        activation = era.EntropyRegularizingActivation(classes, min_entropy, tau, inverse)
        want = floor_in_many_digits(classes, min_entropy, tau, inverse)
        # At tau = e the top class has h = 1/e, and the error is the square root of fp64's rounding.
        rel = 5e-8 if tau == math.e else 1e-10
        assert (activation.floor, activation.max_probability) == pytest.approx(want, rel=rel)
        assert activation.floor > min_entropy
        one_hot = torch.full((classes,), -math.inf, dtype=torch.float64)
        one_hot[0] = 0
        lowest, probability, _ = margins(activation, one_hot)
        assert abs(lowest) < 1e-9 and abs(probability) < 1e-9


@both_inverses
def test_calibration_inverts_the_floor(era, inverse):
    for classes, tau in itertools.product((2, 10, 21841), (math.e, 4.0, 100.0)):
        top = math.log(classes)
        for floor in (5e-324, 1e-300, 1e-12, 1e-6, 0.01, 0.6 * top, top - 1e-3, top - 1e-9, math.nextafter(top, 0)):
            min_entropy = era.calibrate_min_entropy(floor, classes, tau, inverse)
            found = era.EntropyRegularizingActivation(classes, min_entropy, tau, inverse).floor
            assert found == pytest.approx(floor, abs=1e-9)


# Adversarial

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


@both_inverses
@settings(deadline=None)
@given(
    counts=st.lists(st.integers(1, 7000), min_size=1, max_size=3),
    gaps=st.lists(st.floats(0, 60), min_size=3, max_size=3),
    noise=st.sampled_from([0.0, 1e-3, 1.0, 30.0]),
    dtype=st.sampled_from(DTYPES),
    tau=st.floats(math.e, 1e4) | st.sampled_from(TAUS),
    fraction=st.floats(1e-9, 1 - 1e-9),
)
def test_no_row_gets_below_the_floor(era, inverse, counts, gaps, noise, dtype, tau, fraction):
    """One class ahead of up to three groups of ties, and the same with noise.

    A smallest entropy elsewhere than at one-hot would have to be of the first form, as two free classes on a concave
    stretch can always trade probability. `make floor-search` looks longer for what is lowest.
    """
    classes = 1 + sum(counts)
    activation = era.EntropyRegularizingActivation(classes, inside(classes, tau, fraction), tau, inverse)
    levels = [torch.zeros(1)] + [torch.full((count,), -gap) for count, gap in zip(counts, itertools.accumulate(gaps))]
    logits = torch.cat(levels) + noise * torch.randn(classes, generator=torch.Generator().manual_seed(0))
    entropy, probability, allowed = margins(activation, logits.to(dtype))
    assert entropy >= -allowed and probability <= allowed
    hypothesis.target(-entropy, label="nats below the floor")
    hypothesis.target(probability, label="probability above the largest")
