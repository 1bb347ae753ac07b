# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Offline-Boosted Actor-Critic (Luo et al., arXiv 2405.18520) on the SAC of sbx.

    OBAC("MlpPolicy", env, policy_kwargs={"net_arch": [512, 512], "layer_norm": True})
    OBAC("MlpPolicy", env, ent_coef=0.0, policy_kwargs=era_actor() | {...})               OBAC-ERA

OBAC also learns Q and V of mu*, the best policy whose actions the replay buffer has. mu* has no
network: V is the tau-expectile of Q over the buffer's actions, with tau near 1.

    V of mu*:  mean |tau - 1(e < 0)| e^2,            e = min_i Q_i^mu(s, a) - V^mu(s), targets' Q
    Q of mu*:  sum_i mean (r + gamma V^mu(s') - Q_i^mu(s, a))^2 / 2
    policy:    SAC's loss - lambda mean ln pi(a|s)   if mu* is worth more than the policy

with (s, a) from the buffer; what mu* and the policy are worth are means over the batch.
docs/deviations.md says what these equations leave open, and what the authors' release does there.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax.training.train_state import TrainState
from sbx import SAC
from sbx.common.policies import ContinuousCritic
from sbx.common.type_aliases import RLTrainState

LARGEST_ACTION = 1 - 1e-6  # a tanh policy has the log-prob -inf at 1
SMALLEST_LOG_PROB = -20.0  # per dimension; an action below it gives no gradient
SWITCHES = ("soft", "reward")


class Critics(RLTrainState):
    """SAC's critics, with those of mu*.

    Attributes:
        offline: the Q of mu* and their targets.
        offline_value: V of mu*.
        reward_critics: Q of the policy without entropy, for switch="reward"; else None.
        actions: (B, D), of the newest batch, which update_actor is not given.
        values: (3,), means over that batch: the policy's value, Q of mu* at its actions, V of mu*.
        imitations: how many updates of the policy have imitated so far.
        expectile, weight: OBAC's expectile and imitation_weight.
    """

    offline: RLTrainState
    offline_value: TrainState
    reward_critics: RLTrainState | None
    actions: jax.Array
    values: jax.Array
    imitations: jax.Array
    expectile: jax.Array
    weight: jax.Array


def expectile_loss(error: jax.Array, expectile: jax.Array) -> jax.Array:
    """The mean of |expectile - 1(error < 0)| error^2, whose minimum over V is the expectile of Q = error + V."""
    return (jnp.abs(expectile - (error < 0)) * jnp.square(error)).mean()


def regress(critics: TrainState, observations: jax.Array, actions: jax.Array, targets: jax.Array):
    """One step of several Q (n, B, 1) towards targets (B,), with SAC's loss.

    Returns:
        The new state, and the mean over the batch of the smallest Q before the step.
    """

    def loss(params):
        values = critics.apply_fn(params, observations, actions)[..., 0]
        return 0.5 * jnp.square(values - targets).mean(1).sum(), values.min(0).mean()

    gradients, value = jax.grad(loss, has_aux=True)(critics.params)
    return critics.apply_gradients(grads=gradients), value


def update_offline(critics: Critics, observations, actions, next_observations, rewards, dones, discounts) -> Critics:
    """One step of Q and of V of mu*."""
    offline, offline_value = critics.offline, critics.offline_value

    def value(params, observations):
        return offline_value.apply_fn(params, observations, observations[:, :0])[:, 0]

    targets = rewards + (1 - dones) * discounts * value(offline_value.params, next_observations)
    q_of_targets = offline.apply_fn(offline.target_params, observations, actions).min(0)[:, 0]

    def value_loss(params):
        values = value(params, observations)
        return expectile_loss(q_of_targets - values, critics.expectile), values.mean()

    gradients, v_mu = jax.grad(value_loss, has_aux=True)(offline_value.params)
    offline, q_mu = regress(offline, observations, actions, targets)
    return critics.replace(
        offline=offline,
        offline_value=offline_value.apply_gradients(grads=gradients),
        actions=actions,
        values=jnp.stack([critics.values[0], q_mu, v_mu]),
    )


class OBAC(SAC):
    """sbx's SAC with OBAC's imitation of the best policy that the replay buffer shows.

    Args:
        expectile: tau.
        imitation_weight: lambda; with 0 the policy is SAC's.
        switch: which value of the policy is compared with mu*'s: "soft" is SAC's Q, as in the
            authors' release, with alpha times the entropy to come; "reward" is a Q without entropy.
        The others are sbx's. A schedule of learning rates reaches SAC's own networks alone.
    """

    def __init__(
        self,
        policy: Any,
        env: Any,
        *,
        expectile: float = 0.9,
        imitation_weight: float = 1e-3,
        switch: str = "soft",
        **kwargs: Any,
    ):
        if switch not in SWITCHES:
            raise ValueError(f"switch = {switch!r}: one of {', '.join(SWITCHES)} expected.")
        self.expectile, self.imitation_weight, self.switch = expectile, imitation_weight, switch
        super().__init__(policy, env, **kwargs)

    def _setup_model(self) -> None:
        super()._setup_model()
        policy, online = self.policy, self.policy.qf_state
        if isinstance(online, Critics):  # of a model that is loaded
            return
        # fold_in, not split, so that SAC's own random numbers stay the same.
        q_key, value_key, reward_key = jax.random.split(jax.random.fold_in(self.key, 0), 3)
        observation = jnp.zeros((1, *self.observation_space.shape))
        action = jnp.zeros((1, *self.action_space.shape))
        value = ContinuousCritic(policy.net_arch_qf, policy.layer_norm, activation_fn=policy.activation_fn)

        def critics(key) -> RLTrainState:
            params = policy.qf.init({"params": key, "dropout": key}, observation, action)
            return RLTrainState.create(apply_fn=online.apply_fn, params=params, target_params=params, tx=online.tx)

        policy.qf_state = Critics(
            **{field: getattr(online, field) for field in RLTrainState.__dataclass_fields__},
            offline=critics(q_key),
            offline_value=TrainState.create(
                apply_fn=value.apply,
                params=value.init(value_key, observation, observation[:, :0]),
                tx=online.tx,
            ),
            reward_critics=critics(reward_key) if self.switch == "reward" else None,
            actions=jnp.zeros((self.batch_size, *self.action_space.shape)),
            values=jnp.zeros(3),
            imitations=jnp.zeros((), jnp.int32),
            expectile=jnp.asarray(self.expectile),
            weight=jnp.asarray(self.imitation_weight),
        )

    @staticmethod
    @jax.jit
    def update_critic(actor_state, qf_state, ent_coef_state, *batch_and_key):
        *batch, key = batch_and_key
        critics = update_offline(qf_state, *batch)
        if critics.reward_critics is not None:
            observations, actions, next_observations, rewards, dones, discounts = batch
            policy = actor_state.apply_fn(actor_state.params, next_observations)
            next_actions = policy.sample(seed=jax.random.fold_in(key, 0))
            reward_critics = critics.reward_critics
            next_values = reward_critics.apply_fn(reward_critics.target_params, next_observations, next_actions)
            targets = rewards + (1 - dones) * discounts * next_values.min(0)[:, 0]
            reward_critics, _ = regress(reward_critics, observations, actions, targets)
            critics = critics.replace(reward_critics=reward_critics)
        return SAC.update_critic(actor_state, critics, ent_coef_state, *batch, key)

    @staticmethod
    @jax.jit
    def soft_update(tau, qf_state):
        updated = {"offline": SAC.soft_update(tau, qf_state.offline)}
        if qf_state.reward_critics is not None:
            updated["reward_critics"] = SAC.soft_update(tau, qf_state.reward_critics)
        return SAC.soft_update(tau, qf_state.replace(**updated))

    @staticmethod
    @jax.jit
    def update_actor(actor_state, qf_state, ent_coef_state, observations, key):
        key, _, noise = jax.random.split(key, 3)  # as SAC does
        alpha = ent_coef_state.apply_fn({"params": ent_coef_state.params})
        known_actions = jnp.clip(qf_state.actions, -LARGEST_ACTION, LARGEST_ACTION)
        smallest = SMALLEST_LOG_PROB * known_actions.shape[-1]
        judge = qf_state if qf_state.reward_critics is None else qf_state.reward_critics

        def loss(params):
            policy = actor_state.apply_fn(params, observations)
            actions = policy.sample(seed=noise)
            log_prob = policy.log_prob(actions)
            q = qf_state.apply_fn(qf_state.params, observations, actions).min(0)[:, 0]
            value = judge.apply_fn(judge.params, observations, actions).min(0).mean()
            imitates = qf_state.values[1] > value
            imitation = jnp.maximum(policy.log_prob(known_actions), smallest).mean()
            weight = jnp.where(imitates, qf_state.weight, 0.0)
            return (alpha * log_prob - q).mean() - weight * imitation, (value, imitates, -log_prob.mean())

        (loss_value, (value, imitates, entropy)), gradients = jax.value_and_grad(loss, has_aux=True)(actor_state.params)
        qf_state = qf_state.replace(
            values=qf_state.values.at[0].set(value), imitations=qf_state.imitations + imitates.astype(jnp.int32)
        )
        return actor_state.apply_gradients(grads=gradients), qf_state, loss_value, key, entropy
