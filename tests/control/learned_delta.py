# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""FastSAC-ERA's actor trained on toys: does a learned delta (Eq. residual_loss) bring the policy's entropy to H0?

Actor, losses and optimizer groups are those of a patched FastTD3. In place of critic and environment there is a known
value of the action in a random state: its mean (best at the bound), the mean of w(s) a (best at a bound that depends on
the state), or minus the mean square distance to a point inside. Entropies are in nats per action dimension, of the
trained policy in new states.
"""

import math

import torch

TOLERANCE = 0.03
TARGET = -0.75  # H0 per action dimension
STATE_DIM, ACTION_DIM, BATCH = 8, 10, 128


def values() -> dict:
    """Name to Q(s, a) (B,), of states (B, STATE_DIM) and actions (B, ACTION_DIM)."""
    generator = torch.Generator().manual_seed(7)
    weights = torch.randn(STATE_DIM, ACTION_DIM, generator=generator) / math.sqrt(STATE_DIM)
    return {
        "mean": lambda states, actions: actions.mean(-1),
        "linear": lambda states, actions: (states @ weights * actions).mean(-1),
        "interior": lambda states, actions: -(actions - 0.5 * (states @ weights).tanh()).square().mean(-1),
    }


def train(distribution: str, value, learn_delta: bool, updates: int = 1000) -> dict:
    """delta, its upper limit, and the mean entropies of policy and Gaussian: nats per action dimension."""
    import era_training
    import fastsac_era

    torch.manual_seed(0)
    actor = fastsac_era.Actor(
        n_obs=STATE_DIM, n_act=ACTION_DIM, num_envs=1, init_scale=0.01, hidden_dim=64,
        distribution=distribution, target_entropy=TARGET, learn_delta=learn_delta, level="state",
        log_std_min=-8.0, log_std_max=0.0,
    )  # fmt: skip
    optimizer = torch.optim.AdamW(era_training.parameter_groups(actor), lr=3e-3, weight_decay=0.1)
    for _ in range(updates):
        states = torch.randn(BATCH, STATE_DIM)
        actions, residual_loss = era_training.policy_actions(actor, {"observations": states}, {})
        loss = residual_loss - value(states, actions).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    actor.residual_loss(torch.zeros(()))  # the projection of delta that the next update would begin with
    with torch.no_grad():
        _, entropies = actor(torch.randn(20_000, STATE_DIM), with_entropies=True)
    measured = {name: float(entropies[name]) / ACTION_DIM for name in ("delta", "policy_entropy", "gaussian_entropy")}
    return {**measured, "largest_delta": actor.largest_delta}


def outcome(measured: dict) -> str:
    """Where the entropy per dimension has come to, in words."""
    if abs(measured["policy_entropy"] - TARGET) <= TOLERANCE:
        return "H = H0"
    if measured["delta"] >= measured["largest_delta"] - 1e-3:
        return "diverged: delta at its limit"
    return "H below H0" if measured["policy_entropy"] < TARGET else "H above H0"
