# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""When ERA holds its bounds, on a table of logits: GRPO and ERA without a language model, in 90 seconds on one core.

    python -m demo.toy

A row of the table is a prompt; an answer is one of its tokens, and 16 of the 64 are right. docs/llm/when-it-holds.md
explains what is printed, and the calculation behind `lowest_bound`.
"""

import argparse
import math
from dataclasses import dataclass
from pathlib import Path

import torch

from era.language import decide
from era.language_config import EraConfig
from recipes import colors
from recipes.pages import filled, table

PROMPTS, TOKENS, RIGHT = 8, 64, 16
GROUP = 8  # answers
SEEDS, EVERY = 3, 10  # EVERY: updates from one point of a curve to the next
LOW, HIGH = 1.2, 2.0  # omega_low and omega_high, in nats
LEARNING_RATES = {"Adam": 0.05, "SGD": 2.0}

# Which advantages an arm leaves out of the loss beside those that `hold` does, for which the likely negative ones are
# left out above the upper bound. A token is likely where its probability is above exp(-H).
LEFT_OUT = {
    "": lambda negative, likely, above: torch.zeros_like(negative),
    "negative": lambda negative, likely, above: negative,
    "negative above": lambda negative, likely, above: above & negative,
    "raising above": lambda negative, likely, above: above & (negative == likely),
}


@dataclass(frozen=True)
class Arm:
    k: float = 1.0
    hold: bool = False
    scale_advantages: bool = False  # the paper's A' = A / scale
    left_out: str = ""  # a key of LEFT_OUT


ARMS = {
    "GRPO": Arm(),
    "ERA 2": Arm(2),
    "ERA 8": Arm(8),
    "hold 1": Arm(1, hold=True),
    "hold 2": Arm(2, hold=True),
    "hold 8": Arm(8, hold=True),
    "no neg. 2": Arm(2, left_out="negative"),
}
ARMS_ABOVE = {
    "GRPO": Arm(),
    "ERA 2": Arm(2),
    "ERA 8": Arm(8),
    "no neg. 2": Arm(2, left_out="negative above"),
    "no raising 2": Arm(2, left_out="raising above"),
    "hold 1": Arm(1, hold=True),
    "hold 2": Arm(2, hold=True),
    "hold 2, A'": Arm(2, hold=True, scale_advantages=True),
}


@dataclass(frozen=True)
class Setting:
    start: str = "easy"  # as `start_logits` has them
    step: float = 1.0  # a factor on the learning rates
    updates: int = 2400
    groups: int = 4  # in an update
    low: float = LOW
    high: float = math.inf
    bonus: float = 0.0  # the coefficient of an entropy bonus
    right: float = 0.0  # the chance that an answer is right, whatever its token; 0: its token decides
    positives: bool = True  # False: positive advantages take no part in the loss


SETTINGS = {
    **{start: Setting(start) for start in ("easy", "few", "trap", "leaders")},
    "easy, step x 4": Setting(step=4, updates=600),
    "step, answers x 4": Setting(step=4, updates=600, groups=16),
    "easy, bound 0.6": Setting(updates=1200, low=0.6),
    "easy, bound 2.0": Setting(updates=1200, low=2.0),
}
_ABOVE = {"updates": 800, "low": 0.0, "high": HIGH}
SETTINGS_ABOVE = {
    "trap": Setting("trap", **_ABOVE),
    "few": Setting("few", **_ABOVE),
    "random": Setting("peaked", right=0.5, **_ABOVE),
    "negatives alone": Setting("peaked", right=0.5, positives=False, **_ABOVE),
    "trap, bonus": Setting("trap", bonus=0.3, **_ABOVE),
}


def lowest_bound(k: float, right: int = RIGHT, leaders: int = 1) -> float:
    """The entropy below which tokens that lead run away from the others, if negative advantages take part.

    The expected change of a logit i is k (p_i - p'_i) + p_i, with p' ~ p^k, where all likely tokens are right. Below
    the returned entropy it raises the leaders more than the others, so that ERA cannot hold a bound there. It may lose
    one above, which more leaders, or larger steps, bring down.

    Args:
        k: the factor of Eq. llm, > 1.
        right: equally good tokens.
        leaders: how many of them stand out, alike; fewer than `right`.

    Returns:
        The entropy in nats; nan for k <= (1 + sqrt 5) / 2 = 1.62, with which even equal tokens part.
    """

    def gain(p):  # of a leader on one of the others
        other = (1 - leaders * p) / (right - leaders)
        sharpened = (p**k - other**k) / (leaders * p**k + (right - leaders) * other**k)
        return k * (p - other - sharpened) + p - other

    low, high = 1 / right + 1e-6, 1 / leaders - 1e-12
    if gain(low) > 0:
        return math.nan
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if gain(middle) < 0 else (low, middle)
    rest = 1 - leaders * low
    return -leaders * low * math.log(low) - rest * math.log(rest / (right - leaders))


def start_logits(start: str, seeds: int, generator: torch.Generator) -> torch.Tensor:
    """(seeds, PROMPTS, TOKENS): at random (s.d. 0.5), then with these probabilities, in nats log p.

    easy: .3 for the right tokens together. few: .05. trap: .05, and of the rest one wrong token has .8. leaders: .3, of
    which three right tokens have .9. peaked: .7 for a token, right or wrong, of which each prompt has its own.
    """
    logits = 0.5 * torch.randn(seeds, PROMPTS, TOKENS, generator=generator)
    token, right = torch.arange(TOKENS), torch.arange(TOKENS) < RIGHT
    if start == "peaked":
        peak = torch.randint(TOKENS, (seeds, PROMPTS, 1), generator=generator)
        return _shared(logits, token == peak, 0.7)
    if start == "trap":
        logits = torch.where(right, logits, _shared(logits.where(~right, -math.inf), token == RIGHT, 0.8))
    if start == "leaders":
        logits = torch.where(right, _shared(logits.where(right, -math.inf), token < 3, 0.9), logits)
    return _shared(logits, right, 0.3 if start in ("easy", "leaders") else 0.05)


def _shared(logits, part, share):
    """Log-probabilities in which `part` of the tokens have the share together, and the others what is left."""
    of_part, of_others = (logits.where(tokens, -math.inf).log_softmax(-1) for tokens in (part, ~part))
    return torch.where(part, of_part + math.log(share), of_others + math.log(1 - share))


def answers(p: torch.Tensor, setting: Setting, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """The tokens that p, (..., TOKENS), draws for a group, and GRPO's advantages; both (..., GROUP)."""
    drawn = torch.multinomial(p.flatten(0, -2), GROUP, replacement=True, generator=generator)
    tokens = drawn.view(*p.shape[:-1], GROUP)
    by_chance = torch.rand(tokens.shape, generator=generator) < setting.right
    reward = (by_chance if setting.right else tokens < RIGHT).float()
    return tokens, (reward - reward.mean(-1, keepdim=True)) / (reward.std(-1, keepdim=True) + 1e-6)


def decided(arm: Arm, setting: Setting, h_resp, log_p, advantages) -> tuple[torch.Tensor, torch.Tensor]:
    """The scale of each answer's logits, and the advantage that the loss takes; both as the advantages.

    advantages, log_p: of the answers, (optimizers, seeds, groups, GROUP). h_resp: in nats, with a last dimension of 1,
    because a group's answers have the same.
    """
    of_arm = {"k": arm.k, "hold": arm.hold, "scale_advantages": arm.scale_advantages}
    era = EraConfig(enable=True, low=setting.low, high=setting.high, **of_arm)
    # An answer has one token.
    entropy, *tensors = (of.reshape(-1, 1) for of in (h_resp.expand_as(advantages), log_p, advantages))
    decision = decide(entropy, *tensors, torch.ones_like(entropy), era)
    scale, taken = (of.view_as(advantages) for of in (decision.scale, decision.advantages))

    left_out = LEFT_OUT[arm.left_out](advantages < 0, log_p + h_resp > 0, h_resp > setting.high)
    taken = taken.masked_fill(left_out, 0)
    return scale, taken if setting.positives else taken.clamp(max=0)


def train(setting: Setting, arms: dict[str, Arm] = ARMS, seeds: int = SEEDS) -> tuple[torch.Tensor, torch.Tensor]:
    """Train a table for each optimizer, arm and seed, all at once: an optimizer works on each number alone.

    Returns:
        The mean entropy over prompts, in nats, and the share of right answers, after every tenth update:
        (updates / EVERY, optimizers, arms, seeds).
    """
    generator = torch.Generator().manual_seed(1)
    start = start_logits(setting.start, seeds, generator).repeat(len(arms), 1, 1, 1)
    tables = [start.clone().requires_grad_() for _ in LEARNING_RATES]
    optimizers = [
        getattr(torch.optim, name)([table], lr=setting.step * rate)
        for table, (name, rate) in zip(tables, LEARNING_RATES.items())
    ]
    shape = len(tables), len(arms), seeds, setting.groups
    which = torch.meshgrid(*map(torch.arange, shape[:3]), indexing="ij")
    which = [index.unsqueeze(-1) for index in which]
    curves = []

    for update in range(1, setting.updates + 1):
        logits, prompts = torch.stack(tables), torch.randint(PROMPTS, shape, generator=generator)
        rows = logits[(*which, prompts)]
        log_p = rows.log_softmax(-1)
        entropy = -(log_p.exp() * log_p).sum(-1, keepdim=True)
        with torch.no_grad():
            tokens, advantages = answers(log_p.exp(), setting, generator)
            sampled = (of.unbind(1) for of in (entropy, log_p.gather(-1, tokens), advantages))
            decisions = (decided(arm, setting, *of_arm) for arm, *of_arm in zip(arms.values(), *sampled))
            scale, taken = (torch.stack(of_arms, 1) for of_arms in zip(*decisions))
            # One for a group: some of its answers have scale 1, because its advantages add to 0.
            factor = scale.amax(-1, keepdim=True) * scale.amin(-1, keepdim=True)
        scaled = (factor * rows).log_softmax(-1)
        log_probs = torch.where(scale != 1, scaled.gather(-1, tokens), log_p.gather(-1, tokens))
        loss = -(taken * log_probs).mean((3, 4)) - setting.bonus * entropy.mean((3, 4))
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.sum().backward()
        for optimizer in optimizers:
            optimizer.step()
        if update % EVERY == 0:
            with torch.no_grad():
                policy = torch.distributions.Categorical(logits=torch.stack(tables))
                right = policy.probs[..., :RIGHT].sum(-1)
                curves.append(torch.stack([policy.entropy().mean(-1), right.mean(-1)]))
    return tuple(torch.stack(curves, 1))


def at_end(curve: torch.Tensor) -> torch.Tensor:
    """The mean over the last fifteenth of the updates and the seeds, (optimizers, arms)."""
    return curve[-(len(curve) // 15) :].mean((0, -1))


def right_at_the_bound(entropies: torch.Tensor, shares: torch.Tensor, low: float) -> torch.Tensor:
    """The share of right answers of the first arm, GRPO, when its entropy first is below low, (optimizers,)."""
    first = (entropies[:, :, :1] < low).int().argmax(0, keepdim=True)
    return shares[:, :, :1].gather(0, first).mean((0, 2, 3))


def picture(entropies: torch.Tensor):
    """The figure of what `train` returns of the easy start."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(LEARNING_RATES), figsize=(10, 3.8), layout="constrained", sharey=True)
    styles = {
        "GRPO": {"color": colors.BASELINE, "label": "GRPO"},
        "ERA 2": {"color": colors.ERA, "label": "ERA, k = 2"},
        "ERA 8": {"color": colors.K_8, "label": "ERA, k = 8"},
        "no neg. 2": {"color": colors.NO_NEGATIVES, "label": "k = 2, no negative advantages"},
        "hold 8": {"color": colors.HOLD, "label": "ERA with hold, k = 8"},
        "hold 2": {"color": colors.HOLD, "linestyle": "--", "label": "ERA with hold, k = 2"},
    }
    updates = EVERY * torch.arange(1, len(entropies) + 1)
    for axis, optimizer, curves in zip(axes, LEARNING_RATES, entropies.mean(-1).unbind(1)):
        for name, style in styles.items():
            axis.plot(updates, curves[:, list(ARMS).index(name)], **style)
        axis.axhline(LOW, color=colors.BOUND, linestyle=":", label=f"the bound, {LOW} nats")
        axis.set(title=optimizer, xlabel="update", ylim=(0, 3))
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("entropy in nats, mean of prompts and seeds")
    axes[-1].legend(frameon=False, fontsize=9)
    return figure


# The tables, by their names in the page, where `--page` writes them.
HEADINGS = {
    "lower bound": f"""Entropy at the end in nats (share of right answers), means of {SEEDS} seeds. The bound is {LOW}
nats where the row has no other. "ERA 2" is ERA with k = 2, "hold 2" the same with hold, "no neg. 2" without negative
advantages anywhere. Last column: GRPO's share of right answers when its entropy crosses the bound.""",
    "upper bound": f"""The highest entropy on the way (share of right answers at the end), means of {SEEDS} seeds. The
bound is {HIGH} nats; all starts but "few" are below. "hold 2, A'" has scaled advantages too. "no neg. 2" is ERA with
k = 2 and, above the bound, no negative advantages; "no raising 2": nothing that raises the entropy.""",
}


def lines(name: str, curves: dict[str, torch.Tensor]):
    """The lines of a table, the first with the names of its columns. `curves` gets the entropies of each row."""
    arms = ARMS if name == "lower bound" else ARMS_ABOVE
    yield ["start", "", *arms, *(["GRPO there"] if arms is ARMS else [])]
    for row, setting in (SETTINGS if arms is ARMS else SETTINGS_ABOVE).items():
        entropies, shares = train(setting, arms)
        curves[row] = entropies
        of_arms = at_end(entropies) if arms is ARMS else entropies.mean(-1).amax(0)
        there = right_at_the_bound(entropies, shares, setting.low).tolist()
        for number, optimizer in enumerate(LEARNING_RATES):
            cells = zip(of_arms[number].tolist(), at_end(shares)[number].tolist())
            last = [f"{there[number]:.3f}"] if arms is ARMS else []
            yield [row, optimizer, *(f"{nats:.2f} ({right:.3f})" for nats, right in cells), *last]


def _printed(line: list[str]) -> list[str]:
    start, optimizer, *cells = line
    print(f"{start:16}{optimizer:6}" + "".join(f"{cell:>14}" for cell in cells), flush=True)
    return line


def main():
    parser = argparse.ArgumentParser(prog="python -m demo.toy", description=__doc__.split("\n")[0])
    parser.add_argument("--picture", type=Path, default=Path("results/toy.png"), help="where to draw it")
    parser.add_argument("--page", type=Path, help="a page whose tables to write anew")
    args = parser.parse_args()
    torch.set_num_threads(1)
    tables, curves = {}, {}
    for name, heading in HEADINGS.items():
        print(f"The {name}. {heading}\n")
        heads, *rows = (_printed(line) for line in lines(name, curves))
        of_starts = zip(*(rows[number :: len(LEARNING_RATES)] for number in range(len(LEARNING_RATES))))
        tables[name] = table(heads, [["<br>".join(dict.fromkeys(cells)) for cells in zip(*rows)] for rows in of_starts])
        print()
    import matplotlib

    matplotlib.use("Agg")
    args.picture.parent.mkdir(parents=True, exist_ok=True)
    picture(curves["easy"]).savefig(args.picture, dpi=130)
    print(f"The picture is in {args.picture}.")
    if args.page:
        args.page.write_text(filled(args.page.read_text(), tables))


if __name__ == "__main__":
    main()
