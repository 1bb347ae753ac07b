# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""verl's workers of the actor with ERA: the scales of an update, the old log-probs under them, the loss, the metrics.

The engine (engine.py, megatron_engine.py) applies the scales to the logits. What verl's worker does before and after is
left to it: the pass of the policy that sampled, micro-batches, the optimizer, checkpoints, the reference policy.
"""

import copy
import os
import sys
from functools import partial

import torch
import torch.distributed as dist
from verl.trainer.ppo.core_algos import agg_loss, kl_penalty
from verl.utils import tensordict_utils as tu
from verl.utils.device import get_device_name
from verl.utils.metric import Metric
from verl.workers import engine as verl_engine
from verl.workers.engine import EngineRegistry, FSDPEngineWithLMHead
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker
from verl.workers.utils.losses import ppo_loss
from verl.workers.utils.padding import no_padding_2_padding, response_from_nested, response_to_nested

from era.fused_head import FusedHead
from era.language import COEFFICIENT, BelowLow, decide, next_coefficient, update_metrics
from era.language_config import CONFIG_KEY, EraConfig, refuse
from era.log_probs import OUTSIDE_TOP_K_LOG_PROB, backend
from era.refusals import VERL_0_9
from era.verl.config import NEEDS_ERA_WORKER, OTHER_ENGINES, SCALES_RESPONSES, UPDATES_BEFORE
from era.verl.engine import LOGIT_SCALE, ORIGINAL_LOG_PROBS, EraFSDPEngine

# Nested (bsz, response): log-probs under the decided scales, before an update of several steps.
OLD_LOG_PROBS = "era_old_log_probs"


class EraTrainingWorker(TrainingWorker):
    """verl's training worker of the actor. An update without ERA's configuration is verl's to the bit.

    verl calls `set_loss_fn` once and `train_mini_batch` for each update. There, in this order: `_decide` puts the
    scales, for several steps the old log-probs under them, and the advantages of the loss into `data`; verl's own
    method runs the engine, which reads the scales, and `era_ppo_loss`, which reads the old log-probs.

    Raises:
        ValueError: on construction, if the engine for this configuration is not verl's own.
    """

    def __init__(self, config):
        strategy = config.engine_config.strategy.removesuffix(NEEDS_ERA_WORKER)
        object.__setattr__(config.engine_config, "strategy", strategy)

        # An engine from elsewhere would not apply the scales.
        engine = EngineRegistry.get_engine_cls(config.model_type, strategy)
        verls = OTHER_ENGINES.get(strategy, FSDPEngineWithLMHead.__name__)
        chosen = f"{engine.__name__}, which VERL_ENGINE_VENDOR or the platform chose in the place of {verls}"
        replaced = engine is not getattr(verl_engine, verls) and chosen
        refuse(VERL_0_9, {"replaced engine": replaced}, f"{CONFIG_KEY}.enable=True")

        # verl's own engine where the scales go into its temperature; ERA's elsewhere.
        if strategy in SCALES_RESPONSES:
            super().__init__(config)
            return
        if strategy == "megatron":
            import era.verl.megatron_engine  # noqa: F401 - registers itself
        vendor = os.environ.get("VERL_ENGINE_VENDOR")
        os.environ["VERL_ENGINE_VENDOR"] = "era"  # verl's own switch between engines of one strategy
        try:
            super().__init__(config)
        finally:
            del os.environ["VERL_ENGINE_VENDOR"]
            if vendor is not None:
                os.environ["VERL_ENGINE_VENDOR"] = vendor

    def set_loss_fn(self, loss_fn: partial) -> None:
        name = loss_fn.func.__name__
        another = "" if loss_fn.func is ppo_loss else f"the actor's loss {name}"
        refuse(VERL_0_9, {"another loss": another}, f"{CONFIG_KEY}.enable=True")

        self.actor = actor = loss_fn.keywords["config"]
        self.era_config = era = EraConfig.from_mapping(actor.era)
        self.below_low = BelowLow()
        if self._scales_tokens():
            self._set_engine(era, actor.use_kl_loss)

        warning = era.schedule_exceeds(self.optimizer_config.total_training_steps)
        if warning and self.engine.get_data_parallel_rank() == 0:
            print(warning, file=sys.stderr)
        self.loss_fn = partial(era_ppo_loss, **loss_fn.keywords) if era.scales_logits else loss_fn

    def _set_engine(self, era: EraConfig, use_kl_loss: bool) -> None:
        """Tell ERA's engine what the loss needs of the logits.

        Raises:
            ValueError: verl has built another engine, which would not read the scales.
        """
        # Not isinstance: Megatron's engine cannot be imported everywhere.
        if not hasattr(type(self.engine), "needs_kl"):
            engine = f"{type(self.engine).__name__}, which verl built in the place of ERA's"
            refuse(VERL_0_9, {"replaced engine": engine}, f"{CONFIG_KEY}.enable=True")
        self.engine.top_k = era.top_k
        self.engine.needs_kl = use_kl_loss
        self.engine.compile = era.compile

        is_fsdp = isinstance(self.engine, EraFSDPEngine)
        if is_fsdp:
            self.engine.enable = era.enable
            if era.enable and self.engine_config.use_fused_kernels:
                self.engine.head = FusedHead(self.engine.module, use_kl_loss)

        # On Megatron an update with k = 1 is verl's own.
        if era.enable and (is_fsdp or era.scales_logits) and self.engine.get_data_parallel_rank() == 0:
            print(f"ERA: {backend(get_device_name(), era.compile)} reads the logits", file=sys.stderr)

    def _scales_tokens(self) -> bool:
        return self.engine_config.strategy not in SCALES_RESPONSES

    def train_mini_batch(self, data):
        """Decide the scale of each token of this rank's whole batch, then train as verl does.

        Args:
            data: of verl; with `entropy`, nested (bsz, response), of the policy that sampled, in nats.

        Returns:
            verl's output, its metrics with those of ERA, which are means over all ranks.

        Raises:
            ValueError: a response needs two scales of an engine that takes one.
        """
        metrics = self._decide(data) if self.era_config.enable else {}
        output = super().train_mini_batch(data)
        if output is not None:
            tu.assign_non_tensor(output, metrics=tu.get(output, "metrics") | metrics)
        return output

    def _decide(self, data) -> dict[str, float]:
        """Put the scales, and what the loss needs of them, into `data`; return ERA's metrics."""
        era = self._era_of_update(data)
        mask = data["response_mask"].to_padded_tensor(0).bool()
        keys = "entropy", "old_log_probs", "advantages"
        entropy, log_probs, advantages = (data[key].to_padded_tensor(0.0) for key in keys)
        decision = decide(entropy, log_probs, advantages, mask, era, check=False)

        if era.changes_advantages:
            data["advantages"] = response_to_nested(decision.advantages, data["response_mask"])
        # Where the update makes several steps, the ratio needs old log-probs under the same scales.
        if era.scales_logits:
            if self._scales_tokens():
                data[LOGIT_SCALE] = _at_predicting_positions(decision.scale, data)
            else:
                one_scale = _response_scale(decision.scale, mask, advantages > era.min_advantage)
                data["temperature"] = tu.get(data, "temperature") / one_scale
            one_step = data.shape[0] * self.engine.get_data_parallel_size() == tu.get(data, "mini_batch_size")
            if not (one_step and tu.get(data, "epochs") == 1):
                data.update(self._old_log_probs(data))

        # Metrics are means over all ranks.
        sums = decision.sums.stacked().to(get_device_name())
        dist.all_reduce(sums, group=self.engine.get_data_parallel_group())
        metrics = update_metrics(sums)
        advice = self.below_low.advice(metrics["era/response_entropy"], era)
        if advice and self.engine.get_data_parallel_rank() == 0:
            print(advice, file=sys.stderr)
        metrics["era/lost_fraction"] = self.below_low.fraction
        return metrics | era.scheduled | self._set_bonus(data, metrics["era/top_entropy"])

    def _set_bonus(self, data, entropy: float) -> dict[str, float]:
        """Set the coefficient of this update's entropy bonus, if it is adaptive. Returns it as a metric."""
        if not self.actor.adaptive_entropy:
            return {}
        group = self.engine.optimizer.param_groups[0]
        used, group[COEFFICIENT] = next_coefficient(group.get(COEFFICIENT, 0.0), entropy, **self.actor.adaptive_entropy)
        object.__setattr__(self.actor, "entropy_coeff", used)
        # The trainer asks for entropies where the configuration that it has, which says 0, has a bonus.
        tu.assign_non_tensor(data, calculate_entropy=used != 0 or self.actor.calculate_entropy)
        return {"adaptive_entropy/coeff": used}

    def _era_of_update(self, data) -> EraConfig:
        """ERA's configuration with the bounds that its schedule has at this update."""
        if self.era_config.schedule_steps is None:
            return self.era_config
        updates_before = tu.get_non_tensor_data(data, UPDATES_BEFORE, None)
        if updates_before is None:
            raise ValueError(
                f"{CONFIG_KEY}.schedule_steps={self.era_config.schedule_steps}, but the trainer does not say how many "
                f"updates were before this one. Take era.verl.trainer.EraTrainer, or put {UPDATES_BEFORE} into "
                "extra_info in your trainer's _update_actor. This step's update was not begun; checkpoints are as they "
                "were."
            )
        return self.era_config.at(updates_before)

    def _old_log_probs(self, data) -> dict[str, torch.Tensor]:
        """Old log-probs by a forward pass under the decided scales, nested (bsz, response), by their key.

        Empty on Megatron's pipeline stages that compute no loss. The pass is the engine's, because this worker's own
        infer_batch answers on the first rank of a sequence-parallel group only.
        """
        batch = data.copy()
        tu.assign_non_tensor(
            batch,
            calculate_entropy=False,
            use_remove_padding=self.model_config.use_remove_padding,
            use_dynamic_bsz=self.engine_config.use_dynamic_bsz,
            max_token_len_per_gpu=self.engine_config.infer_max_token_len_per_gpu,
            micro_batch_size_per_gpu=self.engine_config.infer_micro_batch_size_per_gpu,
        )
        with self.engine.eval_mode():
            output = self.engine.infer_batch(batch)
        if not output:
            return {}
        log_probs = response_from_nested(output["model_output"]["log_probs"], data["response_mask"])
        return {OLD_LOG_PROBS: log_probs.to(data["response_mask"].device)}


class EraActorRolloutRefWorker(ActorRolloutRefWorker):
    """verl's worker of actor, rollout and reference policy, whose actor trains with ERA."""

    actor_worker_cls = EraTrainingWorker


def era_ppo_loss(config, model_output, data, dp_group=None):
    """verl's ppo_loss, with the old log-probs of the transformed policy and the KL loss of the original one.

    With one mini-batch and one epoch the policy of the update is the one that sampled, so the old log-probs are the new
    ones, detached: the ratio is exactly 1.

    Args and returns as `verl.workers.utils.losses.ppo_loss`.
    """
    data = data.copy()
    new = no_padding_2_padding(model_output["log_probs"].detach(), data)
    old = data[OLD_LOG_PROBS].to_padded_tensor(0.0) if OLD_LOG_PROBS in data else new

    # If the top-k filter removed a token in one of the two passes, its log-prob is a stand-in: its ratio is set to 1.
    filtered = (old == OUTSIDE_TOP_K_LOG_PROB) | (new == OUTSIDE_TOP_K_LOG_PROB)
    data["old_log_probs"] = response_to_nested(torch.where(filtered, new, old), data["response_mask"])

    # verl's loss, in which a KL loss would be of the scaled policy.
    without_kl = copy.copy(config)
    object.__setattr__(without_kl, "use_kl_loss", False)
    loss, metrics = ppo_loss(without_kl, model_output, data, dp_group)
    if not config.use_kl_loss:
        return loss, metrics

    kl = kl_penalty(
        logprob=no_padding_2_padding(model_output[ORIGINAL_LOG_PROBS], data),
        ref_logprob=data["ref_log_prob"].to_padded_tensor(0.0),
        kl_penalty=config.kl_loss_type,
    )
    kl_loss = agg_loss(
        loss_mat=kl,
        loss_mask=data["response_mask"].to_padded_tensor(0).bool(),
        loss_agg_mode=config.loss_agg_mode,
        **config.global_batch_info,
    )
    metrics["kl_loss"] = Metric(value=kl_loss, aggregation=metrics["actor/pg_loss"].aggregation)
    metrics["kl_coef"] = config.kl_loss_coef
    return loss + kl_loss * config.kl_loss_coef, metrics


def _at_predicting_positions(scale: torch.Tensor, data) -> torch.Tensor:
    """The scale of each response token at the position before, which predicts it, nested (bsz, prompt + response).

    Every other position has 1.
    """
    offsets = data["input_ids"].offsets()
    flat = torch.ones(data["input_ids"].values().shape, dtype=scale.dtype, device=scale.device)
    lengths = data["response_mask"].offsets().diff().tolist()
    for row, length, end in zip(scale, lengths, offsets[1:].tolist()):
        flat[end - length - 1 : end - 1] = row[:length]
    return torch.nested.nested_tensor_from_jagged(flat, offsets)


def _response_scale(scale: torch.Tensor, mask: torch.Tensor, eligible: torch.Tensor) -> torch.Tensor:
    """The one scale of each response's tokens, (bsz,); 1 for an empty response.

    Args:
        scale: (bsz, response), as `logit_scale` returns it.
        mask: (bsz, response), bool.
        eligible: (bsz, response), bool: whether the token's advantage lets it be scaled.

    Raises:
        ValueError: a response has both eligible tokens and others, even where its H_resp scales neither: so the run
            ends with the first such batch, and not hours later.
    """
    mixed = (mask & eligible).any(-1) & (mask & ~eligible).any(-1)
    if mixed.any():
        raise ValueError(
            f"{CONFIG_KEY}.enable=True: of the {len(mixed)} responses of this rank, {mixed.sum()} (the first is number "
            f"{mixed.nonzero()[0].item()}) have tokens with an advantage above {CONFIG_KEY}.min_advantage and others "
            "without, but this engine takes one temperature for all tokens of a response. Give each response one "
            "advantage (algorithm.adv_estimator=grpo), or set model_engine=dp. This step's update was not begun; "
            "checkpoints are as they were."
        )
    return scale.gather(-1, mask.int().argmax(-1, keepdim=True)).squeeze(-1)
