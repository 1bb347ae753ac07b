"""Time and peak memory of what verl's actor makes of its logits, with ERA and without, as ratios in one run.

    python -m tools.bench.logprobs --checkout checkouts/verl [--tokens 512] [--vocabulary 151936] [--dtypes float32]

Each baseline is what upstream does for GRPO in the same setting: division by the temperature, logprobs_from_logits,
entropy where one is needed, backward. "The release's way" is re-implemented here from its description: entropy under
autograd, rows of the logits rescaled in place through an index, and a top-k filter that fills a second tensor of the
logits' size. The arms take turns, so that a drift of the machine affects all of them; each arm's memory is the peak of
a process of its own.
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

import torch

from tools.bench.tables import cpu_model, print_table, summarise

LOW, HIGH, TOP_K = 0.45, 3.0, 20
ANY_K = 1.7  # no power of 2: an exponential per scale


class Head(torch.autograd.Function):
    """Stands for the model: brings logits that nobody else holds, and takes their gradient."""

    @staticmethod
    def forward(ctx, anchor, holder):
        return holder.pop()

    @staticmethod
    def backward(ctx, grad):
        return torch.zeros(()), None


def make_case(tokens, vocabulary, dtype, temperature):
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
        "temperature": temperature,
    }


def make_logits(case):
    return torch.randn(*case["labels"].shape, case["vocabulary"], dtype=case["dtype"]).mul_(3)


def upstream(entropy=False):
    def terms(case, logits):
        from verl.utils.torch_functional import entropy_from_logits, logprobs_from_logits

        logits.div_(case["temperature"])
        log_probs = logprobs_from_logits(logits, case["labels"], inplace_backward=not entropy)
        return [log_probs, entropy_from_logits(logits)] if entropy else [log_probs]

    return terms


def branches(k):
    def terms(case, logits):
        from verl.utils.era_log_probs import branch_log_probs

        return branch_log_probs(logits, case["labels"], k, case["temperature"])

    return terms


def era(k=2.0, **asked):
    def terms(case, logits):
        from verl.utils.era import logit_scale
        from verl.utils.era_log_probs import policy_terms

        scale = logit_scale(case["entropy"], case["advantages"], case["mask"], low=LOW, high=HIGH, k=k)
        found = policy_terms(logits, case["labels"], scale, case["temperature"], **{"inplace_backward": True, **asked})
        return [term for term in found if term is not None]

    return terms


def release(top_k=None, k=2.0):
    def terms(case, logits):
        from verl.utils.era import response_entropy
        from verl.utils.torch_functional import entropy_from_logits, logprobs_from_logits

        logits.div_(case["temperature"])
        h = response_entropy(entropy_from_logits(logits), case["mask"]).unsqueeze(-1)
        # The entropies of these random logits say nothing: decide as the other arms do, at the same cost.
        h = case["entropy"].unsqueeze(-1) + 0 * h
        positive = case["advantages"] > 0
        low, high = (h < LOW) & positive, (h > HIGH) & positive
        logits[low] = logits[low] * k
        logits[high] = logits[high] / k
        if top_k is not None:
            values, indices = logits.topk(top_k, dim=-1)
            logits = torch.full_like(logits, -1e4).scatter(-1, indices, values)
        return [logprobs_from_logits(logits, case["labels"])]

    return terms


OLD_LOG_PROB, UPDATE, ENTROPY_BONUS = "old_log_prob", "update", "update with entropy bonus"
BASELINES = {
    OLD_LOG_PROB: "old_log_prob: upstream, log-prob and entropy",
    UPDATE: "update: upstream",
    ENTROPY_BONUS: "update with entropy bonus: upstream",
}
ARMS = {  # baseline, and what is made of the logits
    BASELINES[OLD_LOG_PROB]: (OLD_LOG_PROB, upstream(entropy=True)),
    "old_log_prob: ERA off-policy, k 2": (OLD_LOG_PROB, branches(2.0)),
    f"old_log_prob: ERA off-policy, k {ANY_K}": (OLD_LOG_PROB, branches(ANY_K)),
    BASELINES[UPDATE]: (UPDATE, upstream()),
    "update: ERA": (UPDATE, era()),
    "update: ERA, gradient out of place": (UPDATE, era(inplace_backward=False)),
    "update: ERA, top-k 20": (UPDATE, era(top_k=TOP_K)),
    "update: ERA with KL loss, k 2": (UPDATE, era(original=True)),
    f"update: ERA with KL loss, k {ANY_K}": (UPDATE, era(k=ANY_K, original=True)),
    "update: the release's way": (UPDATE, release()),
    "update: the release's way, top-k 20": (UPDATE, release(TOP_K)),
    BASELINES[ENTROPY_BONUS]: (ENTROPY_BONUS, upstream(entropy=True)),
    "update with entropy bonus: ERA": (ENTROPY_BONUS, era(entropy=True)),
}


def once(case, name):
    baseline, terms = ARMS[name]
    holder = [make_logits(case)]
    start = time.perf_counter()
    if baseline == OLD_LOG_PROB:
        with torch.no_grad():
            terms(case, holder.pop())
    else:
        logits = Head.apply(torch.zeros((), requires_grad=True), holder)
        sum(term.sum() for term in terms(case, logits)).backward()
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


def peak_memory(args, dtype, name):
    """MiB above what the process held before the logits, in a process of its own."""
    flags = {"checkout": args.checkout, "tokens": args.tokens, "vocabulary": args.vocabulary, "dtypes": dtype}
    flags |= {"temperature": args.temperature, "memory-of": name}
    command = [sys.executable, "-m", "tools.bench.logprobs"]
    command += [word for flag, value in flags.items() for word in (f"--{flag}", str(value))]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkout", required=True, help="a verl checkout with the overlay")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--dtypes", nargs="+", choices=["float32", "bfloat16"], default=["float32", "bfloat16"])
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--memory-of", choices=ARMS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rounds < 2 or args.tokens < 16 or args.vocabulary < TOP_K:
        parser.error(f"at least 2 rounds, 16 tokens and {TOP_K} words are needed")
    if not (Path(args.checkout) / "verl/utils/era_log_probs.py").is_file():
        parser.error(f"{args.checkout} is not a verl checkout with the overlay; run `make apply` first")
    sys.path.insert(0, os.path.abspath(args.checkout))
    import verl.utils.torch_functional  # noqa: F401  (the import is not part of any arm)

    if args.memory_of:
        dtype = getattr(torch, args.dtypes[0])
        once(make_case(16, 100, dtype, args.temperature), args.memory_of)
        case = make_case(args.tokens, args.vocabulary, dtype, args.temperature)
        before = rss_mib()
        once(case, args.memory_of)
        print(json.dumps(rss_mib() - before))
        return
    print(
        f"{cpu_model()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads; Python "
        f"{platform.python_version()}, torch {torch.__version__}, {time.strftime('%Y-%m-%d')}"
    )
    for dtype in args.dtypes:
        case = make_case(args.tokens, args.vocabulary, getattr(torch, dtype), args.temperature)
        size = args.tokens * args.vocabulary * case["dtype"].itemsize / 2**20
        print(
            f"\n{args.tokens} x {args.vocabulary:,} {dtype}: the logits are {size:.0f} MiB; temperature "
            f"{args.temperature:g}; medians of {args.rounds} turns, ratios paired by turn\n"
        )
        memory = {name: peak_memory(args, dtype, name) for name in ARMS}
        seconds = take_turns({name: lambda name=name, case=case: once(case, name) for name in ARMS}, args.rounds)
        print_table(summarise(seconds, memory, {name: BASELINES[group] for name, (group, _) in ARMS.items()}))


if __name__ == "__main__":
    main()
