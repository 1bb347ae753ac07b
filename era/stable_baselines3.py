# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""ERA for stable-baselines3: policies for PPO, A2C and SAC, and a callback that logs entropies.

    PPO(EraActorCriticPolicy, env, ent_coef=0.0, policy_kwargs=dict(target_entropy=-0.3))
    SAC(EraSACPolicy, env, ent_coef=0.0, policy_kwargs=dict(target_entropy=-0.5))

Targets and metrics are in nats per action dimension.
"""

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.distributions import DiagGaussianDistribution
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.preprocessing import get_action_dim
from stable_baselines3.common.type_aliases import PyTorchObs, Schedule
from stable_baselines3.sac.policies import Actor, SACPolicy
from torch import nn

from era.continuous import (
    DISTRIBUTIONS,
    ENTROPY_CONSTANT,
    BoundedGaussian,
    check_state_level,
    check_target,
    state_level_log_std,
)

METRICS_BATCH = 256  # states


def check_spaces(
    action_space: spaces.Space,
    use_sde: bool,
    target_entropy: float,
    log_std_min: float,
    log_std_max: float,
) -> None:
    """Raises ValueError for a policy that cannot have ERA. target_entropy is per dimension."""
    if not isinstance(action_space, spaces.Box):
        raise ValueError(
            f"ERA's policies are Gaussian: a Box of actions expected, not {action_space}."
        )
    if use_sde:
        raise ValueError(
            "ERA needs use_sde=False: with gSDE the noise of an action is a function of the state "
            "and of weights drawn once per rollout, not a sample with the entropy that ERA holds."
        )
    dim = get_action_dim(action_space)
    check_state_level(dim)
    check_target(dim * target_entropy, dim, log_std_min, log_std_max)


class EraDiagGaussian(DiagGaussianDistribution):
    """stable-baselines3's Gaussian with ERA's sigma. One network gives mean and pre_std."""

    def __init__(
        self, action_dim: int, target_entropy: float, log_std_min: float, log_std_max: float
    ):
        super().__init__(action_dim)
        self.era = (action_dim * target_entropy, log_std_min, log_std_max)

    def proba_distribution_net(
        self, latent_dim: int, log_std_init: float = 0.0
    ) -> tuple[nn.Module, None]:
        return nn.Linear(latent_dim, 2 * self.action_dim), None

    def proba_distribution(
        self, mean_actions: torch.Tensor, log_std: torch.Tensor
    ) -> "EraDiagGaussian":
        """From the mean and, as log_std, the network's pre_std; both (B, D)."""
        return super().proba_distribution(mean_actions, state_level_log_std(log_std, *self.era))


class EraActorCriticPolicy(ActorCriticPolicy):
    """For PPO and A2C: ActorCriticPolicy whose sigma depends on the state, with ERA.

    The entropy of its Gaussian is never below the target, and equal to it where no ln sigma is
    clipped. As in stable-baselines3, actions outside of the action space are clipped by the
    algorithm, and the log-prob is that of the unclipped action.

    Args:
        target_entropy: H0 per action dimension, in nats.
        log_std_min, log_std_max: range of ln sigma.
        The others are stable-baselines3's.

    Raises:
        ValueError: an action space that is not a Box or has one dimension, gSDE, an infeasible
            target, log_std_init.
    """

    action_dist: EraDiagGaussian

    def __init__(
        self,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        lr_schedule: Schedule,
        *args: Any,
        target_entropy: float = -0.3,
        log_std_min: float = -8.0,
        log_std_max: float = 0.0,
        use_sde: bool = False,
        **kwargs: Any,
    ):
        self.era = {
            "target_entropy": target_entropy,
            "log_std_min": log_std_min,
            "log_std_max": log_std_max,
        }
        check_spaces(action_space, use_sde, **self.era)
        super().__init__(observation_space, action_space, lr_schedule, *args, **kwargs)
        if self.log_std_init != 0:
            raise ValueError(
                f"log_std_init = {self.log_std_init!r}: ERA has no parameter that it could set. "
                "Leave it out; target_entropy sets the mean of ln sigma."
            )

    def _build(self, lr_schedule: Schedule) -> None:
        self.action_dist = EraDiagGaussian(get_action_dim(self.action_space), **self.era)
        super()._build(lr_schedule)
        del self.log_std  # PPO and A2C log the mean of exp(log_std) of all policies that have one

    def _get_action_dist_from_latent(self, latent_pi: torch.Tensor) -> EraDiagGaussian:
        mean, pre_std = self.action_net(latent_pi).chunk(2, dim=-1)
        return self.action_dist.proba_distribution(mean, pre_std)

    def entropies(self, obs: PyTorchObs) -> tuple[torch.Tensor, torch.Tensor]:
        """The policy's, which is the Gaussian's here, (B,) in nats; and ln sigma, (B, D)."""
        distribution = self.get_distribution(obs)
        return distribution.entropy(), distribution.distribution.stddev.log()

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return {**super()._get_constructor_parameters(), **self.era}


class BoundedDistribution(DiagGaussianDistribution):
    """A policy of era.continuous with the methods that SAC's actor calls."""

    distribution: BoundedGaussian

    def __init__(self, action_dim: int, kind: str):
        super().__init__(action_dim)
        self.kind = DISTRIBUTIONS[kind]

    def proba_distribution(
        self, mean_actions: torch.Tensor, log_std: torch.Tensor
    ) -> "BoundedDistribution":
        self.mean_actions = mean_actions
        self.distribution = self.kind.from_mean(mean_actions, log_std)
        return self

    def log_prob(self, actions: torch.Tensor) -> torch.Tensor:
        return self.distribution.log_prob(actions)

    def entropy(self) -> torch.Tensor:
        return self.distribution.entropy()

    def mode(self) -> torch.Tensor:
        return self.mean_actions.tanh()


class EraActor(Actor):
    """SAC's actor with ERA at its output. Arguments: EraSACPolicy."""

    action_dist: BoundedDistribution

    def __init__(
        self,
        *args: Any,
        target_entropy: float,
        log_std_min: float,
        log_std_max: float,
        distribution: str,
        **kwargs: Any,
    ):
        super().__init__(*args, **kwargs)
        dim = get_action_dim(self.action_space)
        self.action_dist = BoundedDistribution(dim, distribution)
        self.era = (dim * target_entropy, log_std_min, log_std_max)

    def get_action_dist_params(
        self, obs: PyTorchObs
    ) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
        """Mean and ln sigma, (B, D). stable-baselines3's own would clamp ln sigma after ERA."""
        latent = self.latent_pi(self.extract_features(obs, self.features_extractor))
        return self.mu(latent), state_level_log_std(self.log_std(latent), *self.era), {}


class EraSACPolicy(SACPolicy):
    """For SAC: SACPolicy with ERA's actor. Deterministic actions are tanh(mean).

    The Gaussian's entropy is never below the target; bounding the Gaussian to the action space
    takes some of that entropy away (docs/control/plug-ins.md).

    Args:
        target_entropy: H0' per action dimension, in nats.
        log_std_min, log_std_max: range of ln sigma.
        distribution: "truncated", "tanh" or "clipped", how the Gaussian is bounded to [-1, 1].
        The others are stable-baselines3's.

    Raises:
        ValueError: an action of one dimension, gSDE, an infeasible target.
        KeyError: an unknown distribution.
    """

    def __init__(
        self,
        observation_space: spaces.Space,
        action_space: spaces.Box,
        lr_schedule: Schedule,
        *args: Any,
        target_entropy: float = -0.5,
        log_std_min: float = -8.0,
        log_std_max: float = 0.0,
        distribution: str = "truncated",
        use_sde: bool = False,
        **kwargs: Any,
    ):
        check_spaces(action_space, use_sde, target_entropy, log_std_min, log_std_max)
        self.era = {
            "target_entropy": target_entropy,
            "log_std_min": log_std_min,
            "log_std_max": log_std_max,
            "distribution": distribution,
        }
        super().__init__(observation_space, action_space, lr_schedule, *args, **kwargs)

    def make_actor(self, features_extractor: nn.Module | None = None) -> EraActor:
        kwargs = self._update_features_extractor(self.actor_kwargs, features_extractor)
        return EraActor(**kwargs, **self.era).to(self.device)

    def entropies(self, obs: PyTorchObs) -> tuple[torch.Tensor, torch.Tensor]:
        """The bounded policy's, (B,) in nats; and ln sigma, (B, D)."""
        mean, log_std, _ = self.actor.get_action_dist_params(obs)
        return self.actor.action_dist.proba_distribution(mean, log_std).entropy(), log_std

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return {**super()._get_constructor_parameters(), **self.era}


class EraMetrics(BaseCallback):
    """Logs entropies of an ERA policy: model.learn(steps, callback=EraMetrics()).

    Over a batch of states from the algorithm's buffer, in nats per action dimension:

        era/entropy_per_dim           the policy's, mean over the states
        era/min_entropy_per_dim       the policy's, in the state that has least
        era/gaussian_entropy_per_dim  the Gaussian's before it is bounded, mean over the states

    Training is the same with and without the callback, down to its random numbers. At the start the
    callback warns if the loss has an entropy bonus beside ERA.

    Args:
        freq: environment steps between two measurements, at least.

    Raises:
        ValueError: at the start of training, where the policy is not ERA's.
    """

    def __init__(self, freq: int = 1000):
        super().__init__()
        self.freq = freq

    def _on_training_start(self) -> None:
        if not self.has_era():
            raise ValueError(
                f"{type(self).__module__}.EraMetrics cannot measure {type(self.model.policy)}: it "
                "measures the policies of era.stable_baselines3; for a model of sbx with era_actor "
                "take era.sbx.EraMetrics."
            )
        # sbx replaces model.ent_coef.
        coefficient = getattr(self.model, "ent_coef_init", self.model.ent_coef)
        if coefficient != 0:
            warnings.warn(
                f"ent_coef={coefficient!r}: the loss has an entropy bonus beside ERA, which holds "
                "the entropy without one. Set ent_coef=0.0; SAC's default is 'auto'.",
                stacklevel=1,
            )
        self.next = getattr(self.model, "learning_starts", 0) + 1

    def has_era(self) -> bool:
        return isinstance(self.model.policy, EraActorCriticPolicy | EraSACPolicy)

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        if self.num_timesteps < self.next:
            return
        self.next = self.num_timesteps + self.freq
        with unchanged_random_numbers(self.model.device), torch.no_grad():
            entropy, log_std = (np.asarray(x) for x in self.entropies(self.states()))
        dim = log_std.shape[-1]
        gaussian = float(log_std.mean()) + ENTROPY_CONSTANT
        self.logger.record("era/entropy_per_dim", float(entropy.mean()) / dim)
        self.logger.record("era/min_entropy_per_dim", float(entropy.min()) / dim)
        self.logger.record("era/gaussian_entropy_per_dim", gaussian)

    def states(self) -> PyTorchObs:
        """A batch of observations as the policy gets them, normalised by VecNormalize."""
        model = self.model
        if isinstance(model, OnPolicyAlgorithm):
            return next(model.rollout_buffer.get(METRICS_BATCH)).observations
        batch = model.replay_buffer.sample(METRICS_BATCH, env=model.get_vec_normalize_env())
        return batch.observations

    def entropies(self, obs: PyTorchObs) -> tuple[torch.Tensor, torch.Tensor]:
        entropy, log_std = self.model.policy.entropies(obs)
        return entropy.cpu(), log_std.cpu()


@contextlib.contextmanager
def unchanged_random_numbers(device: torch.device) -> Iterator[None]:
    """Restores the random states of NumPy, which the buffers draw from, and of torch."""
    state = np.random.get_state()
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        yield
    np.random.set_state(state)
