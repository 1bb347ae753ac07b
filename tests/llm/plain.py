# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""PPO's update with ERA in fp64, written down from the equations; it shares no code with the overlay or with verl."""

import math

import eq_llm
import torch
from token_model import PROMPT, build_model

DUAL_CLIP = 3.0
MAX_LOG_RATIO = 20  # verl's bound, beyond which a ratio is constant


def response_mask(batch, settings):
    return batch["loss_mask" if settings.get("multi_turn") else "attention_mask"][:, PROMPT:].bool()


def policy(model, batch, settings):
    """Logits of the original policy at the response's tokens, and their entropies."""
    logits = (
        model(input_ids=batch["input_ids"], position_ids=batch["position_ids"]).logits[:, PROMPT - 1 : -1]
        / settings["temperature"]
    )
    p = logits.softmax(-1)
    return logits, -(p * p.log()).sum(-1)


def decide(entropy, batch, settings):
    """Eq. llm with the bounds of this update: the scale of every token."""
    era = settings.get("era", {"k": 1})
    low, high = bounds(settings)
    h_resp, mask = h_responses(entropy, batch, settings), response_mask(batch, settings)
    return eq_llm.decide(h_resp, batch["advantages"], mask, low, high, era["k"], era.get("min_advantage", 0))


def dropped(logits, entropy, batch, settings):
    """The tokens whose advantage is 0 in the policy loss."""
    era, mask = settings.get("era", {}), response_mask(batch, settings)
    if not era.get("hold"):
        return torch.zeros_like(mask)
    log_p, _ = log_prob(logits, batch["responses"], torch.ones_like(entropy))
    fraction = era.get("top_fraction", 0.2)
    return eq_llm.dropped(entropy, log_p, batch["advantages"], mask, *bounds(settings), fraction)


def h_responses(entropy, batch, settings):
    fraction = settings.get("era", {}).get("top_fraction", 0.2)
    return eq_llm.response_entropies(entropy, response_mask(batch, settings), fraction)


def bounds(settings):
    """omega_low and omega_high of this update."""
    era = settings.get("era", {"low": 0, "high": math.inf})
    share = min(1, settings.get("updates_before", 0) / (era.get("schedule_steps") or 1))
    return (era[name] + share * (era.get(f"{name}_end", era[name]) - era[name]) for name in ("low", "high"))


def start(result, settings):
    """Logits and entropies of the policy that the update starts from."""
    model = build_model(settings, torch.double)
    model.load_state_dict(result["start"])
    with torch.no_grad():
        return policy(model, result["batch"], settings)


def entropies(result, settings):
    return start(result, settings)[1]


def metrics(result, settings):
    """era/... of one update, from their definitions."""
    (logits, entropy), batch, (low, high) = start(result, settings), result["batch"], bounds(settings)
    mask, scale = response_mask(batch, settings), decide(entropy, batch, settings)
    assert not mask.any(-1).all(), "the case must have an empty response"
    values = eq_llm.metrics(entropy, mask, scale, dropped(logits, entropy, batch, settings), low, high)
    return {**values, "era/lost_fraction": float(values["era/response_entropy"] < low - 0.1)}


def advantages_of(logits, entropy, batch, scale, settings):
    """What the loss takes: A' = A / scale, and 0 for those that are dropped."""
    kept = batch["advantages"].masked_fill(dropped(logits, entropy, batch, settings), 0)
    return kept / (scale if settings.get("era", {}).get("scale_advantages") else 1)


def log_prob(logits, responses, scale, top_k=None):
    """log pi'(a), and whether a is among the top_k logits (where not, the value is 0 and constant)."""
    z = logits * scale.unsqueeze(-1)
    if top_k:
        z = z.masked_fill(z < z.topk(top_k).values[..., -1:], -math.inf)
    label = z.gather(-1, responses.unsqueeze(-1)).squeeze(-1)
    kept = label.isfinite()
    return torch.where(kept, label, 0) - torch.where(kept, z.logsumexp(-1), 0), kept


def aggregate(terms, mask, settings):
    if settings.get("loss_agg_mode", "token-mean") == "token-mean":
        return terms[mask].mean()
    return sum(row[keep].mean() for row, keep in zip(terms, mask) if keep.any()) / len(mask)  # seq-mean-token-mean


def sequence_log_ratio(log_ratio, mask):
    """GSPO-token: the value of the whole response's log-ratio, a mean over its tokens, with each token's gradient."""
    means = torch.stack(
        [row[keep].mean() if keep.any() else row.new_zeros(()) for row, keep in zip(log_ratio.detach(), mask)]
    )
    return means.unsqueeze(-1) + log_ratio - log_ratio.detach()


def train(result, settings):
    """The parameters after the last batch's update, from the parameters `result["start"]`."""
    era, batch = settings.get("era", {}), result["batch"]
    top_k = era.get("top_k") if era.get("k", 1) != 1 else None
    model = build_model({**settings, "fused": False}, torch.double)
    model.load_state_dict(result["start"])
    trained = [p for p in model.parameters() if p.requires_grad]
    mask = response_mask(batch, settings)
    with torch.no_grad():
        logits, entropy = policy(model, batch, settings)
        scale = decide(entropy, batch, settings)
        old, old_kept = log_prob(logits, batch["responses"], scale, top_k)
        advantages = advantages_of(logits, entropy, batch, scale, settings)

    clip, is_gspo = settings.get("clip", 0.2), settings.get("policy_loss", {}).get("loss_mode") == "gspo"
    clip_high = settings.get("clip_high", clip)
    micro, mini = settings["micro_batch"], settings.get("mini_batch", settings["bsz"])
    for _ in range(settings.get("epochs", 1)):
        for first in range(0, len(mask), mini):
            loss = 0
            for start in range(first, first + mini, micro):
                rows = slice(start, start + micro)
                part = {key: batch[key][rows] for key in ("input_ids", "position_ids", "responses")}
                logits, entropy = policy(model, part, settings)
                new, kept = log_prob(logits, part["responses"], scale[rows], top_k)
                # A token that the filter removes in the old or the new pass has the ratio 1; in the new, no gradient.
                reference = torch.where(kept & old_kept[rows], old[rows], new.detach())
                log_ratio, a = new - reference, advantages[rows]
                if is_gspo:
                    log_ratio = sequence_log_ratio(log_ratio, mask[rows])
                ratio = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
                surrogate = torch.minimum(a * ratio, a * ratio.clamp(1 - clip, 1 + clip_high))
                if not is_gspo:
                    surrogate = torch.where(a < 0, torch.maximum(surrogate, DUAL_CLIP * a), surrogate)
                original, _ = log_prob(logits, part["responses"], torch.ones_like(a))
                log_ratio = batch["ref_log_prob"][rows] - original
                kl = log_ratio.exp() - 1 - log_ratio  # verl's low_var_kl caps it at 10
                terms = (
                    -surrogate
                    + settings.get("kl_coef", 0) * kl.clamp(max=10)
                    - settings.get("entropy_coeff", 0) * entropy
                )
                loss = loss + aggregate(terms, mask[rows], settings) * micro / mini
            for p, gradient in zip(trained, torch.autograd.grad(loss, trained)):
                p.data -= settings.get("lr", 1.0) * gradient
    return {name: p.detach() for name, p in model.named_parameters()}
