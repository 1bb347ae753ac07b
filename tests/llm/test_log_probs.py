# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""era/log_probs.py against plain Python, fp64 autograd and the memory it may take."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from log_prob_rows import BOUNDS, EQUAL, described, errors, search, within
from plain_log_probs import LargestOutput, error, plain_terms, rows

from era import log_probs, log_probs_fused
from era.log_probs import (
    branch_log_probs,
    logprobs,
    policy_terms,
)
from era.log_probs_fused import fused_branch_log_probs, fused_policy_terms

pytestmark = pytest.mark.usefixtures("one_thread")

WIDTH = 151_936  # of the vocabulary of Qwen2.5


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("temperature", [1.0, 0.7, "of each row"])
@pytest.mark.parametrize("top_k", [None, 5])
@pytest.mark.parametrize("spread", [0.01, 3.0, 300.0])
def test_terms_and_gradients_equal_fp64_autograd(dtype, temperature, top_k, spread, monkeypatch):
    monkeypatch.setattr(log_probs, "_CPU_CHUNK_ELEMENTS", 3 * 1001)
    logits, labels, scale = rows(21, 1001, spread)
    exact_temperature = temperature
    if temperature == "of each row":
        temperature = torch.tensor([0.7, 0.5, 2.0]).repeat_interleave(7)
        exact_temperature = temperature.double()[:, None]
    logits = (logits + (0 if dtype == torch.bfloat16 else 100)).to(dtype)
    if top_k and logits.topk(6).values.diff().eq(0).any():
        pytest.skip("of equal logits at the border either may be kept")
    leaf, exact = logits.clone().requires_grad_(), logits.double().requires_grad_()
    found = policy_terms(leaf, labels, scale, temperature, top_k=top_k, original=True, entropy=True)
    expected = plain_terms(exact, labels, scale.double(), exact_temperature, top_k)
    unit = 1e-13 if dtype == torch.double else torch.finfo(torch.float32).eps  # the reference is in fp64 too
    for ours, theirs, bound in zip(found, expected, (4, 4, 40)):
        assert error(ours, theirs) < bound * unit
    weights = torch.randn(3, len(labels), generator=torch.Generator().manual_seed(1), dtype=torch.double)
    sum((term * w).sum() for term, w in zip(found, weights)).backward()
    sum((term * w).sum() for term, w in zip(expected, weights)).backward()
    rounding = torch.finfo(torch.bfloat16).eps if dtype == torch.bfloat16 else 20 * unit
    largest = exact.grad.abs().amax(-1, keepdim=True) + 1
    assert ((leaf.grad.double() - exact.grad).abs() / largest).max() < rounding


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 9),
    st.sampled_from([2, 3, 7, 64, 200, 1001]),
    st.sampled_from([1.0, 1.2, 2.0, 3.0]),
    st.sampled_from([0.5, 0.7, 1.0]),
    st.sampled_from([None, 1, 5]),
    st.sampled_from([torch.float32, torch.bfloat16]),
    st.integers(0, 10**6),
)
def test_branches_equal_the_terms_of_each_scale(count, vocabulary, k, temperature, top_k, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    logits = (3 * torch.randn(count, vocabulary, generator=generator)).to(dtype)
    labels = torch.randint(vocabulary, (count,), generator=generator)
    found = branch_log_probs(logits, labels, k, temperature, top_k=top_k)
    for column, scale in enumerate((1.0, k, 1 / k)):
        asked = {"top_k": top_k, "original": True, "entropy": True}
        alone = policy_terms(logits, labels, torch.full((count,), scale), temperature, **asked)
        for ours, theirs in zip((found.scaled[:, column], found.original, found.entropy), alone):
            torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)


def test_infinite_and_missing_logits_stay_in_their_rows():
    inf, nan = math.inf, math.nan
    logits = torch.tensor([[1e4, -1e4, 0.0], [-inf, 0.0, 1.0], [88.0, 88.0, 88.0], [nan, 1.0, 0.0], [3.0, 0.0, 1.0]])
    labels, scale = torch.tensor([0, 1, 2, 1, 1]), torch.tensor([2.0, 2.0, 0.5, 2.0, 2.0])
    for top_k in (None, 2):
        leaf = logits.clone().requires_grad_()
        found = policy_terms(leaf, labels, scale, top_k=top_k, original=True, entropy=True)
        sum(term.sum() for term in found).backward()
        branches = branch_log_probs(logits, labels, 1.7, top_k=top_k)
        for values in (*found, leaf.grad, *branches):
            assert values[[0, 1, 2, 4]].isfinite().all() and values[3].isnan().any()
    assert found.entropy[1].item() == pytest.approx(0.5822, abs=1e-4)  # of two logits, 0 and 1


@pytest.mark.parametrize("inplace", [False, True])
def test_rows_outside_the_mask_are_not_read(inplace):
    logits, labels, scale = rows(12, 50, 3.0)
    mask = torch.arange(12) % 3 > 0
    expected = policy_terms(logits[mask], labels[mask], scale[mask], original=True, entropy=True)
    filtered = policy_terms(logits[mask], labels[mask], scale[mask], top_k=3).scaled
    logits[~mask], labels[~mask] = math.nan, -100  # as padding may be, which is not an index
    assert torch.equal(policy_terms(logits, labels, scale, top_k=3, mask=mask).scaled[mask], filtered)
    fused = fused_policy_terms(logits.nan_to_num(), torch.eye(50), labels, scale, top_k=3, mask=mask).scaled
    assert torch.equal(fused[mask], filtered)
    leaf = logits.requires_grad_()
    found = policy_terms(leaf * 1, labels, scale, original=True, entropy=True, mask=mask, inplace_backward=inplace)
    for ours, theirs in zip(found, expected):
        assert torch.equal(ours[mask], theirs) and not ours[~mask].any()
    sum(term.sum() for term in found).backward()
    assert leaf.grad.isfinite().all() and not leaf.grad[~mask].any() and leaf.grad[mask].any(-1).all()
    branches = branch_log_probs(leaf, labels, 2.0, mask=mask)
    assert branches.scaled.isfinite().all() and not branches.entropy[~mask].any()


def test_a_top_k_of_the_whole_vocabulary_is_none():
    """To the bit, so that its accuracy is that of all logits: fp32's log_softmax errs by 6e-6 here."""
    logits, labels, scale = rows(8, 5000, 0.01)
    (expected, *_), exact = policy_terms(logits, labels, scale), plain_terms(logits.double(), labels, scale.double(), 1)
    assert error(expected, exact[0]) < 5e-7
    transposed = logits.t().contiguous().t()
    for top_k in (None, 5000, 5001):
        assert torch.equal(policy_terms(logits, labels, scale, top_k=top_k).scaled, expected)
        assert torch.equal(policy_terms(transposed, labels, scale, top_k=top_k).scaled, expected)
        branches = [branch_log_probs(logits, labels, 1.7, top_k=k).scaled for k in (None, top_k)]
        assert torch.equal(*branches)


def test_second_derivatives_are_refused():
    """Also where the incoming gradient is a constant, which torch's once_differentiable lets pass."""
    logits, labels, scale = rows(4, 20, 1.0)
    leaf = logits.requires_grad_()
    for terms in (
        policy_terms(leaf, labels, scale, entropy=True),
        fused_policy_terms(leaf, torch.eye(20), labels, scale, entropy=True),
    ):
        with pytest.raises(RuntimeError, match="no second derivatives"):
            torch.autograd.grad(terms.scaled.sum() + terms.entropy.sum(), leaf, create_graph=True)


def test_whoever_still_needs_the_logits_is_told():
    logits, labels, scale = rows(4, 20, 1.0)
    leaf = logits.requires_grad_()
    with pytest.raises(ValueError, match="inplace_backward would overwrite logits that are a leaf"):
        policy_terms(leaf, labels, inplace_backward=True)
    with pytest.raises(ValueError, match="inplace_backward would overwrite logits that are a leaf"):
        policy_terms(leaf.view(2, 2, 20), labels.view(2, 2), inplace_backward=True)
    made = leaf * 1
    square = made.square().sum()
    policy_terms(made, labels, inplace_backward=True).scaled.sum().backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        square.backward()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        terms = policy_terms(made := leaf * 1, labels, inplace_backward=True)
        terms.scaled.sum().backward(retain_graph=True)
        terms.scaled.sum().backward()


@pytest.mark.parametrize("asked", [{}, {"original": True, "entropy": True}, {"top_k": 20}])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("inplace", [False, True])
def test_no_buffer_over_tokens_and_vocabulary(asked, dtype, inplace, monkeypatch):
    monkeypatch.setattr(log_probs, "_CPU_CHUNK_ELEMENTS", 4 * 1000)
    made = torch.randn(64, 1000, dtype=dtype).requires_grad_() * 1
    labels, scale = torch.randint(1000, (64,)), torch.full((64,), 2.0)
    with LargestOutput(made.numel()) as forward:
        terms = policy_terms(made, labels, scale, 0.7, inplace_backward=inplace, **asked)
        branch_log_probs(made, labels, 2.0)
    assert forward.allocations == []
    with LargestOutput(made.numel()) as backward:
        torch.autograd.grad(sum(term.sum() for term in terms if term is not None), made)
    assert len(backward.allocations) == (0 if inplace else 1), backward.allocations


def head(vocabulary=1001, dtype=torch.double):
    """Hidden states of (3, 7) rows, a weight and a bias with a gradient; labels, scales and a mask."""
    generator = torch.Generator().manual_seed(2)
    hidden, weight, bias = (
        torch.randn(*shape, generator=generator, dtype=torch.double).to(dtype).requires_grad_()
        for shape in ((3, 7, 24), (vocabulary, 24), (vocabulary,))
    )
    labels = torch.randint(vocabulary, (3, 7), generator=generator)
    scale = torch.tensor([1.0, 2.0, 1.7])[:, None].expand(3, 7)
    return hidden, weight, bias, labels, scale, torch.rand(3, 7, generator=generator) < 0.7


def logits_of(hidden, weight, bias, softcap):
    z = torch.nn.functional.linear(hidden, weight, bias)
    return z if softcap is None else softcap * torch.tanh(z / softcap)


@pytest.fixture
def small_parts(monkeypatch):
    monkeypatch.setattr(log_probs_fused, "_CPU_HEAD_ELEMENTS", 4 * 1001)
    monkeypatch.setattr(log_probs_fused, "_WEIGHT_BLOCK", 100)


@pytest.mark.parametrize("top_k", [None, 300])
@pytest.mark.parametrize("with_bias, softcap", [(False, None), (True, 6.0)])
def test_fused_terms_and_gradients_equal_fp64_autograd(with_bias, softcap, top_k, small_parts):
    hidden, weight, bias, labels, scale, mask = head()
    bias = bias if with_bias else None
    leaves = [leaf for leaf in (hidden, weight, bias) if leaf is not None]
    asked = {"bias": bias, "softcap": softcap, "top_k": top_k, "mask": mask}
    found = fused_policy_terms(hidden, weight, labels, scale, 0.7, original=True, entropy=True, **asked)
    expected = plain_terms(logits_of(hidden, weight, bias, softcap)[mask], labels[mask], scale[mask], 0.7, top_k)
    kept = expected[0].isfinite()  # the top-k filter removes some
    assert kept.all() == (top_k is None)
    for ours, theirs in zip(found, expected):
        assert not ours[~mask].any() and error(ours[mask][kept], theirs[kept]) < 1e-13
    weights = torch.randn(3, mask.sum(), generator=torch.Generator().manual_seed(1), dtype=torch.double)
    ours = sum((term[mask] * w).sum() for term, w in zip(found, weights))
    theirs = sum((term[kept] * w[kept]).sum() for term, w in zip(expected[:1], weights))
    theirs = theirs + sum((term * w).sum() for term, w in zip(expected[1:], weights[1:]))
    for gradient, exact in zip(torch.autograd.grad(ours, leaves), torch.autograd.grad(theirs, leaves)):
        assert (gradient - exact).abs().max() < 1e-13 * (1 + exact.abs().max())

    branches = fused_branch_log_probs(hidden, weight, labels, 1.7, 0.7, **asked)
    expected = branch_log_probs(logits_of(hidden, weight, bias, softcap), labels, 1.7, 0.7, top_k=top_k, mask=mask)
    for ours, theirs in zip(branches, expected):
        assert ours.shape == theirs.shape and error(ours, theirs) < 1e-13


@pytest.mark.parametrize("autocast", [False, True])
def test_fused_in_bf16_rounds_as_the_head_does(autocast, small_parts):
    """Under autocast all is fp32 but the head's product, also in the backward pass, which runs outside of it."""
    *leaves, labels, scale, mask = head(dtype=torch.float32 if autocast else torch.bfloat16)
    hidden, weight, bias = leaves

    def scaled_and_gradients(fused):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            if fused:
                terms = fused_policy_terms(hidden, weight, labels, scale, bias=bias, softcap=6.0, mask=mask)
            else:
                logits = logits_of(hidden, weight, bias, 6.0)
                assert logits.dtype == torch.bfloat16
                terms = policy_terms(logits, labels, scale, mask=mask)
        return terms.scaled, torch.autograd.grad(terms.scaled.sum(), leaves)

    (expected, theirs), (found, ours) = map(scaled_and_gradients, (False, True))
    assert torch.equal(found, expected)
    for leaf, gradient, other in zip(leaves, ours, theirs):
        assert gradient.dtype == leaf.dtype
        assert error(gradient, other.double()) < 2 * torch.finfo(torch.bfloat16).eps


@pytest.mark.parametrize("frozen", [False, True])
def test_fused_makes_neither_logits_nor_needless_gradients(frozen, small_parts):
    hidden, weight, bias, labels, scale, mask = head(dtype=torch.float32)
    weight, bias = weight.requires_grad_(not frozen), bias.requires_grad_(not frozen)
    hidden = torch.where(mask.unsqueeze(-1), hidden, torch.nan)  # rows outside the mask are in no product
    with LargestOutput(labels.numel() * len(weight)) as forward:
        terms = fused_policy_terms(hidden, weight, labels, scale, bias=bias, original=True, entropy=True, mask=mask)
        fused_branch_log_probs(hidden, weight, labels, 2.0, bias=bias, mask=mask)
    assert forward.allocations == []
    needed = [leaf for leaf in (hidden, weight, bias) if leaf.requires_grad]
    with LargestOutput(weight.numel()) as backward:
        gradients = torch.autograd.grad(sum(term.sum() for term in terms), needed)
    assert len(backward.allocations) == (0 if frozen else 1), backward.allocations
    assert all(gradient.isfinite().all() and gradient.any() for gradient in gradients)
    assert not gradients[0][~mask].any()


def test_wrong_arguments_are_named():
    logits, labels = torch.zeros(2, 3, 4), torch.zeros(2, 3, dtype=torch.long)
    for word, use in {
        "labels have": lambda: logprobs(logits, labels[0], top_k=2),
        "logit_scale has": lambda: logprobs(logits, labels, torch.ones(3)),
        "temperature has": lambda: policy_terms(logits, labels, temperature=torch.ones(2)),
        "mask has": lambda: branch_log_probs(logits, labels, 2.0, mask=torch.ones(3, 2)),
        "logits are torch.int64": lambda: policy_terms(logits.long(), labels),
    }.items():
        with pytest.raises(ValueError, match=word):
            use()
    for label in (-1, 4):
        with pytest.raises(RuntimeError, match=f"index {label} is out of bounds"):
            policy_terms(logits, labels + label)
    for k in (0.5, math.nan, math.inf):
        with pytest.raises(ValueError, match=f"k is {k}; expected"):
            branch_log_probs(logits, labels, k)
    for top_k in (0, 2.0, True):
        with pytest.raises(ValueError, match=f"top_k is {top_k}; expected"):
            fused_policy_terms(logits, torch.zeros(5, 4), labels, top_k=top_k)


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.nan, math.inf, -math.inf])
def test_scales_and_temperatures_out_of_range_are_refused(wrong):
    logits, labels = torch.zeros(2, 3, 4), torch.zeros(2, 3, dtype=torch.long)
    values, mask = torch.ones(2, 3), torch.ones(2, 3)
    values[1, 2] = wrong
    for use in (
        lambda value, **more: policy_terms(logits, labels, temperature=value, **more),
        lambda value, **more: branch_log_probs(logits, labels, 2.0, value, **more),
        lambda value, **more: fused_policy_terms(logits, torch.zeros(5, 4), labels, temperature=value, **more),
        lambda value, **more: policy_terms(logits, labels, scale=value, **more),
    ):
        for value in (wrong, values):
            with pytest.raises(ValueError, match=f"(temperature|logit_scale) is {wrong}; expected"):
                use(value, mask=mask)
        use(values, mask=mask * (values == 1))


# Compiled, as calls with many logits are


@pytest.fixture
def compiled(monkeypatch):
    """Compiles for few logits too, and fails where torch falls back to running them uncompiled."""
    monkeypatch.setattr(log_probs, "_COMPILED_FROM_ELEMENTS", 0)
    monkeypatch.setattr(log_probs, "_can_compile", True)
    yield
    assert log_probs._can_compile


@pytest.mark.parametrize(
    "dtype, asked",
    [
        (torch.float32, {"original": True, "entropy": True}),
        (torch.bfloat16, {}),
        (torch.bfloat16, {"top_k": 5, "original": True}),
    ],
)
def test_compiled_terms_are_the_same(dtype, asked, compiled, monkeypatch):
    """Rows of NaN and -inf, rows outside the mask, out of place and in place, in six parts."""
    for chunk in ("_CPU_CHUNK_ELEMENTS", "_COMPILED_CHUNK_ELEMENTS"):
        monkeypatch.setattr(log_probs, chunk, 4 * WIDTH)
    logits, labels, scale = rows(23, WIDTH, 3.0)
    logits[3, 7], logits[5, 6000:] = math.nan, -math.inf
    mask, temperature = torch.arange(23) % 7 > 0, torch.linspace(0.5, 1.5, 23)
    leaf, found = logits.to(dtype).requires_grad_(), []
    for compile, inplace in ((False, False), (True, False), (True, True)):
        made = leaf * 1
        terms = policy_terms(
            made, labels, scale, temperature, mask=mask, inplace_backward=inplace, compile=compile, **asked
        )
        terms = [term for term in terms if term is not None]
        (gradient,) = torch.autograd.grad(sum((i + 1) * term.sum() for i, term in enumerate(terms)), made)
        assert (made._version > 0) == inplace
        found.append((*terms, gradient))
    bounds = [1e-6] * len(terms) + [1e-6 if dtype == torch.float32 else torch.finfo(dtype).eps]
    for plain, out_of_place, in_place, bound in zip(*found, bounds):
        torch.testing.assert_close(out_of_place, in_place, rtol=0, atol=0, equal_nan=True)
        torch.testing.assert_close(out_of_place, plain, rtol=bound, atol=bound, equal_nan=True)


def test_one_compilation_serves_any_number_of_rows(compiled, monkeypatch):
    """And more vocabularies than the eight variants after which torch would go on without compiling."""
    monkeypatch.setattr(log_probs, "_compiler", lambda f, threads: torch.compile(f, fullgraph=True, backend="eager"))
    counters = torch._dynamo.utils.counters["stats"]
    before = counters["unique_graphs"]
    for count, vocabulary in [(4, 501), (9, 501), (23, 501), *((4, 502 + i) for i in range(9))]:
        branch_log_probs(*rows(count, vocabulary, 3.0)[:2], 2.0)
    assert counters["unique_graphs"] == before + 10


def test_a_compiled_loss_of_the_users_has_the_formulas_in_it(compiled):
    logits, labels, scale = rows(4, 50, 3.0)
    loss = torch.compile(lambda z: policy_terms(z, labels, scale, entropy=True).scaled.sum(), backend="eager")
    torch.testing.assert_close(loss(logits), policy_terms(logits, labels, scale, compile=False).scaled.sum())
    torch._dynamo.reset()  # what this backend made of the formulas


def test_without_a_compiler_it_is_said_once(compiled, monkeypatch, caplog):
    logits, labels, scale = rows(9, 777, 3.0)
    expected = policy_terms(logits, labels, scale, compile=False).scaled
    with torch._inductor.config.patch({"cpp.cxx": ("no-such-compiler",)}):
        for _ in range(2):
            assert torch.equal(policy_terms(logits, labels, scale).scaled, expected)
    (said,) = (record.getMessage() for record in caplog.records if record.name == log_probs.__name__)
    assert "torch.compile failed" in said and "install g++" in said and "era.compile" in said
    assert not log_probs._can_compile and log_probs.backend("cpu") == "torch"
    log_probs._can_compile = True


# Against fp64 at the width of a vocabulary


@pytest.mark.parametrize("row", EQUAL, ids=lambda row: f"T {row['temperature']:.3g}, scale {row['scale']}")
@pytest.mark.parametrize("compile", [False, True])
def test_rows_of_many_equal_logits(row, compile, compiled):
    for quantity, found in errors(row, WIDTH, compile=compile).items():
        assert found <= BOUNDS["torch"][quantity], quantity


@pytest.mark.search
def test_largest_errors_of_a_search(say, compiled):
    """`make log-prob-search`."""
    count, worst = search(120, WIDTH)
    for line in described(count, worst, BOUNDS["torch"]):
        say(line)
    assert within(worst, BOUNDS["torch"])
