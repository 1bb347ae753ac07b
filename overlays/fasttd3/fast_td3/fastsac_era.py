# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""FastSAC-ERA: FastTD3 with a stochastic actor whose entropy ERA keeps up.

Paper, section "FastSAC-ERA": FastTD3's exploration noise and its critic's noise stay, policy
updates are no longer delayed, and nothing is added to the losses (except for a learned delta,
Eq. residual_loss). The actor is FastTD3's with a second linear head for pre_std.

In training mode the actor samples: for target actions, policy updates and exploration, where
FastTD3's noise is added. In evaluation mode it is FastTD3's actor, tanh(mean).
"""

import math
from typing import Any, Dict, Tuple, Union

import torch
import torch.nn as nn

# The training scripts import the modules beside them by bare names, the package does not.
if __package__:
    from . import era, fast_td3
else:
    import era

    import fast_td3

# Of batch-level ERA's running average. Each update has two batches: the target's and the policy's.
MOMENTUM = 0.01


class Actor(fast_td3.Actor):
    """FastTD3's actor with ERA at its output.

    Args:
        distribution: "truncated", "tanh" or "clipped": see era.py.
        target_entropy: H0 per action dimension, in nats.
        learn_delta: learn the residual delta by Eq. residual_loss; it is 0 otherwise.
        level: "state" (Eq. continuous_era) or "batch" (Eq. batch_era).
        log_std_min, log_std_max: range of ln sigma.
        The others are FastTD3's.

    Raises:
        ValueError: a target that is not feasible; one action dimension with level "state"; a
            learned delta for a target that no density on [-1, 1] has.
    """

    def __init__(
        self,
        *,
        init_scale: float,
        distribution: str,
        target_entropy: float,
        learn_delta: bool,
        level: str,
        log_std_min: float,
        log_std_max: float,
        **kwargs: Any,
    ):
        super().__init__(init_scale=init_scale, **kwargs)
        if level == "state":
            era.check_state_level(self.n_act)
        self.distribution_cls = era.DISTRIBUTIONS[distribution]
        self.target_entropy = self.n_act * target_entropy
        era.check_target(self.target_entropy, self.n_act, log_std_min, log_std_max)
        if learn_delta and distribution != "clipped" and target_entropy >= math.log(2):
            raise ValueError(
                f"target_entropy = {target_entropy:g} per action dimension: no density on [-1, 1] "
                f"has ln 2 = {math.log(2):.4f} nats or more, so a learned delta would only grow."
            )
        self.largest_delta = era.feasible_targets(1, log_std_min, log_std_max)[1] - target_entropy
        self.level, self.log_std_min, self.log_std_max = level, log_std_min, log_std_max
        # Initialised like fc_mu, so that all sigma are about equal at first.
        self.fc_std = nn.Linear(self.fc_mu[0].in_features, self.n_act, device=self.device)
        nn.init.normal_(self.fc_std.weight, 0.0, init_scale)
        nn.init.zeros_(self.fc_std.bias)
        # Per action dimension, so that one learning rate suits all robots.
        if learn_delta:
            self.delta = nn.Parameter(torch.zeros((), device=self.device))
        else:
            self.register_buffer("delta", torch.zeros((), device=self.device))
        # ln of the running average of Eq. batch_era. exp(pre_std) is about 1 at first.
        self.register_buffer("log_mean_exp", torch.zeros((), device=self.device))
        # DistributedDataParallel would broadcast rank 0's buffers at every call: all ranks would
        # explore with the same noise, and ranks whose evaluations differ in length would deadlock.
        self._ddp_params_and_buffers_to_ignore = [name for name, _ in self.named_buffers()]

    def forward(
        self, obs: torch.Tensor, with_entropies: bool = False
    ) -> Union[torch.Tensor, Tuple[torch.Tensor, Dict[str, torch.Tensor]]]:
        """(B, n_obs) -> (B, n_act): samples in training mode, tanh(mean) otherwise.

        with_entropies adds entropies() in training mode.
        """
        if not self.training:
            return super().forward(self.embed(obs))
        policy = self.distribution(obs)
        actions = policy.rsample()
        return (actions, self.entropies(policy)) if with_entropies else actions

    def explore(
        self, obs: torch.Tensor, dones: torch.Tensor = None, deterministic: bool = False
    ) -> torch.Tensor:
        """A sample plus FastTD3's noise."""
        return super().forward(self.embed(obs)) if deterministic else super().explore(obs, dones)

    def embed(self, obs: torch.Tensor) -> torch.Tensor:
        return obs

    def distribution(self, obs: torch.Tensor) -> era.BoundedGaussian:
        """The policy in the states (B, n_obs), in fp32 also under autocast."""
        features = self.net(self.embed(obs))
        if hasattr(self, "fc_head"):  # since FastTD3 229ed59
            features = self.fc_head(features)
        mean, pre_std = self.fc_mu[0](features), self.fc_std(features)
        return self.distribution_cls.from_mean(mean.float(), self.log_std(pre_std))

    def log_std(self, pre_std: torch.Tensor) -> torch.Tensor:
        delta = self.delta.detach().clamp(0, self.largest_delta).float()
        target = self.target_entropy + self.n_act * delta
        if self.level == "state":
            return era.state_level_log_std(pre_std, target, self.log_std_min, self.log_std_max)
        log_mean = self.log_mean_exp
        if self.training and torch.is_grad_enabled():  # an update; acting takes the running average
            log_mean = era.log_mean_exp(pre_std)
            with torch.no_grad():
                kept = self.log_mean_exp + math.log(1 - MOMENTUM)
                self.log_mean_exp.copy_(torch.logaddexp(kept, log_mean + math.log(MOMENTUM)))
        return era.batch_level_log_std(
            pre_std, log_mean, target, self.log_std_min, self.log_std_max
        )

    def entropies(self, policy: era.BoundedGaussian) -> Dict[str, torch.Tensor]:
        """Means over the batch, totals over the action dimensions, in nats.

        Also the smallest sigma, and the share of the states in which a sigma is clipped at
        log_std_min: there the Gaussian can have more entropy than the target.
        """
        with torch.no_grad():
            return {
                "policy_entropy": policy.entropy().mean(),
                "gaussian_entropy": era.gaussian_entropy(policy.log_std).mean(),
                "target_entropy": torch.full_like(self.delta, self.target_entropy),
                "delta": self.n_act * self.delta.clamp(0, self.largest_delta),
                "min_std": policy.std.min(),
                "clipped_states": (policy.log_std <= self.log_std_min).any(-1).float().mean(),
            }

    def residual_loss(self, policy_entropy: torch.Tensor) -> Union[torch.Tensor, float]:
        """Eq. residual_loss per action dimension; 0 where delta is a constant.

        policy_entropy: mean over the batch, total over the action dimensions, in nats.
        """
        if not self.delta.requires_grad:
            return 0.0
        with torch.no_grad():  # the optimizer's last step may have left the range
            self.delta.clamp_(0, self.largest_delta)
        return era.residual_loss(
            self.delta, policy_entropy / self.n_act, self.target_entropy / self.n_act
        )


class MultiTaskActor(Actor):
    """For MTBench: as in FastTD3, a learned embedding replaces the one-hot task in observations."""

    def __init__(self, *, num_tasks: int, task_embedding_dim: int, **kwargs: Any):
        super().__init__(**kwargs)
        self.num_tasks = num_tasks
        self.task_embedding = nn.Embedding(
            num_tasks, task_embedding_dim, max_norm=1.0, device=self.device
        )

    def embed(self, obs: torch.Tensor) -> torch.Tensor:
        task = obs[..., -self.num_tasks :].argmax(-1)
        return torch.cat([obs[..., : -self.num_tasks], self.task_embedding(task)], -1)


def simnorm(args: Dict[str, Any], network: str) -> Dict[str, Any]:
    """SimNorm's arguments of the "actor" or the "critic"; none where FastTD3 is older than 229ed59.

    args: train.py's flags by name.
    """
    if "sim_type" not in args:
        return {}
    size = {"sim_dimension": args["sim_dimension"], "seq_len": args[f"{network}_seq_len"]}
    return {"sim_type": args["sim_type"], **size}


def fasttd3_state(state: Dict[str, torch.Tensor]) -> Dict[str, torch.Tensor]:
    """A checkpoint's actor_state_dict without the entries that ERA adds.

    FastTD3's actor with this state is the deterministic policy.
    """
    added = ("fc_std.weight", "fc_std.bias", "delta", "log_mean_exp")
    return {name: value for name, value in state.items() if name not in added}
