# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""ERA as a custom loss of slime; docs/llm/slime.md shows how it is switched on.

slime's own policy loss runs on scaled logits. With one update a rollout its ratio is 1, so the
log-probs that slime made before are left out, and the entropies of this update are those of the
policy that they stand for. Masks, clipping and aggregation are slime's, and so are the advantages
unless hold or scale_advantages changes them.
"""

import dataclasses
import functools
from typing import Any, Callable, Mapping

import torch
from slime.backends.megatron_utils import loss as upstream

from era.language import decide
from era.language_config import EraConfig, Refusal, announce, misplaced, refuse

# By the names of slime's arguments, the values that they must have.
NEEDED = {
    "context_parallel_size": 1,
    "rollout_top_p": 1.0,
    "use_rollout_logprobs": False,
    "use_tis": False,
    "get_mismatch_metrics": False,
    "use_opsm": False,
    "keep_old_actor": False,
    "entropy_coef": 0,
    "save_debug_train_data": None,
    "kl_loss_coef": 0,
}
REFUSED = {
    name: Refusal(
        f"`{name}` other than {value}",
        "nobody has made it right with scaled logits, or shown it to be right with k = 1",
        f"Set it to {value}",
    )
    for name, value in NEEDED.items()
}
REFUSED["several updates"] = Refusal(
    "several updates a rollout",
    "slime keeps no entropies of the policy that sampled, by which ERA decides",
    "Set global_batch_size to rollout_batch_size times n_samples_per_prompt",
)
for _name in ("top_k", "schedule_steps"):
    REFUSED[_name] = Refusal(f"`era.{_name}`", "era.slime does not have it", "Leave it out")

_FIELDS = [field.name for field in dataclasses.fields(EraConfig)]


def config_of(args: Any) -> EraConfig:
    """ERA's settings, from the group `era` in the file of --custom-config-path.

    Raises:
        ValueError: there is no such group, or no `enable` in it; a key that ERA does not have, or
            one outside the group; a value out of range; settings of slime's that would be silently
            wrong, all of them.
    """
    group = getattr(args, "era", None)
    if not isinstance(group, Mapping):
        raise ValueError(
            f"era is {group!r}; era.slime.loss expects a group, as era: {{enable: true}}, in "
            "the file of --custom-config-path. Nothing was trained."
        )

    # slime makes arguments of all keys, whoever knows them.
    problems = [
        f"era.{name} is not a setting of ERA's; they are {', '.join(_FIELDS)}."
        for name in group.keys() - _FIELDS
    ]
    outside = misplaced(vars(args), ["era"])
    problems += [f"{key} would be ignored: it belongs in the group era." for key in outside]
    if "enable" not in group:
        problems.append("era.enable is missing: set it to true, or to false for no ERA.")
    refuse(REFUSED, {}, "era.enable=True", sorted(problems))

    era = EraConfig(**group, prefix="era.")
    refuse(REFUSED, {}, "era.enable=True", era.problems_without_enable("era."))
    if era.enable:
        values = {name: getattr(args, name, needed) for name, needed in NEEDED.items()}
        if not args.use_kl_loss:
            values["kl_loss_coef"] = 0
        present = {
            name: value != NEEDED[name] and f"{name}={value}" for name, value in values.items()
        }

        batch, samples = args.global_batch_size, args.rollout_batch_size * args.n_samples_per_prompt
        present["several updates"] = batch != samples and (
            f"global_batch_size={batch} of {samples} samples a rollout"
        )
        present |= {name: group.get(name) for name in ("top_k", "schedule_steps")}
        refuse(REFUSED, present, "era.enable=True")
    return era


@functools.cache
def _announce(era: EraConfig) -> None:
    """Say once whether ERA is on, on the first of the processes that compute a loss."""
    mpu = upstream.mpu
    if mpu.get_data_parallel_rank() == mpu.get_tensor_model_parallel_rank() == 0:
        announce(era)


def loss(
    args: Any, batch: Mapping[str, Any], logits: torch.Tensor, sum_of_sample_mean: Callable
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """slime's policy loss with ERA; what slime calls for --loss-type custom_loss.

    Args:
        args: slime's arguments.
        batch: a micro-batch of slime's.
        logits: (1, T, V / TP) fp32, not divided by the temperature.
        sum_of_sample_mean: slime's aggregation of a value for each response token.

    Returns:
        The loss and slime's metrics of it, with era/response_entropy (nats), era/low_fraction,
        era/high_fraction, era/scaled_token_fraction and era/dropped_token_fraction, aggregated as
        slime's are.

    Raises:
        ValueError: as `config_of`.
    """
    era = config_of(args)
    _announce(era)
    if not era.enable:
        return upstream.policy_loss_function(args, batch, logits, sum_of_sample_mean)

    totals, lengths = batch["total_lengths"], batch["response_lengths"]
    with torch.no_grad():
        _, original = upstream.get_log_probs_and_entropy(
            logits,
            args=args,
            unconcat_tokens=batch["unconcat_tokens"],
            total_lengths=totals,
            response_lengths=lengths,
            with_entropy=True,
        )

        # With one update a rollout these are the entropies of the policy that sampled.
        scales, dropped, advantages, entropies, end = [], [], [], [], 0
        row_scale = torch.ones_like(logits[..., :1])
        for i, (total, length) in enumerate(zip(totals, lengths)):
            sampled = original["entropy"][i][None], original["log_probs"][i][None]
            advantages_of, mask = batch["advantages"][i][None], batch["loss_masks"][i][None]
            decision = decide(*sampled, advantages_of, mask, era, check=False)
            scales.append(decision.scale[0])
            dropped.append(decision.dropped[0])
            advantages.append(decision.advantages[0])
            # NaN: no token of it counts
            entropies.append(decision.response_entropy.nan_to_num().expand(length))
            end += total
            of_labels = slice(end - length - 1, end - 1)  # a row predicts the next token
            row_scale[0, of_labels, 0] = decision.scale[0]

    # Without old log-probs slime takes those of this update, whose ratio is 1.
    batch = {**batch, "advantages": advantages}
    if era.scales_logits:
        batch, logits = {**batch, "log_probs": None}, logits * row_scale
    value, log = upstream.policy_loss_function(args, batch, logits, sum_of_sample_mean)

    # slime's metrics of the policy are of the original one; ERA's own follow.
    entropy, scale = torch.cat(entropies), torch.cat(scales)
    log["entropy_loss"] = sum_of_sample_mean(torch.cat(original["entropy"]))
    if batch.get("rollout_log_probs"):
        drift = torch.cat(original["log_probs"]) - torch.cat(batch["rollout_log_probs"])
        log["train_rollout_logprob_abs_diff"] = sum_of_sample_mean(drift.abs())
    log["era/response_entropy"] = sum_of_sample_mean(entropy)
    log["era/low_fraction"] = sum_of_sample_mean((entropy < era.low).float())
    log["era/high_fraction"] = sum_of_sample_mean((entropy > era.high).float())
    log["era/scaled_token_fraction"] = sum_of_sample_mean((scale != 1).float())
    log["era/dropped_token_fraction"] = sum_of_sample_mean(torch.cat(dropped).float())
    return value, log
