"""One update of one policy on one batch by every code path: how far log-probs and gradients lie apart.

    python tests/llm/agreement.py CHECKOUT        prints the table as Markdown

The policy is in fp64, so that a difference is an error of the path and not of the arithmetic.
"""

import sys

import plain
import torch
from llm_helpers import largest_difference, take_steps
from token_model import PROMPT

# The random policies here have H_resp from 1.5 to 3.3 nats: these bounds put responses on both sides and between.
ERA = {"enable": True, "low": 2.75, "high": 2.8, "k": 1.7}  # no power of 2: rounding differs
# One micro-batch, and a mean over responses: two ranks with half of them each take the same mean.
UPDATE = {
    "model": "token",
    "bsz": 24,
    "micro_batch": 24,
    "remove_padding": False,
    "temperature": 0.7,
    "loss_agg_mode": "seq-mean-token-mean",
    "era": ERA,
}
PATHS = {  # settings, and processes
    "remove-padding": ({"remove_padding": True}, 1),
    "Ulysses sequence parallelism, 2 processes": ({"remove_padding": True}, 2),
    "FSDP, 2 gloo processes with half of the batch each": ({"fsdp": True, "micro_batch": 12}, 2),
    "off-policy, one mini-batch": ({"force_off_policy": True}, 1),
    "off-policy, Ulysses, 2 processes": ({"force_off_policy": True, "remove_padding": True}, 2),
    "KL loss and entropy bonus, of no weight": ({"kl_coef": 1e-300, "entropy_coeff": 1e-300}, 1),
    "fused kernels, padded": ({"fused": True}, 1),
    "fused kernels, remove-padding": ({"fused": True, "remove_padding": True}, 1),
    "fused kernels, Ulysses, 2 processes": ({"fused": True, "remove_padding": True}, 2),
    "fused kernels, FSDP, 2 processes": ({"fused": True, "fsdp": True, "micro_batch": 12}, 2),
    "fused kernels, off-policy": ({"fused": True, "force_off_policy": True}, 1),
}
SEEDS = (3, 6, 7)  # with and without padding to a multiple of two ranks
TOP_K = (None, 5)


def settings_of(seed, top_k, **path):
    return {**UPDATE, "seed": seed, **path, "era": {**ERA, "top_k": top_k}}


def differences(tree):
    """How far each path lies from the padded one.

    Returns:
        (log-prob, gradient), the largest differences, for each (path, top_k); and the largest gradient.
    """
    cases = {("padded", top_k, seed): settings_of(seed, top_k) for top_k in TOP_K for seed in SEEDS}
    results = dict(zip(cases, take_steps(tree, list(cases.values()))))
    reference = {(top_k, seed): result for (_, top_k, seed), result in results.items()}
    assert {result["batch"]["attention_mask"].sum().item() % 2 for result in reference.values()} == {0, 1}
    assert all(result["metrics"][0]["era/scaled_token_fraction"] > 0.1 for result in reference.values())

    results = {("the equations, in plain torch", *case): by_the_equations(reference[case], *case) for case in reference}
    for processes in (1, 2):
        cases = {
            (path, top_k, seed): settings_of(seed, top_k, **settings)
            for path, (settings, needed) in PATHS.items()
            for top_k in TOP_K
            for seed in SEEDS
            if needed == processes
        }
        taken = dict(zip(cases, take_steps(tree, list(cases.values()), processes)))
        assert all(("era_branch_log_probs" in taken[case]["batch"]) == ("off-policy" in case[0]) for case in taken)
        results |= taken

    table = {}
    for (path, top_k, seed), result in results.items():
        padded = reference[top_k, seed]
        # SGD with learning rate 1 took one step: parameters lie as far apart as gradients.
        found = log_prob_difference(result, padded), largest_difference(result["parameters"], padded["parameters"])
        table[path, top_k] = tuple(map(max, found, table.get((path, top_k), (0.0, 0.0))))
    gradient = max(largest_difference(result["parameters"], result["start"]) for result in reference.values())
    order = ["the equations, in plain torch", *PATHS]
    return {key: table[key] for key in sorted(table, key=lambda key: (order.index(key[0]), key[1] or 0))}, gradient


def by_the_equations(result, top_k, seed):
    settings, batch = settings_of(seed, top_k), result["batch"]
    model = plain.build_model(settings, torch.double)
    model.load_state_dict(result["start"])
    with torch.no_grad():
        logits, _ = plain.policy(model, batch, settings)
    old_log_probs, _ = plain.log_prob(logits, batch["responses"], torch.ones_like(batch["advantages"]))
    return {"parameters": plain.train(result, settings), "batch": {**batch, "old_log_probs": old_log_probs}}


def log_prob_difference(result, padded):
    ours = result["batch"]
    rows = slice(len(ours["responses"]))  # a data-parallel rank has a share
    mask = padded["batch"]["attention_mask"][rows, PROMPT:].bool()
    return (ours["old_log_probs"] - padded["batch"]["old_log_probs"][rows])[mask].abs().max().item()


def main(tree):
    table, largest = differences(tree)
    print(
        f"Largest difference to the padded on-policy path, {len(SEEDS)} batches of 24 responses, fp64;"
        f" the largest gradient is {largest:.2g}:\n"
    )
    print("| path | top-k | log-prob | gradient |\n|---|---|---|---|")
    for (path, top_k), (log_prob, gradient) in table.items():
        print(f"| {path} | {top_k or '-'} | {log_prob:.1e} | {gradient:.1e} |")


if __name__ == "__main__":
    main(*sys.argv[1:])
