"""Gradients of FastSAC-ERA's actor in two processes under DistributedDataParallel, and in one with both batches.

Usage: ddp_gradients.py CHECKOUT, in an empty folder. Raises AssertionError if they differ.
"""

import copy
import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, os.path.join(sys.argv[1], "fast_td3"))
import era_training  # noqa: E402
import fast_td3  # noqa: E402
import fastsac_era  # noqa: E402

SIZES = {"n_obs": 6, "n_act": 3, "num_envs": 4, "init_scale": 0.5, "hidden_dim": 32}
ERA = {"distribution": "truncated", "target_entropy": -0.5, "learn_delta": True, "level": "state"}
ERA |= {"log_std_min": -8.0, "log_std_max": 0.0}


def observations(rank):
    return (1 + 2 * rank) * torch.randn(8, 6, generator=torch.Generator().manual_seed(rank))


def gradients(actor, rank):
    torch.manual_seed(10 + rank)
    actions, residual_loss = era_training.policy_actions(actor, {"observations": observations(rank)}, {})
    actor.zero_grad()
    (residual_loss + (actions * torch.tensor([1.0, -2.0, 3.0])).sum(-1).mean()).backward()
    return {name: p.grad.clone() for name, p in era_training.unwrapped(actor).named_parameters()}


def main(rank):
    dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/rendezvous", rank=rank, world_size=2)
    torch.manual_seed(rank)
    actor = fastsac_era.Actor(**SIZES, **ERA)
    own_noise = actor.noise_scales.clone()
    wrapped = DistributedDataParallel(actor)
    alone = copy.deepcopy(actor)
    lengths = range(1 + 2 * rank)  # of the ranks' evaluations, which differ
    era_training.deterministic(wrapped)(lambda: [wrapped(observations(rank)) for _ in lengths])()
    synchronised = gradients(wrapped, rank)
    both = [gradients(alone, number) for number in range(2)]
    for name, gradient in synchronised.items():
        mean = (both[0][name] + both[1][name]) / 2
        assert torch.allclose(gradient, mean, atol=1e-6), name
        assert not torch.allclose(both[0][name], both[1][name], atol=1e-6), name
        assert gradient.abs().max() > 0, name
    assert torch.equal(actor.noise_scales, own_noise)
    noise = [torch.empty_like(own_noise) for _ in range(2)]
    dist.all_gather(noise, own_noise)
    assert not torch.equal(*noise)
    # FastTD3's own actor shows that this could fail: all ranks get rank 0's noise.
    plain = fast_td3.Actor(**SIZES)
    plain.noise_scales.copy_(own_noise)
    DistributedDataParallel(plain)(observations(rank))
    assert torch.equal(plain.noise_scales, noise[0])
    os._exit(0)  # destroy_process_group sometimes hangs in gloo's teardown


if __name__ == "__main__":
    torch.multiprocessing.start_processes(main, (), 2, start_method="fork")
