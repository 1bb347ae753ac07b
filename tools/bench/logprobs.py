# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Time and peak memory of what verl's actor makes of its logits, with ERA and without, as ratios in one run.

    python -m tools.bench.logprobs --checkout checkouts/verl [--tokens 512] [--device cuda] [--csv FILE]

Each baseline is what v0.4.1 does in the same setting on its padded path: division by the temperature,
logprobs_from_logits, entropy_from_logits where an entropy is needed, backward, all eager. Its remove-padding path
compiles the entropy, so that is an arm too, and so is torch's own cross-entropy. So is "the release's way": entropy
under autograd, and rows of the logits rescaled in place through an index.

OMP_NUM_THREADS sets the number of threads. Memory is the peak of the logits and what is made of them. `copies` is the
time in copies of the logits, each of which reads and writes them once: at full bandwidth, reading them once takes 0.5,
and an update, which reads and writes them once more backward, 1.5.
"""

import contextlib
import functools
import itertools
import sys
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F

from era import log_probs
from era.log_probs_fused import fused_policy_terms
from tools.bench import measure

K, ANY_K, TOP_K = 2.0, 1.7, 20  # ANY_K is not a power of 2: an exponential for each scale
TEMPERATURE = 1.0  # upstream divides by it, whatever it is
INDUCTOR = "inductor's kernels"
COPY = "a copy of the logits"
HEAD = "head and update, entropy bonus"  # on a GPU
WIDTH = 3584  # of the hidden states


class Case:
    """Logits of eight responses, of which ERA scales two: one of too little entropy, and one of too much.

    Args:
        tokens: of all responses.
        vocabulary: of the labels.
        columns: of the logits, where other processes have the rest of the vocabulary.
    """

    def __init__(self, tokens, vocabulary, dtype=torch.float32, device="cpu", columns=None):
        self.dtype, self.device = dtype, device
        self.kept = torch.randn(8, tokens // 8, columns or vocabulary, dtype=dtype, device=device).mul_(3)
        self.logits = torch.empty_like(self.kept)
        self.labels = torch.randint(vocabulary, self.kept.shape[:2], device=device)

    @functools.cached_property
    def head(self):
        """Hidden states, and the weight with which they make logits like `kept`."""
        hidden = torch.randn(*self.labels.shape, WIDTH, dtype=self.dtype, device=self.device)
        weight = torch.randn(self.kept.size(-1), WIDTH, dtype=self.dtype, device=self.device).mul_(3 * WIDTH**-0.5)
        return hidden.requires_grad_(), weight.requires_grad_()

    def scale(self, k):
        """Each token's scale."""
        of_response = torch.tensor([k, 1, 1, 1, 1, 1, 1, 1 / k], device=self.device)
        return of_response[:, None].expand(self.labels.shape)

    def take_turn(self, what, terms):
        """What the terms of the logits cost, in an update with the gradient of their sum, which is kept as `total`."""
        self.logits.copy_(self.kept)

        def run():
            if what == "old_log_prob":
                with torch.no_grad():
                    return terms(self, self.logits)
            logits = Model.apply(torch.zeros((), requires_grad=True), [self.logits.detach()])
            total = sum(term.sum() for term in terms(self, logits))
            total.backward()
            self.total = total.detach()

        cost = measure.cost(run, self.device)
        cost["mib"] += self.logits.nbytes / 2**20
        return {what: cost}

    def copy_logits(self, what):
        """What a copy of the logits costs, under the name of what it is compared with."""
        return {what: measure.cost(lambda: self.logits.copy_(self.kept), self.device)}


@contextlib.contextmanager
def without_kernels():
    """What torch.compile makes for CUDA takes the place of this project's Triton kernels."""
    kernels, log_probs._kernels = log_probs._kernels, lambda *_: None
    log_probs._COMPILED_ON.add("cuda")
    try:
        yield
    finally:
        log_probs._kernels = kernels
        log_probs._COMPILED_ON.remove("cuda")


class Model(torch.autograd.Function):
    """In place of a model: a function whose output is the logits, in memory that may be overwritten."""

    @staticmethod
    def forward(ctx, anchor, holder):
        return holder.pop()

    @staticmethod
    def backward(ctx, gradient):
        return torch.zeros(()), None


def eager(logits):
    from verl.utils.torch_functional import entropy_from_logits

    return entropy_from_logits(logits)


compiled_entropy = torch.compile(eager, dynamic=True)  # as verl's actor compiles it


def upstream(case, logits, entropy=None):
    from verl.utils.torch_functional import logprobs_from_logits

    logits.div_(TEMPERATURE)
    terms = [logprobs_from_logits(logits, case.labels, inplace_backward=entropy is None)]
    return [*terms, entropy(logits)] if entropy else terms


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
    loss = LigerCrossEntropyFunction.apply(logits.flatten(0, 1), case.labels.flatten(), None, -100, 0.0, 0.0, "none")
    return [-(loss[0] if isinstance(loss, tuple) else loss)]


def branches(case, logits, k=K, compile=True):
    return log_probs.branch_log_probs(logits, case.labels, k, TEMPERATURE, compile=compile)


def era(case, logits, **options):
    terms = log_probs.policy_terms(logits, case.labels, case.scale(K), TEMPERATURE, inplace_backward=True, **options)
    return [term for term in terms if term is not None]


def release(case, logits):
    from verl.utils.torch_functional import logprobs_from_logits

    logits.div_(TEMPERATURE)
    h = eager(logits).mean(-1, keepdim=True).expand(case.labels.shape)
    scale = case.scale(K) + 0 * h  # the entropies of random logits say nothing: scale as the other arms do
    low, high = scale > 1, scale < 1
    logits[low] = logits[low] * K
    logits[high] = logits[high] / K
    return [logprobs_from_logits(logits, case.labels)]


def fused_head_of_verl(case, _):
    from verl.utils.kernel.linear_cross_entropy import linear_cross_entropy

    hidden, weight = case.head
    return linear_cross_entropy(hidden.flatten(0, 1), weight, case.labels.flatten(), TEMPERATURE, "none")


def head_and_logits(case, _):
    hidden, weight = case.head
    return era(case, hidden @ weight.t(), entropy=True)


def fused_head(case, _):
    terms = fused_policy_terms(*case.head, case.labels, case.scale(K), TEMPERATURE, entropy=True)
    return [terms.scaled, terms.entropy]


ARMS = {  # of each group the first is the baseline
    "old_log_prob": {
        "verl, padded: eager": partial(upstream, entropy=eager),
        "verl, remove-padding: compiled entropy": partial(upstream, entropy=compiled_entropy),
        "ERA off-policy, k 2": branches,
        f"ERA off-policy, k {ANY_K}": partial(branches, k=ANY_K),
        "ERA off-policy, k 2, not compiled": partial(branches, compile=False),
        f"ERA off-policy, k 2, {INDUCTOR}": branches,
    },
    "update": {
        "verl: eager": upstream,
        "F.cross_entropy": cross_entropy,
        "flash-attn's cross-entropy": flash_attention,
        "Liger's cross-entropy": liger,
        "ERA": era,
        f"ERA, top-k {TOP_K}": partial(era, top_k=TOP_K),
        "ERA, KL loss": partial(era, original=True),
        "ERA, not compiled": partial(era, compile=False),
        f"ERA, {INDUCTOR}": era,
        "the release's way": release,
    },
    "update, entropy bonus": {
        "verl, padded: eager": partial(upstream, entropy=eager),
        "verl, remove-padding: compiled entropy": partial(upstream, entropy=compiled_entropy),
        "ERA": partial(era, entropy=True),
        f"ERA, {INDUCTOR}": partial(era, entropy=True),
    },
    HEAD: {
        "verl's fused kernel": fused_head_of_verl,
        "ERA, logits": head_and_logits,
        "ERA, fused head": fused_head,
    },
}
ONLY_ON_A_GPU = ("flash-attn", "Liger", INDUCTOR)
ARGUMENTS = {
    "--checkout": {"type": Path, "required": True, "help": "of the upstream, with the ERA overlay"},
    "--device": {"choices": ["cpu", "cuda"], "default": "cpu"},
    "--tokens": {"type": int, "nargs": "+", "help": "at least 16; default: 512, on a GPU 8192 and 30720"},
    **measure.VOCABULARY,
    **measure.DTYPES,
}


def arms_of(case, what):
    """The arms that this device has, and a copy of the logits."""
    arms = {}
    for arm, terms in ARMS[what].items():
        if case.device == "cuda" or not any(words in arm for words in ONLY_ON_A_GPU):
            turn = partial(case.take_turn, what, terms)
            arms[arm] = without_kernels()(turn) if arm.endswith(INDUCTOR) else turn
    return arms | {COPY: partial(case.copy_logits, what)}


def tables(args):
    """A table for each number of tokens, dtype and group of arms."""
    sys.path.insert(0, str(args.checkout))
    gpu = args.device == "cuda"
    for tokens, dtype in itertools.product(args.tokens or ([8192, 30720] if gpu else [512]), args.dtypes):
        case = Case(tokens, args.vocabulary, getattr(torch, dtype), args.device)
        for what in [what for what in ARMS if gpu or what != HEAD]:
            rows = measure.compare(arms_of(case, what), args.turns, ratio=next(iter(ARMS[what])), copies=COPY)[what]
            yield rows, {"group": what, "tokens": tokens, "dtype": dtype}


if __name__ == "__main__":
    measure.main(__doc__, ARGUMENTS, tables)
