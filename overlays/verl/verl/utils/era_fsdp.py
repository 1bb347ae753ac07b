# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""What verl's FSDP actor calls for ERA: verl/utils/era/language.py in a training step.

    start               ActorHooks             refuses actors and heads that ERA cannot handle
    old_log_prob pass   requested_keys         off-policy: also log-probs under 1, k and 1/k
                        old_log_prob_tensors   entropies and these travel beside old_log_probs
    start of update     decide                 the scale and the advantage of each token, once
    forward             module                 fused kernels: all terms, without a tensor of logits
                        prepare                otherwise: leaves the logits as they are
                        log_probs              all terms, in one read of the logits
                        entropy_from_logits    the entropies among them
    loss                policy_loss_inputs     log-probs of the transformed and original policy

With ERA disabled each of them gives back what upstream uses, so that the training is upstream's to
the bit.
"""

import itertools
import sys
from functools import partial
from typing import Any, Callable, Mapping, Optional, Union

import torch
import torch.distributed as dist
import torch.nn.functional as F

from verl import DataProto
from verl.models.transformers.dense_common import CausalLMOutputForPPO
from verl.utils.device import get_device_name
from verl.utils.era.fused_head import FusedHead
from verl.utils.era.language import BelowLow, decide, update_metrics
from verl.utils.era.language_config import CONFIG_KEY, VERL_0_4_1, EraConfig, refuse
from verl.utils.era.log_probs import (
    OUTSIDE_TOP_K_LOG_PROB,
    backend,
    branch_log_probs,
    policy_terms,
)
from verl.utils.era.log_probs_fused import fused_branch_log_probs, fused_policy_terms
from verl.utils.forking_tokens import TOKEN_ENTROPY, read_fraction, response_mask
from verl.utils.torch_functional import entropy_from_logits, logprobs_from_logits
from verl.utils.ulysses import (
    get_ulysses_sequence_parallel_rank,
    get_ulysses_sequence_parallel_world_size,
)

LOGIT_SCALE = "era_logit_scale"
NEEDS_BRANCHES = "era_needs_branches"
BRANCH_LOG_PROBS = "era_branch_log_probs"
OLD_LOG_PROBS = "era_old_log_probs"


def _has(batch: Mapping[str, torch.Tensor], key: str) -> bool:
    keys = batch.keys()  # a TensorDict itself refuses `in`
    return key in keys


class ActorHooks:
    """The calls that DataParallelPPOActor makes for ERA (for forking tokens: forking_tokens.py).

    Upstream's signatures have no room for what one call leaves to the next, so it is on `self`: for
    a micro-batch `prepare` notes the logits, `log_probs` reads them and notes the entropies, and
    `entropy_from_logits` returns those. With fused kernels what `module` returns makes both.

    A micro-batch of the update has the key `era_logit_scale` where ERA scales logits; one of
    the old_log_prob pass has `era_needs_branches` where the update will be off-policy.

    Attributes:
        is_reference_pass: set by the worker: whether the pass is the reference policy's, which with
            LoRA is this actor without its adapters.
        lr_scheduler: set by the worker: the learning rate's, which makes a step after each update.

    Raises:
        ValueError: a bad value in the configuration; an actor with an update of its own
            (recipe/spin, recipe/sppo), which would never call the hooks; fused kernels with a head
            that `FusedHead` refuses.
    """

    def __init__(self, actor: Any):
        self.config = EraConfig.from_mapping(actor.config.get("era"))
        self.is_reference_pass, self.lr_scheduler = False, None
        self._actor = actor
        self._rows, self._entropy = None, None
        self._below_low = BelowLow()

        # A recipe with an update of its own would never call the hooks.
        update = _own_update(actor)
        forking = update if read_fraction(actor.config) != 1 else ""
        own = {
            "own update": update if self.config.enable else "",
            "forking in an own update": forking,
        }
        refuse(VERL_0_4_1, own, f"{CONFIG_KEY}.enable=True")
        if not self.config.enable:
            return

        if not dist.is_initialized() or dist.get_rank() == 0:
            print(
                f"ERA: {backend(get_device_name(), self.config.compile)} reads the logits",
                file=sys.stderr,
            )
        updates = (actor.config.get("optim") or {}).get("total_training_steps", -1)
        if warning := self.config.schedule_exceeds(updates):
            print(warning, file=sys.stderr)

        self._mini_batch_size = actor.config.ppo_mini_batch_size
        self._epochs = actor.config.ppo_epochs
        self._dynamic = actor.config.use_dynamic_bsz
        self._needs_kl = actor.config.use_kl_loss

        # The entropy is made with the log-probs, and needs no memory that checkpointing could save.
        actor.compute_entropy_from_logits = self.entropy_from_logits
        actor.config.entropy_checkpointing = False
        self._head = None
        if actor.config.get("use_fused_kernels", False):
            self._head = FusedHead(actor.actor_module, self._needs_kl)

    def _needs_branches(self, data: DataProto) -> bool:
        return self.config.scales_logits and (
            len(data) > self._mini_batch_size or self._epochs != 1
        )

    def requested_keys(self, data: DataProto) -> list[str]:
        """Mark `data`, this rank's whole batch, if its update is off-policy; return the mark's key.

        With the mark, the old_log_prob pass makes the log-probs under every scale. A reference pass
        gets no mark.
        """
        if self.is_reference_pass or not self._needs_branches(data):
            return []
        data.batch[NEEDS_BRANCHES] = torch.ones_like(data.batch["responses"][:, 0])
        return [NEEDS_BRANCHES]

    def old_log_prob_tensors(
        self, log_probs: torch.Tensor, entropys: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """What the worker returns of the old_log_prob pass beside, or instead of, upstream's.

        Args:
            log_probs: (bsz, response_length), or (bsz, response_length, 4): plain, and under 1, k
                and 1/k with the top-k filter.
            entropys: (bsz, response_length) token entropies in nats of the sampling policy.

        Returns:
            With forking tokens or ERA, all token entropies. With ERA off-policy also the plain
            `old_log_probs` and, under the three scales, `era_branch_log_probs`, (bsz,
            response_length, 3).
        """
        if not self.config.enable and read_fraction(self._actor.config) == 1:
            return {}
        tensors = {TOKEN_ENTROPY: entropys.float()}
        if log_probs.dim() == 3:
            tensors |= {"old_log_probs": log_probs[..., 0], BRANCH_LOG_PROBS: log_probs[..., 1:]}
        return tensors

    def decide(
        self, data: DataProto, select_keys: list[str], device: Union[str, int]
    ) -> dict[str, float]:
        """Decide what the update does with each token, and put that into the batch.

        Args:
            data: this rank's whole batch of the update, with what `old_log_prob_tensors` returned;
                it gains `era_logit_scale` and, off-policy, `era_old_log_probs`: the old log-probs
                under that scale, (bsz, response_length) each. Its `advantages` become those of the
                policy loss.
            select_keys: the keys that the update passes on to its micro-batches.
            device: where collectives run.

        Returns:
            Metrics over all ranks; empty with ERA disabled.

        Raises:
            ValueError: multi-modal inputs in dynamic batches.
        """
        era, batch = self.config, data.batch
        if not era.enable:
            return {}
        if era.schedule_steps is not None:
            era = era.at(self._steps_before())

        images = "multi_modal_inputs" in data.non_tensor_batch
        refuse(
            VERL_0_4_1,
            {"images in dynamic batches": era.scales_logits and self._dynamic and images},
            f"{CONFIG_KEY}.enable=True",
            end="This step's update was not begun; checkpoints are as they were.",
        )

        mask = response_mask(batch, data.meta_info.get("multi_turn", False))
        tensors = batch[TOKEN_ENTROPY], batch["old_log_probs"], batch["advantages"]
        decision = decide(*tensors, mask, era, check=False)
        batch["advantages"] = decision.advantages
        if era.scales_logits:
            batch[LOGIT_SCALE] = decision.scale
            select_keys.append(LOGIT_SCALE)

        # Several steps need old log-probs under the same scale, of the pass that made all three.
        if self._needs_branches(data):
            branch = torch.where(decision.scale > 1, 1, torch.where(decision.scale < 1, 2, 0))
            batch[OLD_LOG_PROBS] = (
                batch[BRANCH_LOG_PROBS].gather(-1, branch.unsqueeze(-1)).squeeze(-1)
            )
            select_keys.append(OLD_LOG_PROBS)

        # Metrics are means over all ranks.
        sums = decision.sums.stacked().to(device)
        if dist.is_initialized():
            # Sequence-parallel ranks hold the same responses: all are counted equally often.
            dist.all_reduce(sums)
        metrics = update_metrics(sums) | era.scheduled
        advice = self._below_low.advice(metrics["era/response_entropy"], era)
        if advice and (not dist.is_initialized() or dist.get_rank() == 0):
            print(advice, file=sys.stderr)
        return metrics | {"era/lost_fraction": self._below_low.fraction}

    def _steps_before(self) -> int:
        """Updates before this one, from the learning rate's schedule, which checkpoints resume.

        check_trainer_config refuses checkpoints without it.
        """
        if self.lr_scheduler is None:
            raise ValueError(
                f"{CONFIG_KEY}.schedule_steps={self.config.schedule_steps}, but this worker did "
                "not set actor.era_hooks.lr_scheduler, by which ERA counts updates. Set it as "
                "verl/workers/fsdp_workers.py does, or schedule_steps, low_end and high_end to "
                "null. This step's update was not begun; checkpoints are as they were."
            )
        return self.lr_scheduler.last_epoch

    def module(
        self,
        actor_module: Callable,
        micro_batch: Mapping[str, torch.Tensor],
        indices: Optional[torch.Tensor] = None,
    ) -> Callable:
        """`actor_module`; with ERA and fused kernels, a call with ERA's head in place of verl's.

        The output then has `log_probs`, as the method of this name returns them, and `entropy`.
        """
        if not self.config.enable or self._head is None:
            return actor_module

        def forward(**inputs):
            self._head.replace(partial(self._fused_forward, micro_batch, indices))
            try:
                return actor_module(**inputs)
            finally:
                self._head.restore()

        return forward

    def _fused_forward(self, micro_batch, indices, temperature, labels=None, **inputs):
        """The forward in the place of the model's, whose output has ERA's terms.

        PEFT passes `labels`, which is always None.
        """
        (hidden, weight), bias_and_softcap = self._head.arguments(**inputs)
        if indices is not None:
            hidden = hidden.squeeze(0)
        # Without a gradient it is the old_log_prob pass.
        needs_entropy = self._actor.config.entropy_coeff != 0 or not torch.is_grad_enabled()
        log_probs, entropy = self._terms(
            partial(fused_branch_log_probs, hidden, weight, **bias_and_softcap),
            partial(fused_policy_terms, hidden, weight, **bias_and_softcap, entropy=needs_entropy),
            temperature,
            micro_batch,
            indices,
        )
        if entropy is None:  # upstream slices it, and uses it only where it is needed
            entropy = log_probs.new_full(hidden.shape[:-1], torch.nan)
        if indices is not None:
            log_probs, entropy = log_probs.unsqueeze(0), entropy.unsqueeze(0)
        return CausalLMOutputForPPO(log_probs=log_probs, entropy=entropy)

    def prepare(
        self,
        logits: torch.Tensor,
        temperature: float,
        micro_batch: Mapping[str, torch.Tensor],
        indices: Optional[torch.Tensor] = None,
    ) -> None:
        """Divide logits in place by the temperature. With ERA, only note them for `log_probs`.

        Args:
            logits: padded (bsz, seqlen, vocabulary), or packed (tokens of this sequence-parallel
                rank, vocabulary).
            temperature: of the sampling.
            micro_batch: holds `input_ids`, `attention_mask` (bsz, seqlen); in an update with ERA
                `era_logit_scale` (bsz, response_length).
            indices: (tokens,) of the packed tokens in the flattened (bsz x seqlen); None for padded
                logits.
        """
        if self.config.enable:
            self._rows = logits, temperature, micro_batch, indices
        else:
            logits.div_(temperature)

    def log_probs(
        self, logits: torch.Tensor, labels: torch.Tensor, inplace_backward: bool = True
    ) -> torch.Tensor:
        """Log-probs of the labels. With ERA enabled the logits are those given to `prepare`.

        Their gradient then overwrites them, and only response tokens are worked on.

        Args:
            logits: packed (tokens of this rank, vocabulary), or those of the response (bsz,
                response_length, vocabulary).
            labels: of the logits' shape without the vocabulary.
            inplace_backward: upstream's; it is False where an entropy will be asked for.

        Returns:
            The labels' shape, or (..., n) with the original policy's log-prob first. In the
            old_log_prob pass of an off-policy step n is 4, and the other three are under 1, k and
            1 / k, with the top-k filter. In an update with KL loss n is 2.
        """
        if not self.config.enable:
            return logprobs_from_logits(logits, labels, inplace_backward)
        logits, temperature, micro_batch, indices = self._rows
        self._rows = None
        inplace = logits.requires_grad and torch.is_grad_enabled()
        log_probs, self._entropy = self._terms(
            partial(branch_log_probs, logits),
            partial(policy_terms, logits, entropy=not inplace_backward, inplace_backward=inplace),
            temperature,
            micro_batch,
            indices,
        )
        if indices is None:
            length = labels.size(-1)
            log_probs, self._entropy = (
                values if values is None else values[:, -length - 1 : -1]
                for values in (log_probs, self._entropy)
            )
        return log_probs

    def _terms(
        self,
        branches: Callable,
        policy: Callable,
        temperature: float,
        micro_batch: Mapping[str, torch.Tensor],
        indices: Optional[torch.Tensor],
    ) -> tuple[torch.Tensor, Optional[torch.Tensor]]:
        """Log-probs as `log_probs` returns them and entropies, at the positions that predict.

        Args:
            branches, policy: `branch_log_probs` and `policy_terms` of this micro-batch's logits.
        """

        def at_positions(values, default):
            return _at_positions(values, default, micro_batch, indices)

        responses = micro_batch["responses"]
        top_k, compiled = self.config.top_k, self.config.compile
        labels = at_positions(responses, 0)
        mask = at_positions(micro_batch["attention_mask"][:, -responses.size(1) :], 0)

        # The policy that sampled: every scale that the update may choose.
        if _has(micro_batch, NEEDS_BRANCHES):
            scaled, original, entropy = branches(
                labels, self.config.k, temperature, top_k=top_k, mask=mask, compile=compiled
            )
            return torch.cat([original.unsqueeze(-1), scaled], dim=-1), entropy

        scales = _has(micro_batch, LOGIT_SCALE)
        needs_kl = scales and self._needs_kl
        log_probs, original, entropy = policy(
            labels,
            at_positions(micro_batch[LOGIT_SCALE], 1.0) if scales else None,
            temperature,
            top_k=top_k if scales else None,
            original=needs_kl,
            mask=mask,
            compile=compiled,
        )
        return torch.stack([original, log_probs], dim=-1) if needs_kl else log_probs, entropy

    def entropy_from_logits(self, logits: torch.Tensor) -> torch.Tensor:
        """Token entropies in nats; with ERA enabled those that `log_probs` has just made.

        Args:
            logits: (..., vocabulary).

        Returns:
            (...), with ERA in fp32 at least.
        """
        return self._entropy if self.config.enable else entropy_from_logits(logits)

    def policy_loss_inputs(
        self, micro_batch: Mapping[str, torch.Tensor], log_prob: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The log-probs that the losses take, (bsz, response_length) each.

        With one mini-batch and one epoch the policy of the update is the one that sampled, so the
        old log-probs of the transformed policy are the new ones, detached: the ratio is exactly 1,
        without a second pass. Off-policy they are those of the old_log_prob pass under the token's
        scale, so that the ratio is pi'_new / pi'_old.

        Returns:
            The log-probs of the transformed policy, those of the original policy (the same tensor
            where no KL loss needs them), and the old log-probs.

        Raises:
            RuntimeError: the scale that `decide` made has not come this far.
        """
        if not self.config.scales_logits:
            return log_prob, log_prob, micro_batch["old_log_probs"]
        if not _has(micro_batch, LOGIT_SCALE):
            raise RuntimeError(
                f"ERA: a micro-batch of the update has no {LOGIT_SCALE}, so it would train without "
                "ERA. Pass on all select_keys, as verl's DataParallelPPOActor.update_policy does, "
                "or set actor.era.enable to False. This step's update was not made."
            )
        original = log_prob
        if log_prob.dim() == 3:
            original, log_prob = log_prob.unbind(-1)
        detached = log_prob.detach()
        if not _has(micro_batch, OLD_LOG_PROBS):
            return log_prob, original, detached
        # If the top-k filter removed a token in one of the two passes, its log-prob is a stand-in:
        # its ratio is set to 1.
        old_log_prob = micro_batch[OLD_LOG_PROBS]
        filtered = (old_log_prob == OUTSIDE_TOP_K_LOG_PROB) | (detached == OUTSIDE_TOP_K_LOG_PROB)
        return log_prob, original, torch.where(filtered, detached, old_log_prob)


def _own_update(actor: Any) -> str:
    """The method by which a recipe replaces DataParallelPPOActor's update; "" where none does."""
    subclasses = itertools.takewhile(
        lambda cls: cls.__name__ != "DataParallelPPOActor", type(actor).__mro__
    )
    names = (f"{cls.__name__}.{name}" for cls in subclasses for name in vars(cls))
    return next((name for name in names if name.rpartition(".")[2].startswith("update_policy")), "")


def _at_positions(
    values: torch.Tensor,
    default: float,
    micro_batch: Mapping[str, torch.Tensor],
    indices: Optional[torch.Tensor],
) -> torch.Tensor:
    """Values of response tokens at the positions that predict them, `default` elsewhere.

    Returns:
        (bsz, seqlen), or for packed tokens (tokens of this sequence-parallel rank,), padded as
        upstream pads the labels.
    """
    # The token at position t is predicted at t - 1. The last position, and those in the prompt but
    # its last, predict no response token.
    prompt_length = micro_batch["input_ids"].size(1) - values.size(1)
    values = F.pad(values, (prompt_length - 1, 1), value=default)
    if indices is None:
        return values
    values = values.flatten()[indices]
    ranks = get_ulysses_sequence_parallel_world_size()
    return F.pad(values, (0, -values.size(0) % ranks), value=default).chunk(ranks)[
        get_ulysses_sequence_parallel_rank()
    ]
