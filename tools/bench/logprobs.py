"""Time and peak memory of log-prob + backward in verl's actor update, with ERA and without, as ratios in one run.

    python -m tools.bench.logprobs --checkout checkouts/verl [--tokens 512] [--vocabulary 151936] [--dtype float32]

The baseline is what upstream does with the logits: division by the temperature, logprobs_from_logits, backward. "The
release's way" is re-implemented here from its description: entropy under autograd, rows of the logits rescaled in place
through an index, and a top-k filter that fills a second tensor of the logits' size. The arms take turns, so that a
drift of the machine affects all of them; each arm's memory is the peak of a process of its own.
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import torch

from tools.bench.tables import cpu_model, print_table, summarise

LOW, HIGH, TOP_K = 0.45, 3.0, 20
HEAD_WIDTH = 256


class Head(torch.autograd.Function):
    """Stands for the model: brings logits that nobody else holds, and takes their gradient."""

    @staticmethod
    def forward(ctx, anchor, holder):
        return holder.pop()

    @staticmethod
    def backward(ctx, grad):
        return torch.zeros(()), None


def make_case(tokens, vocabulary, dtype, k, temperature):
    """Eight responses; two have too little entropy, one too much, and half have a positive advantage."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(vocabulary, (8, tokens // 8), generator=generator)
    entropy = torch.tensor([0.2, 0.2, 1.0, 1.0, 1.0, 1.0, 1.0, 4.0])
    advantages = torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0, -1.0, -1.0, 1.0]).unsqueeze(-1).expand_as(labels)
    return {
        "labels": labels,
        "entropy": entropy,
        "advantages": advantages,
        "mask": torch.ones_like(labels),
        "vocabulary": vocabulary,
        "dtype": dtype,
        "k": k,
        "temperature": temperature,
    }


def make_logits(case):
    return 3 * torch.randn(*case["labels"].shape, case["vocabulary"], dtype=case["dtype"])


def upstream(case, logits):
    from verl.utils.torch_functional import logprobs_from_logits

    return logprobs_from_logits(logits.div_(case["temperature"]), case["labels"])


def decided_scale(case):
    from verl.utils.era import logit_scale

    return logit_scale(case["entropy"], case["advantages"], case["mask"], low=LOW, high=HIGH, k=case["k"])


def era(case, logits, top_k=None):
    from omegaconf import OmegaConf
    from verl.utils import era_fsdp
    from verl.utils.torch_functional import logprobs_from_logits

    # A prompt of one token, and a last position that predicts nothing, as in verl's padded batches.
    batch = {era_fsdp.LOGIT_SCALE: decided_scale(case)[:, :-1], "input_ids": case["labels"]}
    # Without KL loss or entropy bonus, the division applies the scale.
    config = {
        "era": {"enable": True},
        "ppo_mini_batch_size": 1,
        "ppo_epochs": 1,
        "use_dynamic_bsz": True,
        "use_kl_loss": False,
        "entropy_coeff": 0,
    }
    hooks = era_fsdp.ActorHooks(SimpleNamespace(config=OmegaConf.create(config)))
    hooks.divide_by_temperature_(logits, case["temperature"], batch)
    return logprobs_from_logits(logits, case["labels"], top_k=top_k)


def era_top_k(case, logits):
    return era(case, logits, TOP_K)


def logit_scale_argument(case, logits):
    from verl.utils.torch_functional import logprobs_from_logits

    return logprobs_from_logits(logits, case["labels"], logit_scale=decided_scale(case) / case["temperature"])


def release(case, logits, top_k=None):
    from verl.utils.era import response_entropy
    from verl.utils.torch_functional import entropy_from_logits, logprobs_from_logits

    logits.div_(case["temperature"])
    h = response_entropy(entropy_from_logits(logits), case["mask"]).unsqueeze(-1)
    # The entropies of these random logits say nothing: decide as the other arms do, at the same cost.
    h = case["entropy"].unsqueeze(-1) + 0 * h
    positive = case["advantages"] > 0
    low, high = (h < LOW) & positive, (h > HIGH) & positive
    logits[low] = logits[low] * case["k"]
    logits[high] = logits[high] / case["k"]
    if top_k is not None:
        values, indices = logits.topk(top_k, dim=-1)
        logits = torch.full_like(logits, -1e4).scatter(-1, indices, values)
    return logprobs_from_logits(logits, case["labels"])


def release_top_k(case, logits):
    return release(case, logits, TOP_K)


ARMS = {
    "upstream": upstream,
    "ERA": era,
    "ERA, top-k 20": era_top_k,
    "ERA through logprobs_from_logits(logit_scale=)": logit_scale_argument,
    "the release's way": release,
    "the release's way, top-k 20": release_top_k,
}


def head_arms(case):
    """Where to put the scale when the head is counted in: into the temperature, or into the hidden states before it."""
    hidden = torch.randn(*case["labels"].shape, HEAD_WIDTH, dtype=case["dtype"])
    weight = torch.randn(case["vocabulary"], HEAD_WIDTH, dtype=case["dtype"]) / 16

    def with_head(arm, scale_hidden=False):
        def run():
            w, h = weight.detach().requires_grad_(), hidden
            if scale_hidden:
                h = h * decided_scale(case).unsqueeze(-1).to(h.dtype)
            arm(case, h @ w.t()).sum().backward()

        return run

    return {
        "upstream, with the head": with_head(upstream),
        "ERA, with the head": with_head(era),
        "ERA on the hidden states, with the head": with_head(upstream, scale_hidden=True),
    }


def once(case, arm):
    holder = [make_logits(case)]
    start = time.perf_counter()
    logits = Head.apply(torch.zeros((), requires_grad=True), holder)
    arm(case, logits).sum().backward()
    return time.perf_counter() - start


def timed(run):
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def take_turns(arms, rounds):
    """Seconds per arm and round; the first round warms up."""
    seconds = {name: [] for name in arms}
    for round_ in range(rounds + 1):
        for name, run in arms.items():
            elapsed = run()
            if round_:
                seconds[name].append(elapsed)
    return seconds


def rss_mib():
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10


def peak_memory(args, name):
    """MiB above what the process held before the logits, in a process of its own."""
    command = [
        sys.executable,
        "-m",
        "tools.bench.logprobs",
        "--checkout",
        args.checkout,
        "--tokens",
        args.tokens,
        "--vocabulary",
        args.vocabulary,
        "--dtype",
        args.dtype,
        "--k",
        args.k,
        "--temperature",
        args.temperature,
        "--memory-of",
        name,
    ]
    return json.loads(
        subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True).stdout.splitlines()[-1]
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkout", required=True, help="a verl checkout with the overlay")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--k", type=float, default=2.0)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--memory-of", choices=ARMS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rounds < 2 or args.tokens < 16 or args.vocabulary < TOP_K:
        parser.error(f"at least 2 rounds, 16 tokens and {TOP_K} words are needed")
    if not (Path(args.checkout) / "verl/utils/era.py").is_file():
        parser.error(f"{args.checkout} is not a verl checkout with the overlay; run `make apply` first")
    sys.path.insert(0, os.path.abspath(args.checkout))
    import verl.utils.torch_functional  # noqa: F401  (the import is not part of any arm)

    case = make_case(args.tokens, args.vocabulary, getattr(torch, args.dtype), args.k, args.temperature)
    if args.memory_of:
        once(make_case(16, 100, case["dtype"], args.k, args.temperature), ARMS[args.memory_of])
        before = rss_mib()
        once(case, ARMS[args.memory_of])
        print(json.dumps(rss_mib() - before))
        return
    print(
        f"log-prob + backward, {args.tokens} x {args.vocabulary:,} {args.dtype}, k {args.k:g}, temperature "
        f"{args.temperature:g}; medians of {args.rounds} turns, ratios paired by turn"
    )
    print(
        f"{cpu_model()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads; Python "
        f"{platform.python_version()}, torch {torch.__version__}, {time.strftime('%Y-%m-%d')}\n"
    )
    memory = {name: peak_memory(args, name) for name in ARMS}
    seconds = take_turns({name: lambda arm=arm: once(case, arm) for name, arm in ARMS.items()}, args.rounds)
    print_table(summarise(seconds, memory, dict.fromkeys(seconds, "upstream")))
    print(f"\nWith a bias-free head of width {HEAD_WIDTH} before it:\n")
    seconds = take_turns({name: lambda run=run: timed(run) for name, run in head_arms(case).items()}, args.rounds)
    print_table(summarise(seconds, {}, dict.fromkeys(seconds, "upstream, with the head")))


if __name__ == "__main__":
    main()
