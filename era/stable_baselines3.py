# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""ERA for stable-baselines3: policies for PPO, A2C and SAC, and a callback that logs entropies.

    PPO(EraActorCriticPolicy, env, ent_coef=0.0, policy_kwargs=dict(target_entropy=-0.3))
    SAC(EraSACPolicy, env, ent_coef=0.0, policy_kwargs=dict(target_entropy=-0.5))

Targets and metrics are in nats per action dimension.
"""

import contextlib
import copy
import math
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from era.continuous import DISTRIBUTIONS, ENTROPY_CONSTANT, BoundedGaussian
from era.gaussian_defaults import LOG_STD_MAX, LOG_STD_MIN, PPO_TARGET, SAC_TARGET
from era.gaussian_head import EraHead

try:
    import numpy as np
    from gymnasium import spaces
    from stable_baselines3.common.base_class import BaseAlgorithm
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.distributions import DiagGaussianDistribution
    from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
    from stable_baselines3.common.policies import ActorCriticPolicy
    from stable_baselines3.common.preprocessing import get_action_dim, is_image_space
    from stable_baselines3.common.torch_layers import (
        BaseFeaturesExtractor,
        CombinedExtractor,
        FlattenExtractor,
        NatureCNN,
    )
    from stable_baselines3.common.type_aliases import PyTorchObs, Schedule
    from stable_baselines3.sac.policies import Actor, SACPolicy
except ModuleNotFoundError as error:
    if error.name not in ("numpy", "gymnasium", "stable_baselines3"):
        raise
    raise ImportError(
        "era.stable_baselines3 is for stable-baselines3, which is not installed. "
        "pip install 'stable-baselines3>=2.6,<2.10'"
    ) from None

METRICS_BATCH = 256  # states


def check_policy(action_space: spaces.Space, use_sde: bool, on_policy: bool) -> None:
    """Raises ValueError for a policy that cannot have ERA. What EraHead checks is left to it."""
    algorithm = making_algorithm()
    if algorithm and isinstance(algorithm, OnPolicyAlgorithm) != on_policy:
        raise ValueError(
            f"{type(algorithm).__name__} was given ERA's policy of another algorithm: "
            "EraActorCriticPolicy is for PPO and A2C, EraSACPolicy for SAC."
        )
    if not isinstance(action_space, spaces.Box):
        raise ValueError(
            f"ERA's policies are Gaussian: a Box of actions expected, not {action_space}."
        )
    if use_sde:
        raise ValueError(
            "ERA needs use_sde=False: with gSDE the noise of an action is a function of the state "
            "and of weights drawn once per rollout, not a sample with the entropy that ERA holds."
        )


def features_extractor(observation_space: spaces.Space) -> type[BaseFeaturesExtractor]:
    """The extractor of stable-baselines3's MultiInputPolicy, CnnPolicy or MlpPolicy."""
    if isinstance(observation_space, spaces.Dict):
        return CombinedExtractor
    return NatureCNN if is_image_space(observation_space) else FlattenExtractor


def making_algorithm() -> Any:
    """The algorithm that is making a policy, which stable-baselines3 does not tell its policies."""
    frame: Any = sys._getframe()
    while frame := frame.f_back:
        if isinstance(algorithm := frame.f_locals.get("self"), BaseAlgorithm):
            return algorithm
    return None


def own_target(algorithm: Any) -> str:
    """What is wrong with a target of SAC's own, which only a learned ent_coef reads; or ""."""
    own = getattr(algorithm, "target_entropy", None)
    # In sbx ent_coef is what its ent_coef_init has become.
    ent_coef = getattr(algorithm, "ent_coef_init", getattr(algorithm, "ent_coef", None))
    if own in (None, "auto") or str(ent_coef).startswith("auto"):
        return ""
    dim = get_action_dim(algorithm.action_space)
    if own == -dim:  # what "auto" has become
        return ""
    return (
        f"target_entropy = {float(own):g} was given to {type(algorithm).__name__} itself, where it "
        "does nothing with a constant ent_coef. ERA's belongs in policy_kwargs and is per action "
        f"dimension: {float(own):g} in total would be {float(own) / dim:g}."
    )


class EraDiagGaussian(DiagGaussianDistribution):
    """stable-baselines3's Gaussian with ERA's sigma. One network gives mean and pre_std."""

    def __init__(self, action_dim: int, era_head: EraHead):
        super().__init__(action_dim)
        self.era_head = era_head

    def proba_distribution_net(
        self, latent_dim: int, log_std_init: float = 0.0
    ) -> tuple[nn.Module, None]:
        return nn.Linear(latent_dim, 2 * self.action_dim), None

    def proba_distribution(
        self, mean_actions: torch.Tensor, log_std: torch.Tensor
    ) -> "EraDiagGaussian":
        """Make the Gaussian of the mean and, as log_std, the network's pre_std; both (B, D)."""
        return super().proba_distribution(mean_actions, self.era_head(log_std))


class EraActorCriticPolicy(ActorCriticPolicy):
    """For PPO and A2C: ActorCriticPolicy whose sigma depends on the state, with ERA.

    The entropy of its Gaussian is never below the target, and equal to it where no ln sigma is
    clipped. As in stable-baselines3, actions outside of the action space are clipped by the
    algorithm, and the log-prob is that of the unclipped action.

    Args:
        target_entropy: H0 per action dimension, in nats, of actions in the environment's units.
        log_std_min, log_std_max: range of ln sigma.
        features_extractor_class: by default that of stable-baselines3's MultiInputPolicy for Dict
            observations, of its CnnPolicy for images and of its MlpPolicy for all others.
        others: stable-baselines3's.

    Raises:
        ValueError: another algorithm, an action space that is not a Box or has one dimension, gSDE,
            an infeasible target, log_std_init.
    """

    action_dist: EraDiagGaussian
    era_head: EraHead

    def __init__(
        self,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        lr_schedule: Schedule,
        *args: Any,
        target_entropy: float = PPO_TARGET,
        log_std_min: float = LOG_STD_MIN,
        log_std_max: float = LOG_STD_MAX,
        use_sde: bool = False,
        **kwargs: Any,
    ):
        check_policy(action_space, use_sde, on_policy=True)
        self.era_settings: dict[str, Any] = {
            "target_entropy": target_entropy,
            "log_std_min": log_std_min,
            "log_std_max": log_std_max,
        }
        kwargs.setdefault("features_extractor_class", features_extractor(observation_space))
        super().__init__(observation_space, action_space, lr_schedule, *args, **kwargs)

        if self.log_std_init != 0:
            raise ValueError(
                f"log_std_init = {self.log_std_init!r}: ERA has no parameter that it could set. "
                "Leave it out; target_entropy sets the mean of ln sigma."
            )
        if np.any(action_space.low != -1) or np.any(action_space.high != 1):
            warnings.warn(
                f"ERA: target_entropy = {target_entropy:g} is in the units of the actions, which "
                f"are from {action_space.low.min():g} to {action_space.high.max():g} here. For "
                "actions in [-a, a] add ln a to a target that is meant for [-1, 1], or wrap the "
                "environment in gymnasium.wrappers.RescaleAction(env, -1, 1).",
                stacklevel=2,
            )

    def _build(self, lr_schedule: Schedule) -> None:
        dim = get_action_dim(self.action_space)
        self.era_head = EraHead(
            dim,
            **self.era_settings,
            coefficient="it has no gradient except where an ln sigma is clipped at log_std_min. "
            "Set ent_coef=0.0.",
        )
        self.action_dist = EraDiagGaussian(dim, self.era_head)
        super()._build(lr_schedule)
        del self.log_std  # PPO and A2C log the mean of exp(log_std) of all policies that have one

    def _get_action_dist_from_latent(self, latent_pi: torch.Tensor) -> EraDiagGaussian:
        mean, pre_std = self.action_net(latent_pi).chunk(2, dim=-1)
        return self.action_dist.proba_distribution(mean, pre_std)

    def evaluate_actions(
        self, obs: PyTorchObs, actions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The values, log-probs and entropies, (B,) each, that the loss is made of."""
        values, log_prob, entropy = super().evaluate_actions(obs, actions)
        return values, log_prob, self.era_head.watch(entropy)

    def entropies(self, obs: PyTorchObs) -> tuple[torch.Tensor, torch.Tensor]:
        """The policy's entropies, here the Gaussian's, (B,) in nats; and ln sigma, (B, D)."""
        distribution = self.get_distribution(obs)
        return distribution.entropy(), distribution.distribution.stddev.log()

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return {**super()._get_constructor_parameters(), **self.era_settings}


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
    era_head: EraHead

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
        self.era_head = EraHead(
            dim,
            target_entropy,
            log_std_min,
            log_std_max,
            coefficient="it pulls the mean away from the bounds. Set ent_coef=0.0; SAC's default "
            "is 'auto'.",
            distribution=distribution,
        )
        self.action_dist = BoundedDistribution(dim, distribution)

    def get_action_dist_params(
        self, obs: PyTorchObs
    ) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
        """Mean and ln sigma, (B, D). stable-baselines3's own would clamp ln sigma after ERA."""
        latent = self.latent_pi(self.extract_features(obs, self.features_extractor))
        return self.mu(latent), self.era_head(self.log_std(latent)), {}

    def action_log_prob(self, obs: PyTorchObs) -> tuple[torch.Tensor, torch.Tensor]:
        """Sampled actions, (B, D), and their log-probs, (B,), as stable-baselines3's."""
        action, log_prob = super().action_log_prob(obs)
        return action, self.era_head.watch(log_prob)


class EraSACPolicy(SACPolicy):
    """For SAC: SACPolicy with ERA's actor. Deterministic actions are tanh(mean).

    The Gaussian's entropy is never below the target; bounding the Gaussian to the action space
    takes some of that entropy away (docs/control/plug-ins.md).

    Args:
        target_entropy: H0' per action dimension, in nats.
        log_std_min, log_std_max: range of ln sigma.
        distribution: "truncated", "tanh" or "clipped", how the Gaussian is bounded to [-1, 1].
        features_extractor_class: as in EraActorCriticPolicy.
        others: stable-baselines3's.

    Raises:
        ValueError: another algorithm, an action of one dimension, gSDE, an infeasible target,
            another distribution.
    """

    def __init__(
        self,
        observation_space: spaces.Space,
        action_space: spaces.Box,
        lr_schedule: Schedule,
        *args: Any,
        target_entropy: float = SAC_TARGET,
        log_std_min: float = LOG_STD_MIN,
        log_std_max: float = LOG_STD_MAX,
        distribution: str = "truncated",
        use_sde: bool = False,
        **kwargs: Any,
    ):
        check_policy(action_space, use_sde, on_policy=False)
        self.era_settings: dict[str, Any] = {
            "target_entropy": target_entropy,
            "log_std_min": log_std_min,
            "log_std_max": log_std_max,
            "distribution": distribution,
        }
        kwargs.setdefault("features_extractor_class", features_extractor(observation_space))
        super().__init__(observation_space, action_space, lr_schedule, *args, **kwargs)
        if wrong := own_target(making_algorithm()):
            warnings.warn(f"ERA: {wrong}", stacklevel=2)

    def make_actor(self, features_extractor: nn.Module | None = None) -> EraActor:
        kwargs = self._update_features_extractor(self.actor_kwargs, features_extractor)
        return EraActor(**kwargs, **self.era_settings).to(self.device)

    def entropies(self, obs: PyTorchObs) -> tuple[torch.Tensor, torch.Tensor]:
        """The bounded policy's entropies, (B,) in nats; and ln sigma, (B, D)."""
        mean, log_std, _ = self.actor.get_action_dist_params(obs)
        return self.actor.action_dist.proba_distribution(mean, log_std).entropy(), log_std

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return {**super()._get_constructor_parameters(), **self.era_settings}


class EraMetrics(BaseCallback):
    """Logs entropies of an ERA policy: model.learn(steps, callback=EraMetrics()).

    Over a batch of states from the algorithm's buffer, in nats per action dimension:

        era/gaussian_entropy_per_dim  the Gaussian's before it is bounded: it has the target
        era/entropy_per_dim           the policy's, mean over the states
        era/min_entropy_per_dim       the policy's, in the state that has least

    The first measurement is at the end of the first rollout (in SAC, of the first one after
    learning_starts). It is also printed if the algorithm's verbose is at least 1. Each row of the
    log has the latest.

    Training is the same with and without the callback, down to its random numbers, and so is what
    other callbacks find in the buffer.

    Args:
        freq: environment steps between two measurements, at least; 1 or more.

    Raises:
        ValueError: another freq; at the start of training, a policy that is not ERA's, and a target
            entropy given to SAC itself.
    """

    def __init__(self, freq: int = 1000):
        super().__init__()
        if not 1 <= freq < math.inf:
            raise ValueError(f"freq = {freq!r}: a number of environment steps expected, 1 or more.")
        self.freq = freq

    def _on_training_start(self) -> None:
        if not self.has_era():
            raise ValueError(
                f"{type(self).__module__}.EraMetrics cannot measure {type(self.model.policy)}: it "
                "measures the policies of era.stable_baselines3; for a model of sbx with era_actor "
                "take era.sbx.EraMetrics."
            )
        if wrong := own_target(self.model):
            raise ValueError(wrong)
        self.next = getattr(self.model, "learning_starts", 0) + 1
        self.measured: dict[str, float] = {}

    def has_era(self) -> bool:
        return isinstance(self.model.policy, EraActorCriticPolicy | EraSACPolicy)

    def target(self) -> float:
        """The paper's H0 per action dimension, in nats."""
        return self.model.policy.era_settings["target_entropy"]

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        if self.num_timesteps >= self.next:
            self.next = self.num_timesteps + self.freq
            first, self.measured = not self.measured, self.measure()
            if first:
                gaussian, *others = (f"{name} {x:.4f}" for name, x in self.measured.items())
                target = f"for a target of {self.target():g}"
                rest = ", ".join(others)
                self.say(f"after {self.num_timesteps} steps: {gaussian} {target}; {rest}")
        for name, value in self.measured.items():
            self.logger.record(f"era/{name}", value)

    def _on_training_end(self) -> None:
        if not self.measured:
            self.say(f"measured nothing: {self.num_timesteps} steps are within learning_starts")

    def say(self, line: str) -> None:
        if self.model.verbose >= 1:
            print(f"ERA {line}")

    def measure(self) -> dict[str, float]:
        """The metrics by their names without era/, in nats per action dimension."""
        with unchanged_random_numbers(self.model.device), torch.no_grad():
            entropy, log_std = (np.asarray(x) for x in self.entropies(self.states()))
        dim = log_std.shape[-1]
        return {  # first what has the target: a tanh takes entropy from the policy's
            "gaussian_entropy_per_dim": float(log_std.mean()) + ENTROPY_CONSTANT,
            "entropy_per_dim": float(entropy.mean()) / dim,
            "min_entropy_per_dim": float(entropy.min()) / dim,
        }

    def states(self) -> PyTorchObs:
        """A batch of observations as the policy gets them, normalised by VecNormalize."""
        model = self.model
        if isinstance(model, OnPolicyAlgorithm):
            # get() flattens the arrays of its buffer, and other callbacks would find them so.
            buffer = copy.copy(model.rollout_buffer)
            buffer.observations = copy.copy(buffer.observations)  # a dictionary, or an array
            return next(buffer.get(METRICS_BATCH)).observations
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
