# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""era/language.py against independent computations in plain Python and fp64."""

import dataclasses
import inspect
import math
import re
from fractions import Fraction

import eq_llm
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from era.language_config import EraConfig

responses = st.integers(1, 12).flatmap(
    lambda n: st.lists(
        st.tuples(
            st.lists(st.floats(0, 12, width=32), min_size=n, max_size=n),
            st.lists(st.booleans(), min_size=n, max_size=n),
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
        expected = [min(n, max(1, n * exact.numerator // exact.denominator)) for n in range(10_001)]
        assert era.forking_count(length, float(exact)).tolist() == expected


@pytest.mark.parametrize("dtype, length", [(torch.bfloat16, 601), (torch.float16, 16383)])
def test_half_precision_counts_and_averages_exactly(era, dtype, length):
    """16,383 entropies of 5 nats have a sum beyond fp16."""
    mask, entropy = torch.ones(2, length, dtype=dtype), torch.full((2, length), 5.0, dtype=dtype)
    for fraction in (0.2, 1.0):
        found = era.decide(entropy, -mask, mask, mask, EraConfig(enable=True, top_fraction=fraction))
        count = math.floor(Fraction(str(fraction)) * length)
        of_responses, of_tokens = [10, 2, 0, 2], [2 * length, 2 * length, 0]
        of_split = [10 * count, 2 * count, 10 * (length - count), 2 * (length - count)]
        assert found.sums.stacked().tolist() == [*of_responses, *of_tokens, *of_split]
        assert found.response_entropy.dtype == torch.float32


SCALE = {"low": 0.45, "high": 3.0, "k": 2.0}
OUT_OF_RANGE = [  # of every function, a value for each of its arguments; test_config.py has the ranges
    *(("logit_scale", SCALE | wrong) for wrong in ({"k": 0.5}, {"low": 4.0}, {"high": 0.1}, {"min_advantage": -0.1})),
    *((name, {"top_fraction": 1.1}) for name in ("split_entropy", "response_entropy", "forking_count")),
]


@pytest.mark.parametrize("name, arguments", OUT_OF_RANGE)
def test_ranges_are_held(era, name, arguments):
    h, tokens = torch.ones(2), torch.ones(2, 3)
    tensors = {"logit_scale": (h, tokens, tokens), "forking_count": (h,)}
    with pytest.raises(ValueError, match=r"^(low|high|k|min_advantage|top_fraction) is .*; expected"):
        getattr(era, name)(*tensors.get(name, (tokens, tokens)), **arguments)


NOT_TENSORS = SCALE | {"top_fraction": 0.2, "era": EraConfig(enable=True, hold=True)}


@pytest.mark.parametrize("shape", [(), (1,), (3,), (1, 3), (3, 1), (4, 3), (3, 3, 1)], ids=str)
@pytest.mark.parametrize("name", ["logit_scale", "split_entropy", "response_entropy", "decide", "loss_advantages"])
def test_no_tensor_is_broadcast(era, name, shape):
    """3 responses of 3 tokens, so that torch would take many of the shapes."""
    function, tensors = getattr(era, name), {}
    fields = inspect.signature(function).parameters
    for field, parameter in fields.items():
        if "Tensor" in str(parameter.annotation) and parameter.default is inspect.Parameter.empty:
            is_of_responses = (name, field) == ("logit_scale", "response_entropy")
            tensors[field] = torch.ones(3) if is_of_responses else torch.ones(3, 3)
            tensors[field] = tensors[field].bool() if field == "dropped" else tensors[field]
            tensors[field] = -tensors[field] if field == "log_probs" else tensors[field]
    others = {field: value for field, value in NOT_TENSORS.items() if field in fields}
    function(**tensors, **others)
    for field, right in tensors.items():
        if shape != right.shape:
            with pytest.raises(ValueError, match=r"shape.* is \(.*\); expected \("):
                function(**(tensors | {field: torch.ones(shape)}), **others)


@pytest.mark.parametrize("k", [1.0, 3.0])
@pytest.mark.parametrize("fields", [{}, {"hold": True}, {"scale_advantages": True, "hold": True, "min_advantage": 1.0}])
def test_a_decision_is_that_of_the_definitions(era, k, fields):
    """One H_resp is at low: there the response is left alone. Outside the mask anything may stand."""
    torch.manual_seed(1)
    entropy, mask = torch.rand(40, 9, dtype=torch.double), torch.rand(40, 9) < 0.7
    advantages = torch.randn(40, 1, dtype=torch.double).expand(40, 9) * torch.randint(0, 2, (40, 9))
    mask[0], advantages[1, 2] = False, -1.5
    h_resp = eq_llm.response_entropies(entropy, mask)
    low, high = sorted(h_resp[1:])[13], 0.97
    log_p = -2 * torch.rand(40, 9, dtype=torch.double)
    config = EraConfig(enable=True, k=k, low=low, high=high, **fields)
    tensors = (tensor.masked_fill(~mask, math.nan) for tensor in (entropy, log_p))
    found = era.decide(*tensors, advantages, mask, config)
    scale = eq_llm.decide(h_resp, advantages, mask, low, high, k, fields.get("min_advantage", 0))
    dropped = eq_llm.dropped(entropy, log_p, advantages, mask, low, high) & fields.get("hold", False)
    of_loss = advantages.masked_fill(dropped, 0) / (scale if "scale_advantages" in fields else 1)
    is_above = torch.tensor(h_resp)[:, None] > high
    assert not fields or min((dropped & side).sum() for side in (is_above, ~is_above)) > 5
    for ours, expected in ((found.scale, scale), (found.dropped, dropped), (found.advantages, of_loss)):
        torch.testing.assert_close(ours, expected, rtol=1e-15, atol=0)
    assert (found.advantages is advantages) == (not fields)
    wanted = eq_llm.metrics(entropy, mask, scale, dropped, low, high)
    assert era.update_metrics(found.sums.stacked()) == pytest.approx(wanted, rel=1e-12)
    off = era.decide(entropy, log_p, advantages, mask, dataclasses.replace(config, enable=False))
    assert (off.scale == 1).all() and not off.dropped.any() and off.advantages is advantages


def test_advice_comes_once_when_most_updates_lost_the_bound(era):
    """Of the last 50, of which there must be 20; and never where ERA only logs."""

    def told(entropies, start=0.5, **fields):
        below, config = era.BelowLow("era_"), EraConfig(enable=True, low=0.5, **fields)
        lines = [below.advice(one, config) for one in (start, *entropies)]
        return [i for i, line in enumerate(lines) if line], below.fraction, "".join(lines)

    lost = [0.3] * 18 + [math.nan] + [0.3] * 5
    assert told(lost)[:2] == ([20], 23 / 24)
    assert told([0.45] * 60 + lost)[:2] == ([], 23 / 50)  # it stays a little below low, and is kept
    assert told([0.45] * 60 + [0.3, 0.3, 0.6] * 30)[:2] == ([98], 0.66)
    assert told(lost, k=1.0)[0] == []
    assert era.BelowLow().fraction != era.BelowLow().fraction, "nothing was counted"
    expected = ("in 19 of the last 20 updates", "0.1 nats below era_low=0.5", "is 0.3: try era_hold=True and era_k=8 (")
    assert all(part in told(lost)[2] for part in expected)
    further = {
        "try era_hold=True (": {"k": 8.0},
        "try era_k=8 (": {"k": 2.0, "hold": True},
        "lower the learning rate, or try era_scale_advantages=True (": {"k": 8.0, "hold": True},
        "lower the learning rate (": {"k": 9.0, "hold": True, "scale_advantages": True},
    }
    for steps, fields in further.items():
        assert steps in told(lost, **fields)[2]
    # Where ERA never had the bound, it has not lost it.
    never = told(lost, start=0.3)[2]
    assert "since this training was started" in never and "set era_low to 0.3 of the H_resp there" in never


def test_nan_inside_the_mask_is_not_hidden_and_ends_no_training_of_a_framework(era):
    entropy = torch.tensor([[1.0, math.nan, 0.5], [1.0, 2.0, 0.5]])
    h, ones = era.split_entropy(entropy, torch.ones(2, 3))[0], torch.ones(2, 3)
    assert h[0].isnan() and h[1] == 2.0
    found = era.decide(entropy, -ones, ones, ones, EraConfig(enable=True, low=5.0, high=6.0), check=False)
    assert found.scale.tolist() == [[1, 1, 1], [2, 2, 2]]


# What an update of a loop of one's own is given, a token's and its response's.
RIGHT = {
    "entropy": torch.tensor([[1.0, 2.0]]),
    "log_probs": torch.tensor([[-0.7, -2.0]]),
    "advantages": torch.tensor([[0.9, -0.9]]),
    "mask": torch.tensor([[True, True]]),
}
WRONG = [  # what it is given by mistake, and what is said of `decide`; NaN is of the second token
    ({"entropy": "log_probs", "log_probs": "entropy"}, "token_entropy[0, 0] is -0.7; expected an entropy in nats"),
    ({"log_probs": "advantages", "advantages": "log_probs"}, "log_probs[0, 0] is 0.9; expected a log-prob, at most 0"),
    ({"entropy": "mask", "mask": "entropy"}, "the mask[0, 1] is 2; expected 0 or 1"),
    ({"advantages": "mask", "mask": "advantages"}, "the mask[0, 0] is 0.9; expected 0 or 1"),
    ({"entropy": None}, "token_entropy[0, 1] is nan; expected an entropy"),
    ({"log_probs": None}, "log_probs[0, 1] is nan; expected a log-prob"),
    ({"advantages": None}, "advantages[0, 1] is nan; expected a finite number"),
]


@pytest.mark.parametrize("mistake, said", WRONG)
def test_values_of_another_argument_are_refused(era, mistake, said):
    given = {name: RIGHT[mistake.get(name, name) or name].clone() for name in RIGHT}
    for name in [name for name, other in mistake.items() if other is None]:
        given[name][0, 1] = math.nan
    entropy, log_probs, advantages, mask = given.values()
    config = EraConfig(enable=True)
    with pytest.raises(ValueError, match=re.escape(said)):
        era.decide(*given.values(), config)
    era.decide(*given.values(), config, check=False)
    if "log_probs" not in mistake or "entropy" in mistake:
        with pytest.raises(ValueError, match=re.escape(said.removeprefix("token_"))):
            era.logit_scale(era.response_entropy(entropy, mask), advantages, mask, **SCALE)
    era.decide(*RIGHT.values(), config)
    with pytest.raises(ValueError, match=r"response_entropy\[0\] is -1.35; expected an entropy"):
        era.logit_scale(RIGHT["log_probs"].mean(-1), RIGHT["advantages"], RIGHT["mask"], **SCALE)


def test_entropies_that_are_rounded_below_0_are_entropies(era):
    """Of bf16 logits; and outside the mask anything may stand."""
    entropy = torch.tensor([[-0.3, 2.0, math.nan]])
    assert era.response_entropy(entropy, torch.tensor([[1, 1, 0]]), 0.5) == 2.0


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
