# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Time and peak memory of what verl's actor makes of its logits, with ERA and without, as ratios in one run.

    python -m tools.bench.logprobs --checkout checkouts/verl [--tokens 512] [--device cuda] [--csv FILE]

Each baseline is what v0.4.1 does in the same setting on its padded path: division by the temperature,
logprobs_from_logits, entropy_from_logits where an entropy is needed, backward, all eager. Its remove-padding path
compiles the entropy, so that is an arm too, and so are torch's own cross-entropy and TRL's functions, re-implemented
from their description. So is "the release's way": entropy under autograd, rows of the logits rescaled in place through
an index, and a top-k filter that fills a second tensor of the logits' size.

OMP_NUM_THREADS sets the number of threads. Memory is the peak of the logits and what is made of them: on a GPU the
allocator's, on a CPU (Linux) that of a process of its own. On a GPU the last column is the share of the copy bandwidth:
the logits are read once forward, and read and written once more backward.
"""

import contextlib
import ctypes
import functools
import gc
import itertools
import multiprocessing
import re
import statistics
import sys
import warnings
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F

from tools.bench import tables

LOW, HIGH, K, ANY_K, TOP_K = 0.45, 3.0, 2.0, 1.7, 20  # ANY_K is no power of 2: an exponential for each scale
WIDTH = 3584  # of the hidden states
WARM_UP_TOKENS = 64  # enough for ERA to compile at the width of a vocabulary
TEMPERATURE = 1.0  # upstream divides by it, whatever it is
HEAD = "head and update, entropy bonus"
INDUCTOR = "inductor's kernels"
MOVES = {"old_log_prob": 1, "update": 3, "update, entropy bonus": 3}  # of the logits


class Case:
    """Eight responses; two have too little entropy, one too much, and half have a positive advantage."""

    def __init__(self, tokens, vocabulary, dtype, device):
        self.shape, self.dtype, self.device = (8, tokens // 8, vocabulary), dtype, device
        self.labels = torch.randint(vocabulary, self.shape[:2], device=device)
        self.entropy = torch.tensor([0.2, 0.2, 1.0, 1.0, 1.0, 1.0, 1.0, 4.0], device=device)
        advantages = torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0, -1.0, -1.0, 1.0], device=device)
        self.advantages = advantages[:, None].expand(self.shape[:2])
        self.mask = torch.ones_like(self.labels)

    @functools.cached_property
    def hidden(self):
        return torch.randn(*self.shape[:2], WIDTH, dtype=self.dtype, device=self.device, requires_grad=True)

    @functools.cached_property
    def weight(self):
        weight = torch.randn(self.shape[-1], WIDTH, dtype=self.dtype, device=self.device).mul_(3 * WIDTH**-0.5)
        return weight.requires_grad_()

    def make_logits(self):
        return torch.randn(self.shape, dtype=self.dtype, device=self.device).mul_(3)

    def once(self, group, arm, logits):
        """Makes the arm's terms of the logits, and in an update their gradient."""
        with without_kernels() if arm.endswith(INDUCTOR) else contextlib.nullcontext():
            self._once(group, ARMS[group][arm], logits)

    def _once(self, group, terms, logits):
        if group == "old_log_prob":
            with torch.no_grad():
                terms(self, logits)
        elif group == HEAD:
            self.hidden.grad = self.weight.grad = None
            sum(term.sum() for term in terms(self)).backward()
        else:
            logits = Model.apply(torch.zeros((), requires_grad=True), [logits.detach()])
            sum(term.sum() for term in terms(self, logits)).backward()


@contextlib.contextmanager
def without_kernels():
    """What torch.compile makes for CUDA takes the place of this project's Triton kernels."""
    from verl.utils import era_log_probs

    kernels, era_log_probs._kernels = era_log_probs._kernels, lambda *_: None
    era_log_probs._COMPILED_ON.add("cuda")
    try:
        yield
    finally:
        era_log_probs._kernels = kernels
        era_log_probs._COMPILED_ON.remove("cuda")


class Model(torch.autograd.Function):
    """Stands for the model: its output are the logits, whose memory may be taken."""

    @staticmethod
    def forward(ctx, anchor, holder):
        return holder.pop()

    @staticmethod
    def backward(ctx, gradient):
        return torch.zeros(()), None


@torch.compile(dynamic=True)
def compiled_entropy(logits):
    """verl/utils/torch_functional.py: entropy_from_logits, compiled as its actor does."""
    from verl.utils.torch_functional import entropy_from_logits

    return entropy_from_logits(logits)


def upstream(case, logits, entropy=None):
    from verl.utils.torch_functional import logprobs_from_logits

    logits.div_(TEMPERATURE)
    log_probs = logprobs_from_logits(logits, case.labels, inplace_backward=entropy is None)
    return [log_probs, entropy(logits)] if entropy else [log_probs]


def eager(logits):
    from verl.utils.torch_functional import entropy_from_logits

    return entropy_from_logits(logits)


def cross_entropy(case, logits):
    logits.div_(TEMPERATURE)
    return [-F.cross_entropy(logits.flatten(0, 1), case.labels.flatten(), reduction="none")]


def flash_attention(case, logits):
    from flash_attn.ops.triton.cross_entropy import cross_entropy_loss

    logits.div_(TEMPERATURE)
    return [-cross_entropy_loss(logits.flatten(0, 1), case.labels.flatten(), inplace_backward=True)[0]]


def liger(case, logits):
    from liger_kernel.ops.cross_entropy import LigerCrossEntropyFunction

    logits.div_(TEMPERATURE)
    found = LigerCrossEntropyFunction.apply(logits.flatten(0, 1), case.labels.flatten(), None, -100, 0.0, 0.0, "none")
    return [-(found[0] if isinstance(found, tuple) else found)]


def trl(case, logits, entropy=False):
    """TRL's selective_log_softmax and, of 128 rows at a time, entropy_from_logits."""
    logits = (logits / TEMPERATURE).flatten(0, 1)
    labels = case.labels.flatten().unsqueeze(-1)
    if logits.dtype == torch.float32:
        log_z = torch.stack([row.logsumexp(-1) for row in logits])
        terms = [logits.gather(-1, labels).squeeze(-1) - log_z]
    else:
        log_p = [row.log_softmax(-1).gather(-1, label) for row, label in zip(logits, labels)]
        terms = [torch.cat(log_p)]
    if entropy:
        log_p = [rows.log_softmax(-1) for rows in logits.split(128)]
        terms.append(torch.cat([-(rows.exp() * rows).sum(-1) for rows in log_p]))
    return terms


def branches(case, logits, k=K, compile=True):
    from verl.utils.era_log_probs import branch_log_probs

    return branch_log_probs(logits, case.labels, k, TEMPERATURE, compile=compile)


def era(case, logits, k=K, inplace_backward=True, **asked):
    from verl.utils.era import logit_scale
    from verl.utils.era_log_probs import policy_terms

    scale = logit_scale(case.entropy, case.advantages, case.mask, low=LOW, high=HIGH, k=k)
    terms = policy_terms(logits, case.labels, scale, TEMPERATURE, inplace_backward=inplace_backward, **asked)
    return [term for term in terms if term is not None]


def release(case, logits, top_k=None):
    from verl.utils.era import response_entropy
    from verl.utils.torch_functional import entropy_from_logits, logprobs_from_logits

    logits.div_(TEMPERATURE)
    h = response_entropy(entropy_from_logits(logits), case.mask).unsqueeze(-1)
    # The entropies of these random logits say nothing: decide as the other arms do, at the same cost.
    h = case.entropy.unsqueeze(-1) + 0 * h
    positive = case.advantages > 0
    low, high = (h < LOW) & positive, (h > HIGH) & positive
    logits[low] = logits[low] * K
    logits[high] = logits[high] / K
    if top_k is not None:
        values, indices = logits.topk(top_k, dim=-1)
        logits = torch.full_like(logits, -1e4).scatter(-1, indices, values)
    return [logprobs_from_logits(logits, case.labels)]


def head_of_verl(case):
    from verl.utils.kernel.linear_cross_entropy import linear_cross_entropy

    hidden, labels = case.hidden.flatten(0, 1), case.labels.flatten()
    return linear_cross_entropy(hidden, case.weight, labels, TEMPERATURE, "none")


def head_and_logits(case):
    return era(case, case.hidden @ case.weight.t(), entropy=True)


def fused_head(case):
    from verl.utils.era import logit_scale
    from verl.utils.era_log_probs_fused import fused_policy_terms

    scale = logit_scale(case.entropy, case.advantages, case.mask, low=LOW, high=HIGH, k=K)
    terms = fused_policy_terms(case.hidden, case.weight, case.labels, scale, TEMPERATURE, entropy=True)
    return [terms.scaled, terms.entropy]


ARMS = {  # of each group the first is the baseline
    "old_log_prob": {
        "verl, padded: eager": partial(upstream, entropy=eager),
        "verl, remove-padding: compiled entropy": partial(upstream, entropy=compiled_entropy),
        "ERA off-policy, k 2": branches,
        f"ERA off-policy, k {ANY_K}": partial(branches, k=ANY_K),
        "ERA off-policy, k 2, not compiled": partial(branches, compile=False),
        f"ERA off-policy, k 2, {INDUCTOR}": branches,
        "TRL": partial(trl, entropy=True),
    },
    "update": {
        "verl: eager": upstream,
        "F.cross_entropy": cross_entropy,
        "flash-attn's cross-entropy": flash_attention,
        "Liger's cross-entropy": liger,
        "ERA": era,
        "ERA, gradient out of place": partial(era, inplace_backward=False),
        f"ERA, top-k {TOP_K}": partial(era, top_k=TOP_K),
        "ERA, KL loss, k 2": partial(era, original=True),
        f"ERA, KL loss, k {ANY_K}": partial(era, original=True, k=ANY_K),
        "ERA, not compiled": partial(era, compile=False),
        f"ERA, {INDUCTOR}": era,
        "TRL": trl,
        "the release's way": release,
        f"the release's way, top-k {TOP_K}": partial(release, top_k=TOP_K),
    },
    "update, entropy bonus": {
        "verl, padded: eager": partial(upstream, entropy=eager),
        "verl, remove-padding: compiled entropy": partial(upstream, entropy=compiled_entropy),
        "ERA": partial(era, entropy=True),
        f"ERA, {INDUCTOR}": partial(era, entropy=True),
        "TRL": partial(trl, entropy=True),
    },
    HEAD: {  # on a GPU
        "verl's fused kernel": head_of_verl,
        "ERA, logits": head_and_logits,
        "ERA, fused head": fused_head,
    },
}
ONLY_ON_A_GPU = ("flash-attn", "Liger", INDUCTOR)


def arms_of(group, device):
    return {
        arm: terms
        for arm, terms in ARMS[group].items()
        if device == "cuda" or not (group == HEAD or arm.startswith(ONLY_ON_A_GPU) or arm.endswith(ONLY_ON_A_GPU))
    }


def own_memory(case, group, arm):
    """MiB by which the logits and the arm raise the peak of this process, where it can be reset (Linux)."""
    small = Case(WARM_UP_TOKENS, case.shape[-1], case.dtype, case.device)
    small.once(group, arm, small.make_logits())  # compiles
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = resident_mib("VmHWM")
    case.once(group, arm, case.make_logits())
    return resident_mib("VmHWM") - before


def resident_mib(name):
    status = Path("/proc/self/status").read_text()
    return int(re.search(rf"{name}:\s*(\d+) kB", status)[1]) / 2**10


def memory_in_a_fork(case, group, arm):
    """On a CPU. It has to come before this process starts threads, which a fork does not have."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
        return pool.submit(own_memory, case, group, arm).result()


def memory_on_a_gpu(case, group, arm):
    """MiB that the allocator holds at most, the logits among them."""
    logits = case.make_logits()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated() - logits.nbytes
    case.once(group, arm, logits)
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def peaks(case, group):
    """MiB for each arm that can be run here."""
    memory, found = memory_on_a_gpu if case.device == "cuda" else memory_in_a_fork, {}
    for arm in arms_of(group, case.device):
        try:
            found[arm] = memory(case, group, arm)
        except (ImportError, OSError, torch.OutOfMemoryError) as error:
            print(f"{arm}: not measured: {error}")
    return found


def measure(case, group, memory, turns):
    """A row for each arm: seconds, ratio to the first arm, MiB, and on a GPU the share of the copy bandwidth."""
    kept = case.make_logits()
    logits = torch.empty_like(kept)

    def run(arm):
        logits.copy_(kept)
        return tables.seconds_of(lambda: case.once(group, arm, logits), case.device)

    arms = {arm: partial(run, arm) for arm in memory}
    tables.take_turns(arms, 1)  # compiles
    baseline = next(iter(arms))
    table = tables.ratios(tables.take_turns(arms, turns), ratio=baseline).assign(mib=memory)
    table["mib_ratio"] = table.mib / table.mib[baseline]
    if case.device == "cuda" and group in MOVES:
        copies = [tables.seconds_of(lambda: logits.copy_(kept), "cuda") for _ in range(turns)]  # reads and writes once
        table["of_copy"] = MOVES[group] / 2 * statistics.median(copies) / table.seconds
    return table


def main():
    parser = tables.parser(__doc__)
    tables.add_checkout(parser, "verl", "verl/utils/era_log_probs.py")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--tokens", type=int, nargs="+", help="at least 16; default: 512, on a GPU 8192 and 30720")
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--dtypes", nargs="+", choices=["float32", "bfloat16"], default=["float32", "bfloat16"])
    args = parser.parse_args()
    sys.path.insert(0, str(args.checkout))
    warnings.filterwarnings("ignore", message=".*pkg_resources")
    import verl.utils.torch_functional  # noqa: F401  (the import is not part of any arm)

    written = tables.Tables(args.csv, args.device)
    sizes = itertools.product(args.tokens or ([8192, 30720] if args.device == "cuda" else [512]), args.dtypes)
    cases = {size: Case(size[0], args.vocabulary, getattr(torch, size[1]), args.device) for size in sizes}
    memory = {(size, group): peaks(case, group) for size, case in cases.items() for group in ARMS}
    for (size, group), peak in memory.items():
        if peak:
            (tokens, dtype), table = size, measure(cases[size], group, peak, args.turns)
            title = f"{group}: {tokens} x {args.vocabulary:,} {dtype}"
            shape = {"tokens": tokens, "vocabulary": args.vocabulary, "dtype": dtype}
            written.add(title, table, group=group, turns=args.turns, **shape)


if __name__ == "__main__":
    main()
