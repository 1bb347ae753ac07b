# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""ERA for the SAC and the TQC of sbx (stable-baselines3 in JAX).

    SAC("MlpPolicy", env, ent_coef=0.0, policy_kwargs=era_actor(target_entropy=-0.5))

EraSAC, in place of SAC, also learns delta or holds the entropy per batch. Targets and metrics are
in nats per action dimension.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

try:
    import flax.linen as nn
    import jax
    import jax.numpy as jnp
    from sbx import SAC
    from stable_baselines3.common.type_aliases import PyTorchObs
except ModuleNotFoundError as error:
    if error.name not in ("flax", "jax", "sbx", "stable_baselines3"):
        raise
    raise ImportError(
        "era.sbx is for sbx, which is not installed. pip install 'sbx-rl>=0.28,<0.29'"
    ) from None

from era import stable_baselines3
from era.continuous import (
    announce,
    check_distribution,
    check_state_level,
    check_target,
    feasible_targets,
    total_target,
)
from era.continuous_jax import (
    DISTRIBUTIONS,
    BoundedGaussian,
    batch_level_log_std,
    log_mean_exp,
    residual_loss,
    state_level_log_std,
)
from era.gaussian_defaults import LOG_STD_MAX, LOG_STD_MIN, SAC_TARGET

MOMENTUM = 0.01  # of batch-level ERA's running average, as in the overlay of FastTD3
# Collections of Flax that an update of the policy changes or fills.
AVERAGES, LOSSES = "batch_stats", "losses"


class EraActor(nn.Module):
    """The network of sbx's SquashedGaussianActor with ERA at its output.

    Attributes: arguments of era_actor and of EraSAC, and what sbx's policies pass.
    """

    net_arch: Sequence[int]
    action_dim: int
    activation_fn: Callable[[jax.Array], jax.Array] = nn.relu
    target_entropy: float = SAC_TARGET
    log_std_min: float = LOG_STD_MIN
    log_std_max: float = LOG_STD_MAX
    distribution: str = "truncated"
    layer_norm: bool = False
    learn_delta: bool = False
    level: str = "state"

    def __post_init__(self) -> None:
        if self.level not in ("state", "batch"):  # all but "state" would act as "batch"
            raise ValueError(f"level = {self.level!r}: 'state' or 'batch' expected.")
        if self.level == "state":
            check_state_level(self.action_dim, "EraSAC(level='batch') in era.sbx")
        target = total_target(self.target_entropy, self.action_dim)
        check_target(target, self.action_dim, self.log_std_min, self.log_std_max)
        check_distribution(self.distribution, DISTRIBUTIONS)
        super().__post_init__()

    @nn.compact
    def __call__(self, obs: jax.Array) -> BoundedGaussian:
        """The policy in the states (B, ...)."""
        if self.is_initializing():
            # Without numbers, so that nothing trains it. By its name in the tree the optimizer of
            # sbx's own actor refuses ERA's parameters, and ERA's refuses sbx's.
            self.param("trained_with_era", nn.initializers.zeros, (0,))
        x = obs.reshape(len(obs), -1)
        for width in self.net_arch:
            x = nn.Dense(width)(x)
            x = self.activation_fn(nn.LayerNorm()(x) if self.layer_norm else x)
        mean, pre_std = nn.Dense(self.action_dim)(x), nn.Dense(self.action_dim)(x)
        delta = self.param("delta", nn.initializers.zeros, ()) if self.learn_delta else None
        log_std = self.log_std(pre_std, delta)
        policy = DISTRIBUTIONS[self.distribution].from_mean(mean, log_std)
        if self.learn_delta and self.is_update(LOSSES):
            entropy = policy.entropy(self.make_rng("entropy")).mean() / self.action_dim
            self.sow(LOSSES, "residual", residual_loss(delta, entropy, self.target_entropy))
        return policy

    def is_update(self, collection: str) -> bool:
        """Whether this call updates EraSAC's policy, unlike acting and the critics' target."""
        return self.is_mutable_collection(collection) and not self.is_initializing()

    def log_std(self, pre_std: jax.Array, delta: jax.Array | None) -> jax.Array:
        """Return ERA's ln sigma, (B, D) -> (B, D); delta is in nats per action dimension."""
        bounds = self.log_std_min, self.log_std_max
        target = self.action_dim * self.target_entropy
        if delta is not None:
            largest = feasible_targets(1, *bounds)[1] - self.target_entropy
            target += self.action_dim * jnp.clip(jax.lax.stop_gradient(delta), 0, largest)
        if self.level == "state":
            return state_level_log_std(pre_std, target, *bounds)
        average = self.variable(AVERAGES, "log_mean_exp", jnp.zeros, ())  # exp(pre_std) is about 1
        log_mean = average.value
        if self.is_update(AVERAGES):
            log_mean = log_mean_exp(pre_std)
            kept = average.value + math.log(1 - MOMENTUM)
            average.value = jnp.logaddexp(kept, log_mean + math.log(MOMENTUM))
        return batch_level_log_std(pre_std, log_mean, target, *bounds)

    @property
    def reset_noise(self) -> None:
        """What sbx assigns for gSDE when a model is made, the moment at which ERA sees it."""

    @reset_noise.setter
    def reset_noise(self, method: Any) -> None:
        self.check_model(method.__self__)

    def check_model(self, model: Any) -> None:
        """Say that ERA is on, and warn of a bonus beside it. Raises ValueError for gSDE."""
        if model.use_sde:
            raise ValueError(
                "ERA needs use_sde=False: sbx's gSDE repeats one noise for many steps, whose "
                "actions are then no samples with the entropy that ERA holds."
            )
        announce(self.target_entropy, self.action_dim)
        algorithm = stable_baselines3.making_algorithm()
        if ent_coef := getattr(algorithm, "ent_coef_init", 0):
            warnings.warn(
                f"ent_coef={ent_coef!r}: the loss has an entropy bonus beside ERA, "
                "which holds the entropy without one. Set ent_coef=0.0; SAC's default is 'auto'.",
                stacklevel=2,
            )
        if wrong := stable_baselines3.own_target(algorithm):
            warnings.warn(f"ERA: {wrong}", stacklevel=2)


def era_actor(
    target_entropy: float = SAC_TARGET,
    log_std_min: float = LOG_STD_MIN,
    log_std_max: float = LOG_STD_MAX,
    distribution: str = "truncated",
    layer_norm: bool = False,
) -> dict[str, Any]:
    """policy_kwargs with ERA's actor. Add to them with dict(**era_actor(), net_arch=[512, 512]).

    Args:
        target_entropy: H0' per action dimension, in nats.
        log_std_min, log_std_max: range of ln sigma.
        distribution: "truncated" or "tanh", how the Gaussian is bounded to [-1, 1].
        layer_norm: LayerNorm in the actor, before each activation. The key layer_norm of
            policy_kwargs is sbx's own, for the critics.

    Constructing the model raises ValueError for an action of one dimension, an infeasible target,
    another distribution and gSDE.
    """
    return {
        "actor_class": partial(
            EraActor,
            target_entropy=target_entropy,
            log_std_min=log_std_min,
            log_std_max=log_std_max,
            distribution=distribution,
            layer_norm=layer_norm,
        )
    }


def is_era(actor_class: Any) -> bool:
    """Whether a model's actor_class is one that era_actor made."""
    return isinstance(actor_class, partial) and actor_class.func is EraActor


class EraMetrics(stable_baselines3.EraMetrics):
    """The callback era.stable_baselines3.EraMetrics for models of sbx with era_actor.

    It takes sbx's ent_coef_loss out of the log where ent_coef is 0, whose logarithm sbx logs.
    """

    def _on_step(self) -> bool:
        if self.model.ent_coef_init == 0:
            for kept in (self.logger.name_to_value, self.logger.name_to_excluded):
                kept.pop("train/ent_coef_loss", None)
        return True

    def target(self) -> float:
        return self.model.policy.actor.target_entropy

    def has_era(self) -> bool:
        return isinstance(getattr(self.model.policy, "actor", None), EraActor)

    def entropies(self, obs: PyTorchObs) -> tuple[jax.Array, jax.Array]:
        policy = self.model.policy
        if isinstance(obs, dict):
            obs = {name: value.numpy() for name, value in obs.items()}
        state = policy.actor_state
        distribution = state.apply_fn(state.params, policy.prepare_obs(obs)[0])
        return distribution.entropy(jax.random.key(0)), distribution.log_std


class EraSAC(SAC):
    """sbx's SAC with the paper's loss of the policy, Eq. simplified_sac_policy_loss.

    Args:
        policy_kwargs: with those of era_actor.
        learn_delta: learn the residual delta, per action dimension, by Eq. residual_loss with the
            actor's optimizer; it is 0 otherwise.
        level: "state" (Eq. continuous_era), or "batch" (Eq. batch_era), where an update of the
            policy takes the mean over its batch, and acting and the critics' target take a running
            average.
        ent_coef: must be 0, because this loss of the policy has no entropy term.
        others: sbx's.

    Raises:
        ValueError: policy_kwargs without era_actor's, an ent_coef other than 0, an unknown level,
            a target_entropy outside of policy_kwargs.
    """

    def __init__(
        self,
        policy: Any,
        env: Any,
        *,
        policy_kwargs: dict[str, Any] | None = None,
        learn_delta: bool = False,
        level: str = "state",
        ent_coef: float = 0.0,
        **kwargs: Any,
    ):
        if "target_entropy" in kwargs:
            raise ValueError(
                f"target_entropy = {kwargs['target_entropy']!r} outside of policy_kwargs would be "
                "sbx's, for learning ent_coef. Set policy_kwargs=era_actor(target_entropy=...): "
                "ERA's is per action dimension."
            )
        if policy_kwargs is not None and is_era(policy_kwargs.get("actor_class")):
            actor = partial(policy_kwargs["actor_class"], learn_delta=learn_delta, level=level)
            policy_kwargs = {**policy_kwargs, "actor_class": actor}
        super().__init__(policy, env, policy_kwargs=policy_kwargs, ent_coef=ent_coef, **kwargs)

    def _setup_model(self) -> None:
        # Not in __init__, which load calls before it fills in the saved arguments.
        if not is_era(self.policy_kwargs.get("actor_class")):
            raise ValueError(
                "EraSAC has no entropy term, so only ERA's actor keeps the policy's entropy: set "
                "policy_kwargs=era_actor(...), or dict(**era_actor(...), net_arch=[256, 256])."
            )
        if self.ent_coef_init != 0:
            raise ValueError(
                f"ent_coef = {self.ent_coef_init!r}: EraSAC's loss of the policy has no entropy "
                "term. Leave it out; sbx's SAC with era_actor takes one."
            )
        super()._setup_model()

    @staticmethod
    @jax.jit
    def update_actor(actor_state, qf_state, ent_coef_state, observations, key):
        """Update the actor as sbx does, without the entropy term and with the loss of delta."""
        key, noise, dropout, entropy = jax.random.split(key, 4)

        def loss(variables):
            policy, updated = actor_state.apply_fn(
                variables, observations, mutable=[AVERAGES, LOSSES], rngs={"entropy": entropy}
            )
            actions = policy.sample(seed=noise)
            q = qf_state.apply_fn(
                qf_state.params, observations, actions, rngs={"dropout": dropout}
            ).min(0)
            residual = sum(jax.tree.leaves(updated.pop(LOSSES, {})))
            return residual - q.mean(), (updated, policy.log_prob(actions).mean())

        (value, (updated, log_prob)), gradients = jax.value_and_grad(loss, has_aux=True)(
            actor_state.params
        )
        actor_state = actor_state.apply_gradients(grads=gradients)
        variables = {**actor_state.params, **updated}
        if "delta" in variables["params"]:  # delta >= 0
            delta = jnp.maximum(variables["params"]["delta"], 0)
            variables["params"] = {**variables["params"], "delta": delta}
        return actor_state.replace(params=variables), qf_state, value, key, -log_prob
