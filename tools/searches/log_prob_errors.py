"""Rows of logits for which era/log_probs.py errs most, against fp64, at the full width of a vocabulary.

    python -m tools.searches.log_prob_errors [--seconds 300] [--vocabulary 151936] [--device cuda]

prints the largest errors found, of log-probs relative to 1 + |log-prob|, of entropies in nats and of gradients relative
to 1 + the largest one of the row, and the row that has each. The search draws rows of random shapes, and then changes
what describes the worst of them, a number at a time.
"""

import argparse
import random
import time

import torch

from era.log_probs import branch_log_probs, policy_terms

# What describes a row. Shapes: how the logits spread below the largest ones.
SPACE = {
    "shape": ("normal", "uniform", "heavy", "steps", "line"),
    "spread": (1e-3, 0.1, 0.5, 1.0, 2.0, 3.0, 5.0, 8.0, 20.0, 300.0, 3000.0),
    "offset": (0.0, 1.0, 100.0, -1e4),
    "top": (0, 1, 2, 20, 1000),  # so many logits are `gap` above the others
    "gap": (0.0, 1.0, 5.0, 10.0, 12.0, 15.0, 30.0),
    "removed": (0.0, 0.5, 0.999),  # share of the logits that are -inf
    "label": ("largest", "smallest", "random"),
    "temperature": (0.6, 0.7, 0.9, 1.0),
    "k": (1.2, 1.7, 2.0, 4.0),
    "scale": (0, 1, 2),  # 1, k or 1 / k
    "dtype": (torch.float32, torch.bfloat16),
    "seed": tuple(range(1000)),
}


def make_row(row, vocabulary, device):
    generator = torch.Generator().manual_seed(row["seed"])
    if row["shape"] == "line":
        z = torch.linspace(-1, 1, vocabulary)
    elif row["shape"] == "uniform":
        z = 2 * torch.rand(vocabulary, generator=generator) - 1
    else:
        z = torch.randn(vocabulary, generator=generator)
        z = {"normal": z, "heavy": z**3, "steps": z.round()}[row["shape"]]
    z = row["spread"] * z
    z[: row["top"]] = z.max() + row["gap"]
    removed = torch.rand(vocabulary, generator=generator) < row["removed"]
    removed[: max(2, row["top"])] = False
    z = (z + row["offset"]).masked_fill(removed, -torch.inf).to(row["dtype"])
    kept = z.masked_fill(removed, torch.inf)
    label = {"largest": z.argmax(), "smallest": kept.argmin(), "random": torch.tensor(1)}[row["label"]]
    return z[None].to(device), label[None].to(device)


def errors(row, vocabulary, device):
    """The largest error of each quantity of this row."""
    logits, labels = make_row(row, vocabulary, device)
    factors = torch.tensor([1.0, row["k"], 1 / row["k"]], dtype=torch.double, device=device)
    scale = factors[row["scale"], None]
    found = branch_log_probs(logits, labels, row["k"], row["temperature"])
    leaf = logits.clone().requires_grad_()
    terms = policy_terms(leaf, labels, scale, row["temperature"], original=True, entropy=True)
    sum(term.sum() for term in terms).backward()

    exact = logits.double().requires_grad_()
    z = exact / row["temperature"]
    log_p = [(z * factor).log_softmax(-1) for factor in factors]
    at_label = torch.cat([p.gather(-1, labels[:, None]) for p in log_p], -1)
    entropy = -(log_p[0].exp() * log_p[0].clamp(min=torch.finfo(torch.double).min)).sum(-1)
    (at_label[:, row["scale"]] + at_label[:, 0] + entropy).sum().backward()
    largest = 1 + exact.grad.abs().max()
    log_probs = [(found.scaled, at_label), (terms.scaled, at_label[:, row["scale"]]), (terms.original, at_label[:, 0])]
    return {
        "log-prob": max(((a - b).abs() / (1 + b.abs())).max().item() for a, b in log_probs),
        "entropy": max((a - entropy).abs().item() for a in (found.entropy, terms.entropy)),
        f"gradient, {str(row['dtype']).removeprefix('torch.')}": (
            (leaf.grad - exact.grad).abs().max() / largest
        ).item(),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    args = parser.parse_args()
    chance, worst, count = random.Random(0), {}, 0
    end = time.monotonic() + args.seconds
    while time.monotonic() < end:
        if worst and chance.random() < 0.7:
            _, row = worst[chance.choice(list(worst))]
            name = chance.choice(list(SPACE))
            row = {**row, name: chance.choice(SPACE[name])}
        else:
            row = {name: chance.choice(values) for name, values in SPACE.items()}
        count += 1
        for quantity, error in errors(row, args.vocabulary, args.device).items():
            if not error <= worst.get(quantity, (-1.0,))[0]:  # NaN is worse than all
                worst[quantity] = error, row
    print(f"{count} rows of {args.vocabulary:,} logits; the largest error of each quantity, and its row:")
    for quantity, (error, row) in sorted(worst.items()):
        print(f"\n{quantity}: {error:.2g}\n    " + ", ".join(f"{name} {value}" for name, value in row.items()))


if __name__ == "__main__":
    main()
