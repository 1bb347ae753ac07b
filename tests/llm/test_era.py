# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""era/language.py against independent computations in plain Python and fp64."""

import functools
import inspect
import math
from fractions import Fraction
from types import SimpleNamespace

import eq_llm
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

responses = st.integers(1, 12).flatmap(
    lambda n: st.lists(
        st.tuples(
            st.lists(st.floats(0, 12, width=32), min_size=n, max_size=n),
            st.lists(st.booleans(), min_size=n, max_size=n),
            st.lists(st.sampled_from([-2.5, -1e-6, 0.0, 1e-6, 0.35, 1.0, 2.47]), min_size=n, max_size=n),
        ),
        min_size=1,
        max_size=5,
    )
)


@settings(max_examples=150, deadline=None)
@given(
    responses,
    st.sampled_from([0.01, 0.2, 0.25, 0.5, 0.99, 1.0]),
    st.sampled_from([torch.bool, torch.int64, torch.float32]),
)
def test_response_entropy_equals_its_definition(era, rows, fraction, mask_dtype):
    entropy = torch.tensor([r[0] for r in rows], dtype=torch.double)
    mask = torch.tensor([r[1] for r in rows]).to(mask_dtype)
    expected = torch.tensor(eq_llm.response_entropies(entropy, mask, fraction), dtype=torch.double)
    torch.testing.assert_close(
        era.response_entropy(entropy, mask, fraction), expected, equal_nan=True, rtol=1e-12, atol=0
    )


def test_the_count_of_forking_tokens_for_every_length(era):
    """In floating point 0.29 x 100 is 28.999999999999996: the listing's floor must not lose a token."""
    length = torch.arange(10_001)
    for fraction in ("0.2", "0.29", "0.001", "0.123456789", "1", "1/3", *(f"{n / 100}" for n in range(1, 100))):
        exact = Fraction(fraction)
        expected = [min(n, max(1, math.floor(exact * n))) for n in range(10_001)]
        assert era.forking_count(length, float(exact)).tolist() == expected


@pytest.mark.parametrize("dtype, length", [(torch.bfloat16, 601), (torch.float16, 16383)])
def test_half_precision_counts_and_averages_exactly(era, dtype, length):
    """16,383 entropies of 5 nats have a sum beyond fp16."""
    mask, entropy = torch.ones(2, length, dtype=dtype), torch.full((2, length), 5.0, dtype=dtype)
    for fraction in (0.2, 1.0):
        top, rest = era.split_entropy(entropy, mask, fraction)
        chosen = {"log_prob": -entropy, "token_entropy": entropy, "advantages": mask, "of_trainer": mask}
        sums = era.metric_sums(top, rest, mask, mask + 1, **chosen, low=0.45, high=3.0, top_fraction=fraction)
        count = math.floor(Fraction(str(fraction)) * length)
        counts = [10, 0, 2, 2, 2 * length, 2 * length, 10 * count, 2 * count]
        counts += [10 * (length - count), 2 * (length - count)]
        assert top.dtype == torch.float32 and sums[:10].tolist() == counts


SCALE, SUMS = {"low": 0.45, "high": 3.0, "k": 2.0}, {"low": 0.45, "high": 3.0, "top_fraction": 0.2}
OUT_OF_RANGE = [  # of every function, the values that its docstring excludes
    *(("logit_scale", SCALE | {"k": k}) for k in (0.5, 0.0, -2.0, math.inf, math.nan)),
    *(("logit_scale", SCALE | {"low": low}) for low in (4.0, math.nan, math.inf, -math.inf)),
    *(("logit_scale", SCALE | {"high": high}) for high in (0.1, math.nan)),
    *(("logit_scale", SCALE | {"min_advantage": bound}) for bound in (-0.1, math.nan, math.inf)),
    *(("metric_sums", SUMS | wrong) for wrong in ({"low": 4.0}, {"high": math.nan}, {"top_fraction": 0.0})),
    *(
        (name, {"top_fraction": fraction})
        for name in ("split_entropy", "response_entropy", "forking_count")
        for fraction in (0.0, -0.2, 1.1, math.nan)
    ),
]


@pytest.mark.parametrize("name, arguments", OUT_OF_RANGE, ids=str)
def test_ranges_are_held(era, name, arguments):
    h, tokens = torch.ones(2), torch.ones(2, 3)
    tensors = {"logit_scale": (h, tokens, tokens), "metric_sums": (h, h, tokens, tokens), "forking_count": (h,)}
    names = ("log_prob", "token_entropy", "advantages", "of_trainer")
    chosen = dict.fromkeys(names, tokens) if name == "metric_sums" else {}
    with pytest.raises(ValueError, match=r"^(low|high|k|min_advantage|top_fraction) is .*; expected"):
        getattr(era, name)(*tensors.get(name, (tokens, tokens)), **chosen, **arguments)


OF_RESPONSES = {"response_entropy": ["logit_scale"], "entropy": ["metric_sums"], "rest": ["metric_sums"]}


@pytest.mark.parametrize("shape", [(), (1,), (3,), (1, 3), (3, 1), (4, 3), (3, 3, 1)], ids=str)
@pytest.mark.parametrize(
    "name", ["logit_scale", "split_entropy", "response_entropy", "metric_sums", "entropy_weight", "entropy_up"]
)
def test_no_tensor_is_broadcast(era, name, shape):
    """3 responses of 3 tokens, so that torch would take many of the shapes."""
    function, tensors = getattr(era, name), {}
    fields = inspect.signature(function).parameters
    for field, parameter in fields.items():
        if "Tensor" in str(parameter.annotation) and parameter.default is inspect.Parameter.empty:
            tensors[field] = torch.ones(3) if name in OF_RESPONSES.get(field, []) else torch.ones(3, 3)
    numbers = {field: value for field, value in (SCALE | SUMS).items() if field in fields}
    function(**tensors, **numbers)
    for field, right in tensors.items():
        if shape != right.shape:
            with pytest.raises(ValueError, match=r"shape.* is \(.*\); expected \("):
                function(**(tensors | {field: torch.ones(shape)}), **numbers)


def test_the_advantages_of_the_loss_are_divided_and_weighed(era):
    advantages, scale = torch.tensor([[2.0, -1.0, 0.0, -3.0]]), torch.tensor([[4.0, 1.0, 1.0, 1.0]])
    config = functools.partial(SimpleNamespace, enable=True, scale_advantages=False, negative_weight=1.0)
    assert era.loss_advantages(advantages, scale, config()) is advantages
    assert era.loss_advantages(advantages, 1, config(enable=False, negative_weight=0.5)) is advantages
    for fields, expected in (
        ({"scale_advantages": True}, [0.5, -1.0, 0.0, -3.0]),
        ({"negative_weight": 0.25}, [2.0, -0.25, 0.0, -0.75]),
        ({"negative_weight": 0.0, "scale_advantages": True}, [0.5, 0.0, 0.0, 0.0]),
    ):
        assert era.loss_advantages(advantages, scale, config(**fields)).tolist() == [expected]
        assert advantages.tolist() == [[2.0, -1.0, 0.0, -3.0]]
    with pytest.raises(ValueError, match=r"advantages is \(1,\); expected \(1, 4\)"):
        era.loss_advantages(torch.ones(1), scale, config(scale_advantages=True))


@pytest.mark.parametrize(
    "k, scale_advantages, negative_weight",
    [(2.0, False, 1.0), (8.0, False, 1.0), (3.0, True, 1.0), (2.0, False, 0.5), (1.0, False, 0.0)],
)
def test_up_and_down_are_the_first_order_changes_of_the_entropy(era, k, scale_advantages, negative_weight):
    """Of one context, whose tokens occur as often as they are likely: the two metrics are then exact."""
    counts = torch.tensor([1, 2, 3, 4, 10, 44])  # of 64
    p = (counts / 64).double()
    z, entropy = p.log().requires_grad_(), -(p * p.log()).sum()
    slope = torch.autograd.grad(-(z.softmax(-1) * z.log_softmax(-1)).sum(), z)[0]
    actions = torch.arange(6).repeat_interleave(counts)

    def measured(actions, of_trainer):
        advantages = of_trainer.clamp(min=0) + negative_weight * of_trainer.clamp(max=0)
        mask, h = torch.ones(1, len(actions)), entropy.expand(1, len(actions))
        top, rest = era.split_entropy(h, mask, 1.0)
        scale = era.logit_scale(top, advantages, mask, low=9.0, high=9.0, k=k)
        scaled = (z.detach() * scale.unsqueeze(-1)).log_softmax(-1)
        if scale_advantages:
            advantages = advantages / scale
        chosen = {"log_prob": p.log()[actions][None], "token_entropy": h, "advantages": advantages}
        log_scaled = scaled.gather(-1, actions[None, :, None]).squeeze(-1)
        up = era.entropy_up(era.entropy_weight(**chosen, scale=scale), chosen["log_prob"], log_scaled)
        bounds = {"low": 9.0, "high": 9.0, "top_fraction": 1.0}
        sums = era.metric_sums(top, rest, mask, scale, **chosen, of_trainer=of_trainer, **bounds, up=up)
        return era.update_metrics(sums), (scale * advantages)[0], scaled.exp()[0]

    both = torch.cat([actions, actions])  # each token as often right as wrong: up alone does not depend on which
    found, weight, scaled = measured(both, torch.tensor([1.5, -0.7]).double().repeat_interleave(64)[None])
    flattening = (torch.where(weight > 0, weight, 0).unsqueeze(-1) * (p - scaled)).mean(0)
    assert found["era/entropy_up"] == pytest.approx((flattening @ slope).item(), rel=1e-12)
    assert (found["era/entropy_up"] > 0) == (k > 1) and found["era/entropy_down"] == pytest.approx(0, abs=1e-12)
    advantages = torch.tensor([0.3, -1.0, 1.2, -0.4, -2.0, 0.8]).double()[actions]
    found, weight, _ = measured(actions, advantages[None])
    gradient = (weight.unsqueeze(-1) * (torch.nn.functional.one_hot(actions) - p)).mean(0)
    assert found["era/entropy_down"] == pytest.approx(-(gradient @ slope).item(), rel=1e-12)
    assert found["era/entropy_down"] > 0


def test_advice_comes_once_for_each_loss_of_the_bound(era):
    """At the 20th update in a row below it, if it is far below by then; and never where ERA only logs."""

    def told(entropies, k=2.0, negative_weight=1.0, start=0.5):
        below, config = era.BelowLow("era_"), SimpleNamespace(low=0.5, k=k, negative_weight=negative_weight)
        assert not below.advice(start, config)
        lines = [below.advice(one, config) for one in entropies]
        return [i for i, line in enumerate(lines, 1) if line], below.updates, "".join(lines)

    lost = [0.3] * 19 + [math.nan] + [0.3] * 5
    assert told(lost)[:2] == ([21], 24)
    assert told([*lost, 0.6, *lost])[:2] == ([21, 47], 24)
    assert told([0.45] * 30 + [0.39] * 5)[:2] == ([31], 35)  # until then it holds, a little below low
    assert told([0.3] * 19 + [0.5] + [0.3] * 19)[0] == told(lost, k=1.0)[0] == []
    expected = ("below era_low=0.5 for 20 updates", "is 0.3,", "era_k=2 does not hold", "raise era_k, or try era_neg")
    assert all(part in told(lost)[2] for part in expected)
    assert "negative" not in told(lost, negative_weight=0.0)[2] and "raise era_k" in told(lost, negative_weight=0.0)[2]
    # Where ERA never had the bound, it has not lost it.
    never = told(lost, start=0.4)[2]
    assert "not above since" in never and "set era_low to 0.3 of the H_resp there" in never and "raise" not in never


def test_top_and_rest_partition_the_response(era):
    torch.manual_seed(0)
    entropy, mask = torch.rand(50, 37, dtype=torch.double), torch.rand(50, 37) < 0.7
    top, rest = era.split_entropy(entropy, mask, 0.2)
    length = mask.sum(-1)
    count = era.forking_count(length, 0.2)
    torch.testing.assert_close(top * count + rest * (length - count), (entropy * mask).sum(-1))
    assert (top >= rest).all()


def test_values_outside_the_mask_never_matter(era):
    entropy, mask = torch.rand(4, 9), torch.tensor([[1] * 5 + [0] * 4]).expand(4, 9)
    expected = era.response_entropy(entropy, mask)
    for poison in (math.nan, math.inf, -math.inf, 1e9):
        assert torch.equal(era.response_entropy(entropy.masked_fill(mask == 0, poison), mask), expected)


def test_nan_inside_the_mask_is_not_hidden(era):
    entropy = torch.tensor([[1.0, math.nan, 0.5], [1.0, 2.0, 0.5]])
    h = era.response_entropy(entropy, torch.ones(2, 3))
    assert h[0].isnan() and h[1] == 2.0
    scale = era.logit_scale(h, torch.ones(2, 3), torch.ones(2, 3), low=5.0, high=6.0, k=2.0)
    assert scale.tolist() == [[1, 1, 1], [2, 2, 2]]


@settings(max_examples=150, deadline=None)
@given(
    responses,
    st.sampled_from([(0.45, 3.0), (0.2, math.inf), (0.0, 0.0), (2.0, 2.0)]),
    st.sampled_from([1.0, 1.25, 2.0, 3.0]),
    st.sampled_from([0.0, 0.3, 1.0]),
)
def test_logit_scale_equals_eq_llm(era, rows, bounds, k, min_advantage):
    (low, high), mask = bounds, torch.tensor([r[1] for r in rows])
    advantages = torch.tensor([r[2] for r in rows], dtype=torch.double)
    h = era.response_entropy(torch.tensor([r[0] for r in rows], dtype=torch.double), mask)
    scale = era.logit_scale(h, advantages, mask, low=low, high=high, k=k, min_advantage=min_advantage)
    assert torch.equal(scale, eq_llm.decide(h.tolist(), advantages, mask, low, high, k, min_advantage))


def test_the_bounds_themselves_are_not_scaled(era):
    """Eq. llm has strict inequalities on both sides."""
    h, ones = torch.tensor([0.5, 3.0]), torch.ones(2, 2)
    assert torch.equal(era.logit_scale(h, ones, ones, low=0.5, high=3.0, k=2.0), ones)


def test_scales_of_bf16_advantages_are_fp32(era):
    scale = era.logit_scale(
        torch.zeros(1), torch.ones(1, 2, dtype=torch.bfloat16), torch.ones(1, 2), low=1, high=2, k=1.7
    )
    assert scale.dtype == torch.float32 and scale.tolist() == [[pytest.approx(1.7, rel=1e-6)] * 2]


def test_the_entropy_coefficient_follows_skywork(era):
    """c_k I{e_k <= target}; c rises below the target, falls above it, and never below 0."""

    def step(coeff, entropy):
        return era.next_coefficient(coeff, entropy, target=0.6, delta=0.1)

    assert step(0.2, 0.5) == (0.2, pytest.approx(0.3)) and step(0.2, 0.7) == (0.0, pytest.approx(0.1))
    assert step(0.2, 0.6) == (0.2, 0.2) and step(0.05, 0.7) == (0.0, 0.0) and step(0.2, math.nan) == (0.0, 0.2)
