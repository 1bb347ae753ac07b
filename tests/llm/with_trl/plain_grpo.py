# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""GRPO's updates with ERA in fp64, written down from the equations; it shares no code with era or TRL, of
which it knows the version."""

import contextlib
import copy
import math
from importlib import metadata

import eq_llm
import torch


def logits_of(model, batch, args):
    """(B, T, vocabulary) of the answers' tokens."""
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1)
    attention = torch.cat([batch["prompt_mask"], batch["completion_mask"]], 1)
    images = {name: batch[name] for name in ("pixel_values",) if name in batch}
    logits = model(input_ids=ids, attention_mask=attention, **images).logits
    return logits[:, batch["prompt_ids"].size(1) - 1 : -1] / args.temperature


def chosen(log_probs, batch):
    return log_probs.gather(-1, batch["completion_ids"].unsqueeze(-1)).squeeze(-1)


def mask_of(batch):
    mask = batch["completion_mask"].double()
    return mask * batch["tool_mask"] if "tool_mask" in batch else mask


def entropy_of(logits):
    p = logits.softmax(-1)
    return -(p * logits.log_softmax(-1)).sum(-1)


def decide(entropy, advantages, mask, era):
    """Eq. llm: the scale of every token."""
    h_resp = eq_llm.response_entropies(entropy, mask, era.top_fraction)
    return eq_llm.decide(h_resp, advantages, mask, era.low, era.high, era.k, era.min_advantage)


def dropped(logits, batch, advantages, mask, era):
    """The tokens whose advantage is 0 in the loss."""
    if not era.hold:
        return torch.zeros_like(mask).bool()
    log_p, bounds = chosen(logits.log_softmax(-1), batch), (era.low, era.high)
    return eq_llm.dropped(entropy_of(logits), log_p, advantages, mask, *bounds, era.top_fraction)


def transformed(logits, scale, batch, era):
    """log pi'(a); -inf where the top-k filter removed a."""
    z = logits * scale.unsqueeze(-1)
    if era.top_k and era.k != 1:
        z = z.masked_fill(z < z.topk(era.top_k).values[..., -1:], -math.inf)
    return chosen(z.log_softmax(-1), batch)


def sampler_weight(old, batch, mask, args):
    """Correction of what another engine sampled, or None."""
    if "importance_sampling_ratio" not in batch:
        return None
    mode = args.vllm_importance_sampling_mode
    difference = (old - batch["sampling_per_token_logps"].double()) * mask
    weight = (difference if "token" in mode else difference.sum(-1, keepdim=True)).exp()
    low, high = args.vllm_importance_sampling_clip_min or 0.0, args.vllm_importance_sampling_clip_max
    if "truncate" in mode:
        return weight.clamp(low, high)
    return torch.where((weight >= low) & (weight <= high), weight, 0.0)


def ratio(log_ratio, mask, args):
    if args.importance_sampling_level == "sequence":
        log_ratio = ((log_ratio * mask).sum(-1) / mask.sum(-1).clamp(min=1)).unsqueeze(-1)
    return log_ratio.exp()


def kind_of(args):
    return "gmpo" if "GMPO" in type(args).__name__ else args.loss_type


def policy_loss(new, old, advantages, mask, weight, args):
    """(B, T)"""
    r, kind = ratio(new - old, mask, args), kind_of(args)
    high = args.epsilon if args.epsilon_high is None else args.epsilon_high
    if kind == "gmpo":  # the geometric mean of a response's clipped ratios; here it stands at each of its tokens
        log_ratio, clipped = new - old, (new - old).clamp(-args.epsilon, high)
        worse = torch.where(advantages > 0, torch.min(log_ratio, clipped), torch.max(log_ratio, clipped))
        return -((worse * mask).sum(-1, keepdim=True) / mask.sum(-1, keepdim=True)).exp() * advantages
    if kind == "cispo":
        return -r.clamp(max=args.epsilon_high).detach() * advantages * new
    if kind == "sapo":
        tau = torch.where(advantages > 0, args.sapo_temperature_pos, args.sapo_temperature_neg)
        return -4 / tau * torch.sigmoid(tau * (r - 1)) * advantages
    if kind == "vespo":
        lowest = math.log(1e-8)
        log_w = ((new - old).detach().clamp(-20, 20) * mask).sum(-1, keepdim=True)
        if weight is not None:
            log_w = log_w + weight.log().clamp(lowest, 20).sum(-1, keepdim=True)
        log_w = log_w.clamp(lowest, 20)
        power = torch.where(advantages >= 0, args.vespo_k_pos, args.vespo_k_neg)
        rate = torch.where(advantages >= 0, args.vespo_lambda_pos, args.vespo_lambda_neg)
        return -(rate + power * log_w - rate * log_w.exp()).exp() * advantages * new
    unclipped = r if args.delta is None else r.clamp(max=args.delta)
    return -torch.min(unclipped * advantages, r.clamp(1 - args.epsilon, 1 + high) * advantages)


def aggregated(loss, mask, batch, args, ranks):
    """One micro-batch's share of the step's loss."""
    kind, steps = kind_of(args), args.gradient_accumulation_steps
    if kind in ("dapo", "cispo", "vespo"):  # a mean over the tokens of all ranks' generation batch
        unscaled = metadata.version("trl") == "1.9.0"  # which divides by the whole batch's tokens at each step
        batches = 1 if unscaled else args.steps_per_generation / steps
        return (loss * mask).sum() * batches / batch["num_items_in_batch"].double().clamp(min=1)
    if kind == "bnpo":
        mean = (loss * mask).sum() / mask.sum().clamp(min=1)
    elif kind == "dr_grpo":
        mean = (loss * mask).sum() / (len(mask) * args.max_completion_length)
    elif kind == "luspo":
        mean = (loss * mask).sum(-1).mean()
    else:
        mean = ((loss * mask).sum(-1) / mask.sum(-1).clamp(min=1)).mean()
    return mean / steps / ranks


def reference_error(first, batch, args):
    """The largest difference in nats of TRL's log-probs of the reference policy, which it rounds to fp32."""
    adapter = first.disable_adapter() if hasattr(first, "disable_adapter") else contextlib.nullcontext()
    with torch.no_grad(), adapter:
        exact = chosen(logits_of(first, batch, args).log_softmax(-1), batch)
    return ((batch["ref_per_token_logps"] - exact) * mask_of(batch)).abs().max()


def loss_of(model, sampled_by, first, batch, args, era, ranks):
    """The loss of a micro-batch and the scales of its tokens."""
    mask = mask_of(batch)
    advantages = batch["advantages"].double().unsqueeze(-1).expand(mask.shape)
    with torch.no_grad():
        z_old = logits_of(sampled_by, batch, args)
        old_original = chosen(z_old.log_softmax(-1), batch)
        decided = entropy_of(z_old), advantages, mask, era
        scale = decide(*decided) if era.enable else torch.ones_like(mask)
        of_loss = advantages.masked_fill(dropped(z_old, batch, advantages, mask, era), 0)
        old = transformed(z_old, scale, batch, era)
    z = logits_of(model, batch, args)
    new, original, entropy = transformed(z, scale, batch, era), chosen(z.log_softmax(-1), batch), entropy_of(z)
    removed = new == -math.inf  # by the filter: no gradient; removed in one of the passes: a ratio of 1
    new = new.masked_fill(removed, 0)
    old = torch.where(removed | (old == -math.inf), new.detach(), old)
    of_loss = of_loss / scale if era.scale_advantages else of_loss
    weight = sampler_weight(old_original, batch, mask, args)
    loss = policy_loss(new, old, of_loss, mask, weight, args)
    if args.off_policy_mask_threshold is not None:
        drift = batch.get("sampling_per_token_logps", old_original).double() - original.detach()
        drift = (drift * mask).sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp(min=1)
        loss = loss * ((advantages >= 0) | (drift <= args.off_policy_mask_threshold))
    forking_mask = mask
    if args.top_entropy_quantile < 1:
        # The first tokens of a group's answers have equal entropies, and the quantile may lie on them: rounding
        # decides. So the mask is TRL's, and must be that of these entropies but for such ties.
        cut = torch.quantile(entropy.detach()[mask.bool()], 1 - args.top_entropy_quantile)
        wrong = mask.bool() & (batch["entropy_mask"] != (entropy.detach() >= cut))
        assert ((entropy.detach() - cut)[wrong].abs() < 1e-5).all()
        forking_mask = mask * batch["entropy_mask"]
        loss = loss * batch["entropy_mask"]
    if weight is not None and args.loss_type != "vespo":
        loss = loss * weight
    if args.beta:
        d = batch["ref_per_token_logps"].double() - original  # TRL's, rounded to fp32: reference_error
        kl = d.exp() - d - 1
        if args.use_bias_correction_kl and kind_of(args) != "gmpo":
            kl = kl * ratio(original - old_original, mask, args)
        loss = loss + args.beta * kl
    total = aggregated(loss, mask, batch, args, ranks)
    if args.entropy_coef:
        bonus = (entropy * forking_mask).sum() / forking_mask.sum().clamp(min=1)
        total = total - args.entropy_coef * bonus / args.gradient_accumulation_steps / ranks
    if args.router_aux_loss_coef and any(map(is_router, model.modules())):  # older TRLs set it for every model
        total = total + args.router_aux_loss_coef * balance(model, batch) / args.gradient_accumulation_steps / ranks
    return total, scale


def balance(model, batch):
    """Switch's loss of a mixture (arXiv:2101.03961, eq. 4), over all layers, with several experts for a token: experts
    times the sum over them of the share of tokens that took one and its mean probability."""
    tokens = torch.cat([batch["prompt_mask"], batch["completion_mask"]], 1).flatten().bool()
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1)
    seen = []
    hooks = [m.register_forward_pre_hook(lambda m, x: seen.append((m, x[0]))) for m in model.modules() if is_router(m)]
    model(input_ids=ids, attention_mask=tokens.view(ids.shape).long())
    for hook in hooks:
        hook.remove()
    p = torch.cat([(x.reshape(len(tokens), -1) @ m.weight.T).softmax(-1)[tokens] for m, x in seen])
    taken = torch.zeros_like(p).scatter(1, p.topk(model.config.num_experts_per_tok).indices, 1.0)
    return p.size(1) * (taken.mean(0) * p.mean(0)).sum()


def is_router(module):
    return type(module).__name__.endswith("Router")


def trained(start, batches, args, era):
    """The model after SGD, and for each micro-batch the scales of its tokens, of all ranks.

    batches: for each rank, its micro-batches in the order of the updates.
    """
    model = copy.deepcopy(start).double().eval()
    first, scales, ranks = copy.deepcopy(model), [], len(batches)
    for i, of_ranks in enumerate(zip(*batches)):
        if i % (args.steps_per_generation * args.num_iterations) == 0:
            sampled_by = copy.deepcopy(model)
        of_step = [loss_of(model, sampled_by, first, batch, args, era, ranks) for batch in of_ranks]
        sum(loss for loss, _ in of_step).backward()
        scales.append(torch.cat([scale[mask_of(batch).bool()] for (_, scale), batch in zip(of_step, of_ranks)]))
        if (i + 1) % args.gradient_accumulation_steps == 0:
            with torch.no_grad():
                for parameter in model.parameters():
                    if parameter.grad is not None:
                        parameter -= args.learning_rate * parameter.grad
                        parameter.grad = None
    return model, scales


def error(trained_weights, wanted, start):
    """The largest difference of the parameters, relative to the largest step of a parameter."""
    wanted, start = wanted.state_dict(), start.state_dict()
    step = max((wanted[name] - start[name].double()).abs().max() for name in wanted)
    return max((trained_weights[name].double() - wanted[name]).abs().max() for name in wanted).item() / step.item()
