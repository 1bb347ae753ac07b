"""One update of one policy on one batch by every code path: how far log-probs and gradients lie apart.

    python tests/llm/agreement.py CHECKOUT        prints the table as Markdown

The policy is in fp64, so that a difference is an error of the path and not of the arithmetic; the fused kernel alone
computes in fp32, whatever it is given.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import plain
import torch
from token_model import PROMPT

# The random policies here have H_resp from 1.5 to 3.3 nats, so that these bounds put responses on both sides and between.
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
    "scale apart from the temperature, for KL loss or entropy bonus": ({"kl_coef": 1e-300, "entropy_coeff": 1e-300}, 1),
    "fused kernel (fp32), padded": ({"fused": True}, 1),
    "fused kernel (fp32), remove-padding": ({"fused": True, "remove_padding": True}, 1),
}
SEEDS = (3, 6, 7)  # with and without padding to a multiple of two ranks


def settings(path, seed, top_k):
    return {**UPDATE, "seed": seed, **PATHS[path][0], "era": {**ERA, "top_k": top_k}}


def differences(steps, tree):
    """For each path: the largest differences to the padded path in old log-probs and in gradients, without and with top-k."""
    cases = [(seed, top_k) for top_k in (None, 5) for seed in SEEDS]
    reference = steps(tree, [{**UPDATE, "seed": seed, "era": {**ERA, "top_k": top_k}} for seed, top_k in cases])
    assert {result["batch"]["attention_mask"].sum().item() % 2 for result in reference} == {0, 1}
    assert all(result["metrics"][0]["era/scaled_token_fraction"] > 0.1 for result in reference)
    table = {}
    for top_k in (None, 5):
        pairs = [
            (_plain(result, {**UPDATE, "era": {**ERA, "top_k": top_k}}), result)
            for case, result in zip(cases, reference)
            if case[1] == top_k
        ]
        table["the equations, in plain torch", top_k] = _largest(pairs)
    for path, (_, processes) in PATHS.items():
        kept = [case for case in cases if "fused" not in path or case[1] is None]  # fused kernels take no top-k
        results = steps(tree, [settings(path, *case) for case in kept], processes=processes)
        assert all(("era_branch_log_probs" in result["batch"]) == ("off-policy" in path) for result in results)
        for top_k in dict.fromkeys(top_k for _, top_k in kept):
            pairs = [(results[i], reference[cases.index(case)]) for i, case in enumerate(kept) if case[1] == top_k]
            table[path, top_k] = _largest(pairs)
    largest = max(
        (result["parameters"][name] - result["start"][name]).abs().max().item()
        for result in reference
        for name in result["start"]
    )
    return table, largest


def _plain(result, settings):
    model = plain.build_model(settings, torch.double)
    model.load_state_dict(result["start"])
    with torch.no_grad():
        logits, _ = plain.policy(model, result["batch"], settings)
    old_log_probs, _ = plain.log_prob(
        logits, result["batch"]["responses"], torch.ones_like(result["batch"]["advantages"])
    )
    return {"parameters": plain.train(result, settings), "batch": {**result["batch"], "old_log_probs": old_log_probs}}


def _largest(pairs):
    """SGD with learning rate 1 took one step: parameters lie as far apart as gradients."""
    log_prob = max(_log_prob_difference(ours["batch"], theirs["batch"]) for ours, theirs in pairs)
    gradient = max(
        (ours["parameters"][name] - theirs["parameters"][name]).abs().max().item()
        for ours, theirs in pairs
        for name in theirs["parameters"]
    )
    return log_prob, gradient


def _log_prob_difference(ours, theirs):
    theirs = {key: value[: len(ours["responses"])] for key, value in theirs.items()}  # a data-parallel rank has a share
    mask = theirs["attention_mask"][:, PROMPT:].bool()
    return (ours["old_log_probs"] - theirs["old_log_probs"])[mask].abs().max().item()


def main(tree):
    def steps(tree, settings, processes=1):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "settings.json").write_text(json.dumps(settings))
            launcher = (
                ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
                if processes > 1
                else []
            )
            command = [
                sys.executable,
                *launcher,
                Path(__file__).with_name("actor_step.py"),
                f"{folder}/settings.json",
                f"{folder}/results.pt",
            ]
            env = {**os.environ, "PYTHONPATH": tree, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
            subprocess.run(command, env=env, check=True, capture_output=True)
            return torch.load(f"{folder}/results.pt", weights_only=False)

    table, largest = differences(steps, tree)
    print(
        f"Largest difference to the padded on-policy path, {len(SEEDS)} batches of 24 responses, fp64; the largest gradient is {largest:.2g}:\n"
    )
    print("| path | top-k | log-prob | gradient |\n|---|---|---|---|")
    for (path, top_k), (log_prob, gradient) in table.items():
        print(f"| {path} | {top_k or '-'} | {log_prob:.1e} | {gradient:.1e} |")


if __name__ == "__main__":
    main(*sys.argv[1:])
