# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Rows of logits for which era/log_probs.py errs most, against fp64.

    python tests/llm/log_prob_rows.py [--seconds 60] [--vocabulary 151936] [--device cuda]

prints the largest errors and the row that has each, and ends with 1 if one is above its bound (`make bench-gpu` begins
with it; `make log-prob-search` is the test of the same). The search draws
rows of random shapes, and then changes what describes the worst of them, a number at a time. It begins with rows of
many equal logits, `EQUAL`: the factor s / T is rounded once, and there it moves all of them the same way.
"""

import argparse
import random
import sys
import textwrap
import time

import torch

from era.log_probs import backend, branch_log_probs, policy_terms

# The ranges for which BOUNDS hold.
TEMPERATURES = (0.3, 2.0)
FACTORS = (1.0, 8.0)  # k: the scales are 1, k and 1 / k
# Log-probs relative to 1 + |log-prob|, entropies in nats, gradients relative to 1 + the row's largest. A factor that is
# off by d moves the entropy of one logit that is x above n equal ones by d p (1 - p) x^2, at most 37 d for n = 151,936;
# the Triton kernels' sums of a block of equal numbers round too.
TORCH = {"log-prob": 5e-7, "entropy": 4e-6, "gradient, float32": 1.5e-6, "gradient, bfloat16": 2**-8}
BOUNDS = {
    "torch": TORCH,
    "torch.compile": TORCH,
    "triton": {"log-prob": 2e-6, "entropy": 4e-6, "gradient, float32": 1e-5, "gradient, bfloat16": 2**-7},
}
SPACE = {
    "shape": lambda chance: chance.choice(("equal", "normal", "uniform", "heavy", "steps", "line")),
    "spread": lambda chance: chance.choice((1e-3, 0.1, 0.5, 1.0, 2.0, 3.0, 5.0, 8.0, 20.0, 300.0, 3000.0)),
    "offset": lambda chance: chance.choice((0.0, chance.uniform(-40, 40), 100.0, -1e4)),
    "top": lambda chance: chance.choice((0, 1, 1, 2, 20, 1000)),  # so many logits are `gap` above the others
    "gap": lambda chance: chance.uniform(0, 30),
    "removed": lambda chance: chance.choice((0.0, 0.0, 0.5, 0.999)),  # share of the logits that are -inf
    "label": lambda chance: chance.choice(("largest", "smallest", "random")),
    "temperature": lambda chance: chance.choice((*TEMPERATURES, 1.0, chance.uniform(*TEMPERATURES))),
    "k": lambda chance: chance.choice((*FACTORS, 2.0, chance.uniform(*FACTORS))),
    "scale": lambda chance: chance.randrange(3),  # 1, k or 1 / k
    "dtype": lambda chance: chance.choice((torch.float32, torch.float32, torch.bfloat16)),
    "seed": lambda chance: chance.randrange(1000),
}


def equal(temperature: float, k: float, largest: float, others: float, scale: int) -> dict:
    """One logit above many equal ones."""
    row = {"shape": "equal", "spread": 0.0, "offset": others, "top": 1, "gap": largest - others, "removed": 0.0}
    more = {"label": "largest", "temperature": temperature, "k": k, "scale": scale, "dtype": torch.float32, "seed": 0}
    return row | more


EQUAL = [
    equal(*row, scale)
    for scale in range(3)
    for row in (
        (0.8247561811448959, 1 / 0.49876201536157067, 34.674373626708984, 25.196012496948242),
        (0.9063157014459067, 7.37242793357579, 2.0394158363342285, -0.025258179754018784),
        (0.6947128623558481, 1.4778071643617479, 7.652110576629639, -0.12951931357383728),
    )
]


def make_row(row: dict, vocabulary: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits (2, vocabulary), the same row twice since torch compiles no single row, and labels (2,)."""
    generator = torch.Generator().manual_seed(row["seed"])
    if row["shape"] == "equal":
        z = torch.zeros(vocabulary)
    elif row["shape"] == "line":
        z = torch.linspace(-1, 1, vocabulary)
    elif row["shape"] == "uniform":
        z = 2 * torch.rand(vocabulary, generator=generator) - 1
    else:
        z = torch.randn(vocabulary, generator=generator)
        z = {"normal": z, "heavy": z**3, "steps": z.round()}[row["shape"]]
    z = (row["spread"] * z).double()
    z[: row["top"]] = z.max() + row["gap"]
    removed = torch.rand(vocabulary, generator=generator) < row["removed"]
    removed[: max(2, row["top"])] = False
    z = (z + row["offset"]).masked_fill(removed, -torch.inf).to(row["dtype"])
    kept = z.masked_fill(removed, torch.inf)
    label = {"largest": z.argmax(), "smallest": kept.argmin(), "random": torch.tensor(1)}[row["label"]]
    return z.repeat(2, 1).to(device), label.repeat(2).to(device)


def errors(row: dict, vocabulary: int, device: str = "cpu", compile: bool = True) -> dict[str, float]:
    """The largest error of each quantity of BOUNDS in this row."""
    logits, labels = make_row(row, vocabulary, device)
    factors = torch.tensor([1.0, row["k"], 1 / row["k"]], dtype=torch.double, device=device)
    scale = factors[row["scale"]].expand(2)
    found = branch_log_probs(logits, labels, row["k"], row["temperature"], compile=compile)
    leaf, alone = (logits.clone().requires_grad_() for _ in range(2))
    terms = policy_terms(leaf, labels, scale, row["temperature"], original=True, entropy=True, compile=compile)
    sum(term.sum() for term in terms).backward()
    policy_terms(alone, labels, scale, row["temperature"], compile=compile).scaled.sum().backward()

    exact = logits.double().requires_grad_()
    z = exact / row["temperature"]
    log_p = [(z * factor).log_softmax(-1) for factor in factors]
    at_label = torch.cat([p.gather(-1, labels[:, None]) for p in log_p], -1)
    entropy = -(log_p[0].exp() * log_p[0].clamp(min=torch.finfo(torch.double).min)).sum(-1)
    (of_scaled,) = torch.autograd.grad(at_label[:, row["scale"]].sum(), exact, retain_graph=True)
    (of_rest,) = torch.autograd.grad((at_label[:, 0] + entropy).sum(), exact)
    gradients = [(leaf.grad, of_scaled + of_rest), (alone.grad, of_scaled)]
    log_probs = [(found.scaled, at_label), (terms.scaled, at_label[:, row["scale"]]), (terms.original, at_label[:, 0])]
    return {
        "log-prob": max(((a - b).abs() / (1 + b.abs())).max().item() for a, b in log_probs),
        "entropy": max((a - entropy).abs().max().item() for a in (found.entropy, terms.entropy)),
        f"gradient, {str(row['dtype']).removeprefix('torch.')}": max(
            ((a - b).abs().max() / (1 + b.abs().max())).item() for a, b in gradients
        ),
    }


def search(seconds: float, vocabulary: int, device: str = "cpu", seed: int = 0) -> tuple[int, dict[str, tuple]]:
    """How many rows were tried, and the largest error of each quantity with its row."""
    chance, worst, count = random.Random(seed), {}, 0
    end, first = time.monotonic() + seconds, list(EQUAL)
    while first or time.monotonic() < end:
        if first:
            row = first.pop()
        elif chance.random() < 0.7:
            _, row = worst[chance.choice(list(worst))]
            name = chance.choice(list(SPACE))
            row = {**row, name: SPACE[name](chance)}
        else:
            row = {name: draw(chance) for name, draw in SPACE.items()}
        count += 1
        for quantity, error in errors(row, vocabulary, device).items():
            if not error <= worst.get(quantity, (-1.0,))[0]:  # NaN is worse than all
                worst[quantity] = error, row
    return count, worst


def described(count: int, worst: dict[str, tuple], bounds: dict[str, float]) -> list[str]:
    lines = [f"{count} rows; the largest error of each quantity, and its row:"]
    for quantity, (error, row) in sorted(worst.items()):
        lines += [f"{quantity}: {error:.2g}, bound {bounds[quantity]:.2g}"]
        words = [
            f"{name} {value:.9g}" if isinstance(value, float) else f"{name} {value}" for name, value in row.items()
        ]
        lines += textwrap.wrap(", ".join(words), 80, initial_indent="    ", subsequent_indent="    ")
    return lines


def within(worst: dict[str, tuple], bounds: dict[str, float]) -> bool:
    return all(error <= bounds[quantity] for quantity, (error, _) in worst.items())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    args = parser.parse_args()
    bounds = BOUNDS[backend(args.device)]
    count, worst = search(args.seconds, args.vocabulary, args.device)
    print("\n".join(described(count, worst, bounds)))
    return 0 if within(worst, bounds) else 1


if __name__ == "__main__":
    sys.exit(main())
