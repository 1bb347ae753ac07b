# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""ERA for the PPO and the SAC of brax, which mujoco_playground trains with.

    ppo.train(env, network_factory=partial(era.brax.make_ppo_networks, target_entropy=-0.3),
              entropy_cost=0.0, ...)

Targets are in nats per action dimension.
"""

import inspect
from collections.abc import Callable
from typing import Any

try:
    import jax
    import jax.numpy as jnp
    from brax.training import distribution, networks
    from brax.training.agents.ppo import networks as ppo
    from brax.training.agents.sac import networks as sac
    from brax.training.types import identity_observation_preprocessor
except ModuleNotFoundError as error:
    if error.name not in ("brax", "jax"):
        raise
    raise ImportError(
        "era.brax is for brax, which is not installed. pip install 'brax>=0.14.2,<0.15'"
    ) from None

from era.continuous import announce, check_state_level, check_target, total_target
from era.continuous_jax import state_level_log_std
from era.gaussian_defaults import LOG_STD_MAX, LOG_STD_MIN

# Settings of brax for its other distribution, and for a std that ERA's replaces.
WITHOUT_ERA = (
    "distribution_type",
    "noise_std_type",
    "init_noise_std",
    "state_dependent_std",
    "mean_clip_scale",
    "mean_kernel_init_fn",
    "mean_kernel_init_kwargs",
)
# By this name in the tree, ERA and brax do not train on with each other's weights.
MARK = "trained_with_era"
BATCH_LEVEL = "EraSAC(level='batch') in era.sbx; era.brax has only the form per state"


class EraTanhDistribution(distribution.NormalTanhDistribution):
    """brax's tanh of a Gaussian, with ERA's sigma. Parameters are mean and pre_std, (..., 2 D).

    Args and errors are those of make_ppo_networks.
    """

    def __init__(
        self, event_size: int, target_entropy: float, log_std_min: float, log_std_max: float
    ):
        super().__init__(event_size)
        check_state_level(event_size, BATCH_LEVEL)
        target = total_target(target_entropy, event_size)
        check_target(target, event_size, log_std_min, log_std_max)
        self.arguments = target, log_std_min, log_std_max

    def create_dist(self, parameters: jax.Array) -> Any:
        """Return brax's Gaussian before tanh, with ERA's sigma; parameters are (..., 2 D)."""
        loc, pre_std = jnp.split(parameters, 2, axis=-1)
        scale = jnp.exp(state_level_log_std(pre_std, *self.arguments))
        return distribution._NormalDistribution(loc=loc, scale=scale)


def with_settings_of(make: Callable) -> Callable[[Callable], Callable]:
    """Show make's settings in the signature, which brax's checkpoints save and call again."""

    def decorate(factory: Any) -> Callable:
        own = dict(inspect.signature(factory).parameters)
        del own["settings"]
        brax_settings = [
            parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for name, parameter in inspect.signature(make).parameters.items()
            if name not in own and name not in WITHOUT_ERA
        ]
        factory.__signature__ = inspect.Signature([*own.values(), *brax_settings])
        return factory

    return decorate


def marked(policy: networks.FeedForwardNetwork) -> networks.FeedForwardNetwork:
    """The policy network whose weights say that they were trained with ERA."""

    def init(key: jax.Array) -> Any:
        variables = policy.init(key)
        # Not empty, which orbax would not save. Its gradient is 0.
        return {**variables, "params": {**variables["params"], MARK: jnp.zeros(1)}}

    def apply(normalizer: Any, variables: Any, observations: Any) -> jax.Array:
        if MARK not in variables["params"]:
            raise ValueError(
                "These weights do not say that they were trained with ERA, and those of another "
                "policy would be read as ERA's. Use brax's own network_factory for them."
            )
        return policy.apply(normalizer, variables, observations)

    return networks.FeedForwardNetwork(init=init, apply=apply)


def with_era(
    make: Callable, sizes: tuple, bounds: tuple[float, float, float], settings: dict[str, Any]
) -> Any:
    """The networks of brax's factory make, with ERA's distribution."""
    without_era = [name for name in WITHOUT_ERA if name in settings]
    if without_era:
        raise TypeError(
            f"{', '.join(without_era)}: of a policy of brax without ERA. Leave it out: with ERA it "
            "does nothing. If a checkpoint asks for it, the checkpoint was trained without ERA: "
            "load it with brax's own network_factory."
        )
    head = EraTanhDistribution(sizes[1], *bounds)
    made = make(*sizes, **settings)
    announce(bounds[0], sizes[1])
    return made.replace(
        policy_network=marked(made.policy_network), parametric_action_distribution=head
    )


@with_settings_of(ppo.make_ppo_networks)
def make_ppo_networks(
    observation_size: Any,
    action_size: int,
    preprocess_observations_fn: Callable = identity_observation_preprocessor,
    *,
    target_entropy: float,
    log_std_min: float = LOG_STD_MIN,
    log_std_max: float = LOG_STD_MAX,
    **settings: Any,
) -> ppo.PPONetworks:
    """A network_factory for brax's ppo.train, to be completed by functools.partial.

    Args:
        target_entropy: H0' per action dimension, in nats, the least entropy of the Gaussian before
            tanh. It has no default.
        log_std_min, log_std_max: range of ln sigma.
        settings: of brax.training.agents.ppo.networks.make_ppo_networks, but
            those in WITHOUT_ERA.

    Raises:
        ValueError: an action of one dimension, an infeasible target; when the policy is applied,
            weights that were not trained with ERA.
        TypeError: no target_entropy, settings in WITHOUT_ERA, unknown settings.
    """
    sizes = observation_size, action_size, preprocess_observations_fn
    bounds = target_entropy, log_std_min, log_std_max
    return with_era(ppo.make_ppo_networks, sizes, bounds, settings)


@with_settings_of(sac.make_sac_networks)
def make_sac_networks(
    observation_size: Any,
    action_size: int,
    preprocess_observations_fn: Callable = identity_observation_preprocessor,
    *,
    target_entropy: float,
    log_std_min: float = LOG_STD_MIN,
    log_std_max: float = LOG_STD_MAX,
    **settings: Any,
) -> sac.SACNetworks:
    """A network_factory for brax's sac.train, to be completed as `make_ppo_networks`.

    Its loss keeps brax's learned entropy bonus beside ERA.
    """
    sizes = observation_size, action_size, preprocess_observations_fn
    bounds = target_entropy, log_std_min, log_std_max
    return with_era(sac.make_sac_networks, sizes, bounds, settings)
