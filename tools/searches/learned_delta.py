"""Train FastSAC-ERA's actor on toys: does a learned delta (Eq. residual_loss) bring the policy's entropy to H0?

    python -m tools.searches.learned_delta checkouts/fasttd3 [--distributions truncated] [--values mean] [--target -1]

Actor, losses and optimizer groups are those of a patched FastTD3. In place of critic and environment there is a known
value of the action in a random state: its mean (best at the bound), the mean of w(s) a (best at a bound that depends on
the state), or minus the mean square distance to a point inside. Entropies are in nats per action dimension, of the
trained policy in new states. The last column says whether H is H0 within `TOLERANCE`, and whether delta ended at its
upper limit, where every sigma is sigma_max.
"""

import argparse
import math
import sys
from pathlib import Path

import torch

TOLERANCE = 0.03
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


def train(distribution: str, value, learn_delta: bool, options: argparse.Namespace) -> dict:
    """delta, its upper limit, and the mean entropies of policy and Gaussian: nats per action dimension."""
    import era_training
    import fastsac_era

    torch.manual_seed(options.seed)
    actor = fastsac_era.Actor(
        n_obs=STATE_DIM, n_act=ACTION_DIM, num_envs=1, init_scale=0.01, hidden_dim=64,
        distribution=distribution, target_entropy=options.target, learn_delta=learn_delta, level="state",
        log_std_min=options.log_std_min, log_std_max=options.log_std_max,
    )  # fmt: skip
    optimizer = torch.optim.AdamW(era_training.parameter_groups(actor), lr=options.learning_rate, weight_decay=0.1)
    for _ in range(options.updates):
        states = torch.randn(BATCH, STATE_DIM)
        actions, residual_loss = era_training.policy_actions(actor, {"observations": states}, {})
        loss = residual_loss - value(states, actions).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    actor.residual_loss(torch.zeros(()))  # the projection of delta that the next update would begin with
    with torch.no_grad():
        _, entropies = actor(torch.randn(20_000, STATE_DIM), with_entropies=True)
    found = {name: float(entropies[name]) / ACTION_DIM for name in ("delta", "policy_entropy", "gaussian_entropy")}
    return {**found, "largest_delta": actor.largest_delta}


def outcome(found: dict, target: float) -> str:
    if abs(found["policy_entropy"] - target) <= TOLERANCE:
        return "H = H0"
    if found["delta"] >= found["largest_delta"] - 1e-3:
        return "diverged: delta at its limit"
    return "H below H0" if found["policy_entropy"] < target else "H above H0"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, help="a patched FastTD3 (make apply)")
    parser.add_argument(
        "--distributions", nargs="+", choices=("truncated", "tanh", "clipped"), default=("truncated", "tanh", "clipped")
    )
    parser.add_argument("--values", nargs="+", choices=values(), default=list(values()))
    parser.add_argument("--target", type=float, default=-0.75, help="H0 per action dimension")
    parser.add_argument("--log_std_min", type=float, default=-8.0)
    parser.add_argument("--log_std_max", type=float, default=0.0)
    parser.add_argument("--updates", type=int, default=1000)
    parser.add_argument("--learning_rate", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    sys.path.insert(0, str(options.checkout / "fast_td3"))
    torch.set_num_threads(1)
    log_std = f"[{options.log_std_min:g}, {options.log_std_max:g}]"
    print(f"H0 {options.target:g} per dimension, {options.updates} updates, ln sigma in {log_std}")
    print(f"{'policy':10} {'Q':9} {'delta':8} {'delta':>8} {'H':>8} {'H - H0':>8} {'Gaussian H':>11}")
    for distribution in options.distributions:
        for name in options.values:
            for learn_delta in (False, True):
                found = train(distribution, values()[name], learn_delta, options)
                delta, entropy = found["delta"], found["policy_entropy"]
                print(
                    f"{distribution:10} {name:9} {'learned' if learn_delta else '0':8} {delta:8.3f} {entropy:8.3f} "
                    f"{entropy - options.target:8.3f} {found['gaussian_entropy']:11.3f}  "
                    f"{outcome(found, options.target)}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
