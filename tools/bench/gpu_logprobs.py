"""Time and memory of reading the logits on a GPU, with ERA, without, and by other kernels; checks the kernels first.

    python -m tools.bench.gpu_logprobs --checkout checkouts/verl [--tokens 8192 30720] [--csv FILE]

Needs torch and Triton with a GPU; flash-attn's cross-entropy and Liger's take part where they are installed, verl's
fused kernel where the checkout's packages are. Each arm's time is a median; its share is the bytes that it must move
(the logits once forward; read and written once more backward) over its time, as a fraction of what copying the logits
reaches in the same run. Memory is what the allocator holds at most beyond the logits, over their size; of the arms with
the head, beyond hidden states and weight.
"""

import argparse
import itertools
import os
import random
import statistics
import sys
from pathlib import Path

import torch

from era.log_probs import backend, branch_log_probs, fused_policy_terms, policy_terms
from tools.bench.tables import machine_of, rounded, seconds_of, write_csv

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests/llm"))
from log_prob_rows import BOUNDS, SPACE, errors  # noqa: E402

BARS = BOUNDS["triton"]


def largest_errors(device, vocabulary, count):
    """Against fp64, of random rows of every kind."""
    chance, worst = random.Random(0), dict.fromkeys(BARS, 0.0)
    for _ in range(count):
        row = {name: draw(chance) for name, draw in SPACE.items()}
        for quantity, error in errors(row, vocabulary, device).items():
            worst[quantity] = error if not error <= worst[quantity] else worst[quantity]
    return worst


class Case:
    def __init__(self, tokens, vocabulary, width, dtype, device):
        generator = torch.Generator(device).manual_seed(0)
        make = {"dtype": dtype, "device": device, "generator": generator}
        self.kept = torch.randn(tokens, vocabulary, **make).mul_(3)
        self.logits = self.kept.clone().requires_grad_()
        self.labels = torch.randint(vocabulary, (tokens,), device=device, generator=generator)
        # as in a batch: most responses keep their scale
        self.scale = torch.ones(tokens, device=device)
        self.scale[: tokens // 8], self.scale[tokens // 8 : tokens // 4] = 2.0, 0.5
        self.hidden = torch.randn(tokens, width, **make).requires_grad_()
        self.weight = torch.randn(vocabulary, width, **make).mul_(3 * width**-0.5).requires_grad_()

    def restore(self):
        """In-place arms have written to the logits."""
        self.logits.data.copy_(self.kept)
        for leaf in (self.logits, self.hidden, self.weight):
            leaf.grad = None


class Output(torch.autograd.Function):
    """The logits as the output of a model, whose memory may be taken."""

    @staticmethod
    def forward(ctx, logits):
        return logits.view_as(logits)

    @staticmethod
    def backward(ctx, gradient):
        return None


def update(asked=None, triton=True):
    def run(case):
        terms = policy_terms(
            Output.apply(case.logits), case.labels, case.scale, inplace_backward=True, triton=triton, **(asked or {})
        )
        sum(term.sum() for term in terms if term is not None).backward()

    return run


def branches(k, triton=True):
    return lambda case: branch_log_probs(case.logits.detach(), case.labels, k, triton=triton)


def upstream_old_log_prob(case):
    from verl.utils.torch_functional import entropy_from_logits, logprobs_from_logits

    with torch.no_grad():
        logprobs_from_logits(case.logits, case.labels)
        entropy_from_logits(case.logits)


def upstream_update(case):
    from verl.utils.torch_functional import logprobs_from_logits

    logprobs_from_logits(Output.apply(case.logits), case.labels, inplace_backward=True).sum().backward()


def flash_attention_update(case):
    from flash_attn.ops.triton.cross_entropy import cross_entropy_loss

    cross_entropy_loss(Output.apply(case.logits), case.labels, inplace_backward=True)[0].sum().backward()


def liger_update(case):
    from liger_kernel.ops.cross_entropy import LigerCrossEntropyFunction

    found = LigerCrossEntropyFunction.apply(Output.apply(case.logits), case.labels, None, -100, 0.0, 0.0, "none")
    (found[0] if isinstance(found, tuple) else found).sum().backward()


def head_of_verl(case):
    if not case.hidden.is_cuda:
        raise ImportError("verl's kernel needs a GPU to be imported")
    from verl.utils.kernel.linear_cross_entropy import linear_cross_entropy

    log_probs, entropy = linear_cross_entropy(case.hidden, case.weight, case.labels, 1.0, "none")
    (log_probs.sum() + entropy.sum()).backward()


def head_fused(case):
    terms = fused_policy_terms(case.hidden, case.weight, case.labels, case.scale, entropy=True)
    (terms.scaled.sum() + terms.entropy.sum()).backward()


def head_and_logits(case):
    terms = policy_terms(case.hidden @ case.weight.t(), case.labels, case.scale, entropy=True, inplace_backward=True)
    (terms.scaled.sum() + terms.entropy.sum()).backward()


# Name, what it runs, how often it must move the logits: 1 to read or to write them, 0 where a product dominates.
ARMS = [
    ("copy the logits", lambda case: torch.empty_like(case.logits).copy_(case.logits.detach()), 2),
    ("old_log_prob: upstream's log-prob and entropy", upstream_old_log_prob, 1),
    ("old_log_prob: ERA, k 2", branches(2.0), 1),
    ("old_log_prob: ERA, k 1.7", branches(1.7), 1),
    ("old_log_prob: ERA, k 2, torch", branches(2.0, triton=False), 1),
    ("update: upstream's", upstream_update, 3),
    ("update: flash-attn's cross-entropy", flash_attention_update, 3),
    ("update: Liger's cross-entropy", liger_update, 3),
    ("update: ERA", update(), 3),
    ("update: ERA, KL loss", update({"original": True}), 3),
    ("update: ERA, entropy bonus", update({"entropy": True}), 3),
    ("update: ERA, top-k 20", update({"top_k": 20}), 3),
    ("update: ERA, torch", update(triton=False), 3),
    ("head and update, entropy bonus: verl's fused kernel", head_of_verl, 0),
    ("head and update, entropy bonus: ERA, logits", head_and_logits, 0),
    ("head and update, entropy bonus: ERA, fused head", head_fused, 0),
]


def measure(case, run, turns, device):
    """Seconds and MiB of an arm; the first two turns compile."""
    seconds = []
    for _ in range(turns + 2):
        case.restore()
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
            held = torch.cuda.memory_allocated()
        seconds.append(seconds_of(device, lambda: run(case), 1))
    peak = (torch.cuda.max_memory_allocated() - held) / 2**20 if device == "cuda" else None
    return statistics.median(seconds[2:]), peak


def rows_of(case, turns, device):
    size, bandwidth = case.logits.nbytes, None
    for name, run, moves in ARMS:
        row = {"arm": name, "seconds": None, "share_of_copy": None, "peak_mib": None, "peak_over_logits": None}
        try:
            row["seconds"], row["peak_mib"] = measure(case, run, turns, device)
        except (ImportError, torch.OutOfMemoryError) as error:
            print(f"{name}: not measured: {str(error).splitlines()[0]}")
        else:
            reached = moves * size / row["seconds"]
            bandwidth = bandwidth or reached
            row["share_of_copy"] = reached / bandwidth if moves else None
            row["peak_over_logits"] = row["peak_mib"] and row["peak_mib"] * 2**20 / size
            cells = (f"{value:.3g}" if value is not None else "-" for value in list(row.values())[1:])
            print(f"| {name:<52} | {' | '.join(f'{cell:>9}' for cell in cells)} |", flush=True)
        yield row


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkout", required=True, help="a verl checkout with the overlay")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda", help="cpu only tries the script")
    parser.add_argument("--tokens", type=int, nargs="+", default=[8192, 30720])
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--width", type=int, default=3584, help="of the hidden states")
    parser.add_argument("--dtypes", nargs="+", choices=["bfloat16", "float32"], default=["bfloat16", "float32"])
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--csv", type=Path, help="also write a row per size and arm to this file")
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch finds no GPU")
    if not (Path(args.checkout) / "verl/utils/era_log_probs.py").is_file():
        parser.error(f"{args.checkout} is not a verl checkout with the overlay; run `make apply` first")
    sys.path.insert(0, os.path.abspath(args.checkout))
    machine = machine_of(args.device)
    print(", ".join(f"{name} {value}" for name, value in machine.items()))
    print(f"ERA: {backend(args.device)} reads the logits")
    worst = largest_errors(args.device, args.vocabulary, 200)
    for quantity, error in worst.items():
        print(f"largest error, {quantity}: {error:.2g} (bar {BARS[quantity]:.2g})")
    if any(not error <= BARS[quantity] for quantity, error in worst.items()):
        raise SystemExit("error: too large, so nothing was measured.")
    rows = []
    for tokens, dtype in itertools.product(args.tokens, args.dtypes):
        case = Case(tokens, args.vocabulary, args.width, getattr(torch, dtype), args.device)
        print(f"\n{tokens} x {args.vocabulary:,} {dtype}: the logits are {case.logits.nbytes / 2**20:,.0f} MiB")
        print(f"| {'arm':<52} |   time, s | of copy's | peak, MiB |  / logits |")
        size = {"tokens": tokens, "vocabulary": args.vocabulary, "width": args.width, "dtype": dtype}
        rows += [size | rounded(row) | machine for row in rows_of(case, args.turns, args.device)]
        del case
    if args.csv:
        write_csv(args.csv, rows)


if __name__ == "__main__":
    main()
