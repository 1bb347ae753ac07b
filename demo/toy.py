# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""When ERA holds its bound, on a table of logits: GRPO and ERA without a language model, in a minute on a laptop.

    python -m demo.toy

A row of the table is a prompt; an answer is one of its tokens, and 16 of the 64 are right. What the printed table
shows, and the rule behind its first line, are explained in docs/llm/when-it-holds.md.
"""

import argparse
import math
from dataclasses import dataclass
from pathlib import Path

import torch

from era.language import logit_scale

PROMPTS, TOKENS, RIGHT, GROUP = 8, 64, 16, 8
SEEDS, LOW = 8, 1.2  # omega_low in nats
FACTORS = (1.0, 2.0, 3.0, 4.0, 8.0)  # k; 1 is GRPO


@dataclass(frozen=True)
class Setting:
    groups: int = 4  # of eight answers, in an update
    learning_rate: float = 0.05
    updates: int = 600
    weight: float = 1.0  # of negative advantages
    scale_advantages: bool = False  # the paper's A'
    dynamic_sampling: bool = False  # replace groups without advantages
    low: float = LOW
    right_later: float = 0.0  # the chance of a right answer after each token, instead of right and wrong tokens


SETTINGS = {
    "4 groups of 8 answers in an update": Setting(),
    "4 times the answers in an update": Setting(groups=16),
    "a quarter of the learning rate, 4 times the updates": Setting(learning_rate=0.0125, updates=2400),
    "4 times the learning rate": Setting(learning_rate=0.2),
    "dynamic sampling": Setting(dynamic_sampling=True),
    "advantages scaled (A')": Setting(scale_advantages=True),
    "negative advantages halved": Setting(weight=0.5),
    "no negative advantages": Setting(weight=0.0),
    "a bound of 0.8": Setting(low=0.8),
    "a bound of 1.6": Setting(low=1.6),
    "a bound of 2.0": Setting(low=2.0),
    "a bound of 3.0; answers fail after the token, 1 in 10": Setting(low=3.0, right_later=0.9),
}


def lowest_bound(
    k: float, right: int = RIGHT, weight: float = 1.0, scale_advantages: bool = False
) -> tuple[float, float]:
    """Where ERA's force and the negative advantages cancel, when one right token stands out and no wrong one is likely.

    The expected change of a logit i, divided by the positive advantage, is k (p_i - p'_i) + weight p_i, with
    p' ~ p^k. Below the returned entropy the likely token gains on the others, whatever ERA does.

    Args:
        k: the factor of Eq. llm, > 1.
        right: equally good tokens, 2 or more.
        weight: of negative advantages, >= 0.
        scale_advantages: divide positive advantages by k.

    Returns:
        The probability of the token that stands out, and the entropy in nats; (nan, nan) where ERA does not flatten
        even equal tokens, (1, 0) where nothing opposes it.
    """
    factor = 1 if scale_advantages else k

    def gain(p):  # of the likely token on one of the others
        other = (1 - p) / (right - 1)
        sharpened = (p**k - other**k) / (p**k + (right - 1) * other**k)
        return factor * (p - other - sharpened) + weight * (p - other)

    low, high = 1 / right + 1e-6, 1 - 1e-9
    if gain(low) > 0:
        return math.nan, math.nan
    if gain(high) < 0:
        return 1.0, 0.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if gain(middle) < 0 else (low, middle)
    return low, -low * math.log(low) - (1 - low) * math.log((1 - low) / (right - 1))


def rewards(logits, where, setting, generator):
    """Sampled tokens and their rewards, (arms, seeds, groups, GROUP)."""
    p = logits[where].softmax(-1)
    tokens = torch.multinomial(p.flatten(0, 2), GROUP, replacement=True, generator=generator).view(*p.shape[:3], GROUP)
    if setting.right_later:
        return tokens, (torch.rand(tokens.shape, generator=generator) < setting.right_later).double()
    return tokens, (tokens < RIGHT).double()


def train(setting: Setting, factors=FACTORS, seeds: int = SEEDS) -> tuple[torch.Tensor, torch.Tensor]:
    """Train a table for each k and seed, all at once: Adam works on each number alone.

    Returns:
        The mean entropy over prompts, in nats, and the share of right answers: (updates, len(factors), seeds).
    """
    generator = torch.Generator().manual_seed(1)
    logits = 0.5 * torch.randn(seeds, PROMPTS, TOKENS, generator=generator).double()
    logits[..., :RIGHT] += math.log(0.3 / RIGHT / (0.7 / (TOKENS - RIGHT)))  # 3 of 10 answers are right at first
    logits = logits.repeat(len(factors), 1, 1, 1).requires_grad_()
    adam = torch.optim.Adam([logits], lr=setting.learning_rate)
    arms = torch.arange(len(factors)).view(-1, 1, 1), torch.arange(seeds).view(1, -1, 1)
    shape, entropies, shares = (len(factors), seeds, setting.groups), [], []

    for _ in range(setting.updates):
        with torch.no_grad():
            prompts = torch.randint(PROMPTS, shape, generator=generator)
            tokens, reward = rewards(logits, (*arms, prompts), setting, generator)
            for _ in range(30 if setting.dynamic_sampling else 0):
                alike = reward.std(-1) == 0
                prompts = torch.where(alike, torch.randint(PROMPTS, shape, generator=generator), prompts)
                again = rewards(logits, (*arms, prompts), setting, generator)
                tokens, reward = (torch.where(alike[..., None], *pair) for pair in zip(again, (tokens, reward)))
            advantages = (reward - reward.mean(-1, keepdim=True)) / (reward.std(-1, keepdim=True) + 1e-6)
            advantages = torch.where(advantages < 0, setting.weight * advantages, advantages)
            sampled_from = torch.distributions.Categorical(logits=logits[(*arms, prompts)])
            h_resp = sampled_from.entropy()
            bounds, every = {"low": setting.low, "high": math.inf}, torch.ones(seeds * setting.groups, GROUP)
            of_arms = zip(h_resp.flatten(1), advantages.flatten(1, 2), factors)
            scale = torch.stack([logit_scale(h, a, every, k=k, **bounds) for h, a, k in of_arms]).view_as(advantages)
        scaled = logits[(*arms, prompts)].unsqueeze(-2) * scale.unsqueeze(-1)
        log_probs = scaled.log_softmax(-1).gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
        weight = advantages / scale if setting.scale_advantages else advantages
        adam.zero_grad()
        (-weight * log_probs).mean((2, 3)).sum().backward()
        adam.step()
        with torch.no_grad():
            policy = torch.distributions.Categorical(logits=logits)
            entropies.append(policy.entropy().mean(-1))
            shares.append(policy.probs[..., :RIGHT].sum(-1).mean(-1))
    return torch.stack(entropies), torch.stack(shares)


def picture(entropies, file):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
    for column, k in enumerate(FACTORS):
        name, style = (f"ERA, k = {k:g}", {}) if k > 1 else ("GRPO", dict(color="black", linestyle="--"))
        left.plot(entropies[:, column].mean(-1), label=name, **style)
    left.axhline(LOW, color="0.5", linestyle=":", label=rf"$\omega_\mathrm{{low}}$ = {LOW}")
    left.set(title="Entropy, means over the seeds", xlabel="update", ylabel="nats")
    left.legend(frameon=False)
    ks = torch.linspace(1.7, 12, 100).tolist()
    for count in (64, 16, 4, 2):
        right.plot(ks, [lowest_bound(k, count)[1] for k in ks], label=f"{count} right tokens")
    right.set(title="Lowest bound that ERA holds, by hand", xlabel="k", ylabel="nats", ylim=(0, None))
    right.legend(frameon=False)
    for axis in (left, right):
        axis.spines[["top", "right"]].set_visible(False)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=130)


def main():
    parser = argparse.ArgumentParser(prog="python -m demo.toy", description=__doc__.split("\n")[0])
    parser.add_argument("--picture", type=Path, default=Path("results/toy.png"), help="where to draw it")
    file = parser.parse_args().picture
    torch.set_num_threads(1)
    print(
        f"Entropy over the last 20 updates in nats, mean of {SEEDS} seeds ± their standard deviation, and the share of"
    )
    print(f"right answers. ERA acts below the bound omega_low, {LOW} where the row does not say another.\n")
    print(f"{'':54}" + "".join(f"{f'k = {k:g}' if k > 1 else 'GRPO':>18}" for k in FACTORS))
    print(f"{'lowest bound that ERA holds, by hand':54}{'':18}", end="")
    print("".join(f"{lowest_bound(k)[1]:>18.2f}" for k in FACTORS if k > 1))
    for number, (name, setting) in enumerate(SETTINGS.items()):
        entropies, shares = train(setting)
        last, right = entropies[-20:].mean(0), shares[-20:].mean((0, 2)).tolist()
        right = [setting.right_later or share for share in right]
        cells = (f"{h:.2f} ± {s:.2f} {r:5.2f}" for h, s, r in zip(last.mean(-1), last.std(-1), right))
        print(f"{name:54}" + "".join(f"{cell:>18}" for cell in cells), flush=True)
        if number == 0:
            picture(entropies, file)
    print(f"\nThe picture is in {file}.")


if __name__ == "__main__":
    main()
