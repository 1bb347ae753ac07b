# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""era.slime in slime's own loss function, on one and two tensor-parallel processes, against fp64 arithmetic.

SLIME=CHECKOUT says where slime's sources are; they need megatron-core, which the environment of verl 0.9 has.
"""

import io
import os
import sys
from types import SimpleNamespace

import pytest

if not os.environ.get("SLIME"):
    pytest.skip("SLIME=CHECKOUT names slime's sources", allow_module_level=True)
sys.path.insert(0, os.environ["SLIME"])

import torch
import torch.distributed as dist
import torch.multiprocessing
from llm_helpers import refused
from megatron.core import mpu
from slime.backends.megatron_utils import loss as upstream

from era.slime import REFUSED, config_of

VOCABULARY, LOW, HIGH, TEMPERATURE, FRACTION = 32, 1.5, 2.5, 0.7, 0.25
TOTALS, LENGTHS = [9, 12, 10, 7], [6, 8, 7, 3]


def arguments(**changes):
    era = {"enable": True, "low": LOW, "high": HIGH, "top_fraction": FRACTION}
    given = dict(
        era=era, loss_type="custom_loss", custom_loss_function_path="era.slime.loss", rollout_temperature=TEMPERATURE,
        rollout_top_p=1.0, log_probs_chunk_size=-1, allgather_cp=False, context_parallel_size=1, entropy_coef=0.0,
        use_kl_loss=False, kl_loss_coef=0.0, use_rollout_logprobs=False, use_tis=False, get_mismatch_metrics=False,
        use_opsm=False, keep_old_actor=False, save_debug_train_data=None, advantage_estimator="grpo", eps_clip=0.2,
        eps_clip_high=0.28, eps_clip_c=None, calculate_per_token_loss=False, recompute_loss_function=False,
        rollout_batch_size=2, n_samples_per_prompt=2, global_batch_size=4, use_unbiased_kl=False,
    )  # fmt: skip
    return SimpleNamespace(**given | changes)


def micro_batch():
    """A sharp response, one between, a flat one and one that does not count; and 3 rows of padding."""
    make = torch.Generator().manual_seed(0)
    sharpness = torch.cat([torch.full((n,), s) for n, s in zip(TOTALS, (6.0, 1.6, 0.1, 8.0))] + [torch.ones(3)])
    logits = torch.randn(1, sum(TOTALS) + 3, VOCABULARY, generator=make) * sharpness[:, None]
    tokens = [torch.randint(VOCABULARY, (n,), generator=make) for n in TOTALS]
    masks = [torch.ones(n, dtype=torch.int) for n in LENGTHS]
    masks[0][2], masks[3][:] = 0, 0  # a tool's token; a response that does not count
    advantages = [torch.randn(n, generator=make) + 0.2 for n in LENGTHS]
    old = [torch.randn(n, generator=make) for n in LENGTHS]  # slime's pass before: not of the scaled policy
    sums = torch.stack([m.sum() for m in masks]).float()
    batch = dict(unconcat_tokens=tokens, total_lengths=TOTALS, response_lengths=LENGTHS, loss_masks=masks)
    return logits, batch | dict(advantages=advantages, log_probs=old, rollout_log_probs=old, rollout_mask_sums=sums)


def arithmetic(logits, batch, per_token, k, divided, hold):
    """The loss, its gradient and the shares of scaled and of dropped tokens, in fp64 from the equations."""
    z = logits[0].double().requires_grad_()
    loss, scaled, dropped, end = 0.0, 0.0, 0.0, 0
    for i, (total, length) in enumerate(zip(TOTALS, LENGTHS)):
        end += total
        mask, advantages = batch["loss_masks"][i], batch["advantages"][i].double()
        rows, labels = z[end - length - 1 : end - 1] / TEMPERATURE, batch["unconcat_tokens"][i][-length:]
        policy = torch.distributions.Categorical(logits=rows.detach())
        entropy = policy.entropy()[mask.bool()]
        count = max(1, int(FRACTION * len(entropy)))
        of_response = entropy.sort(descending=True).values[:count].mean() if len(entropy) else torch.nan
        factor = k if of_response < LOW else 1 / k if of_response > HIGH else 1.0
        scale = torch.where(advantages > 0, factor, 1.0)
        log_p = (rows * scale[:, None]).log_softmax(-1).gather(-1, labels[:, None])[:, 0]
        likely = policy.log_prob(labels) > -policy.entropy()
        left_out = (advantages < 0) & hold & ((of_response < LOW) | ((of_response > HIGH) & likely))
        share = torch.where(left_out, 0.0, advantages) / (scale if divided else 1)
        denominator = 1 if per_token else max(1, mask.sum())
        loss = loss - (share * (log_p - log_p.detach()).exp() * mask).sum() / denominator
        scaled = scaled + ((scale != 1) * mask).sum() / denominator
        dropped = dropped + (left_out * mask).sum() / denominator
    return loss.item(), torch.autograd.grad(loss, z)[0], float(scaled), float(dropped)


def in_slime(rank, size, file):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=size)
    mpu.initialize_model_parallel(tensor_model_parallel_size=size)
    sys.stderr = said = io.StringIO()
    logits, batch = micro_batch()
    part = slice(rank * VOCABULARY // size, (rank + 1) * VOCABULARY // size)

    def update(args, **changes):
        z = logits[..., part].clone().requires_grad_()
        value, _, log = upstream.loss_function(args, batch | changes, 1, 1, z)
        return value, torch.autograd.grad(value, z)[0], dict(zip(log["keys"], log["values"][1:].tolist()))

    for per_token in (False, True):
        for k, divided, hold in ((2.0, False, False), (2.0, True, True), (2.0, False, True), (1.0, False, True)):
            args = arguments(calculate_per_token_loss=per_token)
            args.era |= {"k": k, "scale_advantages": divided, "hold": hold}
            expected, gradient, scaled, dropped = arithmetic(logits, batch, per_token, k, divided, hold)
            # With k = 1 the ratio is slime's own, so that it is 1 without log-probs of the pass before.
            value, got, log = update(args, **({"log_probs": None} if k == 1 else {}))
            torch.testing.assert_close(value.item(), expected, rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(got[0].double(), gradient[:, part], rtol=1e-5, atol=1e-6)
            assert abs(log["era/scaled_token_fraction"] - scaled) < 1e-5 and (scaled > 0.3) == (k > 1)
            assert abs(log["era/dropped_token_fraction"] - dropped) < 1e-5 and (dropped > 0.1) == hold
    upstream_alone = update(arguments(era={}, loss_type="policy_loss"))
    off = update(arguments(era={"enable": False}))
    assert torch.equal(off[1], upstream_alone[1]) and off[2] == upstream_alone[2]
    unscaled = update(arguments(era=arguments().era | {"k": 1.0}))
    assert torch.equal(unscaled[1], upstream_alone[1])
    same = {"loss", "pg_loss", "entropy_loss"}
    assert all(unscaled[2][key] == upstream_alone[2][key] for key in same)
    lines = [line[:10] for line in said.getvalue().splitlines() if "ERA is" in line]
    assert lines == (["ERA is on:"] * 4 + ["ERA is off", "ERA is on:"]) * (rank == 0)  # once for each configuration
    batch["log_probs"] = None  # slime's own on-policy update
    upstream_alone = update(arguments(era={}, loss_type="policy_loss"))
    assert update(arguments())[2]["entropy_loss"] == upstream_alone[2]["entropy_loss"]  # not of the scaled policy
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.parametrize("size", [1, 2])
def test_the_update_is_that_of_the_equation_and_without_era_slimes(size, tmp_path):
    torch.multiprocessing.spawn(in_slime, (size, tmp_path / "file"), size)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"era": None}, "era is None; era.slime.loss expects a group"),
        ({"era": {"enabled": True}}, r"era.enable is missing: set it.*\nera.enabled is not a setting"),
        ({"era": {}}, "era.enable is missing: set it to true, or to false for no ERA"),
        ({"era": {"low": 0.3, "k": 8.0}}, "era.enable is missing"),
        ({"era": {"enable": None}}, "era.enable is None; expected true or false"),
        ({"era": {"enable": True, "low": 5.0}}, "era.low is 5.0"),
        ({"era": {"enable": False, "low": 0.3}}, "era.low without era.enable=True"),
        ({"low": 0.4}, "low would be ignored: it belongs in the group era"),
        ({"mine": {"min_advantag": 0}}, "mine.min_advantag would be ignored"),  # ../test_config.py has more of them
        ({"use_tis": True, "context_parallel_size": 2}, r"context_parallel_size=2.*\n.*use_tis=True"),
    ],
)
def test_what_would_be_ignored_or_wrong_is_named(changes, expected):
    with pytest.raises(ValueError, match=expected):
        config_of(arguments(**changes))


WRONG = {  # another value than NEEDED has
    "context_parallel_size": 2,
    "rollout_top_p": 0.9,
    "entropy_coef": 0.01,
    "save_debug_train_data": "file",
    "kl_loss_coef": 0.1,
}
OF_ERA = {"top_k": {"top_k": 20}, "schedule_steps": {"low_end": 0.5, "schedule_steps": 10}}


@pytest.mark.parametrize("name", REFUSED)
def test_whatever_is_declared_is_refused(name):
    config_of(arguments(use_kl_loss=True))  # a coefficient of 0, as in slime's scripts
    if name == "several updates":
        shown, changes = "global_batch_size=2 of 4 samples a rollout", {"global_batch_size": 2}
    elif name in OF_ERA:
        shown, changes = f"era.{name}", {"era": arguments().era | OF_ERA[name]}
    else:
        value = WRONG.get(name, True)
        shown, changes = f"{name}={value}", {name: value, "use_kl_loss": True}
    with refused(REFUSED[name], shown):
        config_of(arguments(**changes))
