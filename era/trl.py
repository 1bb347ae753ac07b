# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""ERA in the GRPOTrainer of an installed TRL, 1.9 to 1.16, without a patch:

    from era.trl import EraGRPOConfig, EraGRPOTrainer

    args = EraGRPOConfig(era_enable=True, era_low=0.45, ...)
    EraGRPOTrainer(model="...", args=args, reward_funcs=..., train_dataset=...).train()

or `python -m era.trl --era_enable --era_low 0.45 ...`, which is TRL's own command `trl grpo`.

Where TRL asks for log-probs of the policy that it trains, EraMixin gives it those of the policy
that ERA has transformed (era/language.py). Everything else is TRL's own: sampling, rewards,
losses, clipping, corrections, evaluation, and the advantages unless era_hold or
era_scale_advantages changes them. What is refused is declared in era/refusals.py, and what the
model's head does is in era/trl_head.py.
"""

import copy
import dataclasses
import functools
import math
import types
import warnings
from collections import defaultdict
from typing import Any, Callable, Optional

import torch

from era.language import BelowLow, decide, loss_advantages, update_metrics
from era.language_config import EraConfig, announce, looks_like_era, refuse
from era.log_probs import OUTSIDE_TOP_K_LOG_PROB
from era.log_probs_fused import fused_branch_log_probs, fused_policy_terms
from era.refusals import TRL
from era.trl_head import HeadCall, add_forward, makes_the_aux_loss, makes_the_logits
from era.versions import Releases, order

INSTALL = "pip install 'trl>=1.9,<1.17'"
RELEASES = Releases("era.trl", "TRL", "1.9.0", "1.16.0", INSTALL)  # docs/llm/trl.md

try:
    import trl
    from accelerate.utils import is_peft_model
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer
except ModuleNotFoundError as error:
    if error.name != "trl":
        raise
    raise ImportError(f"era.trl is for TRL, which is not installed. {INSTALL}") from None

__all__ = ["EraGRPOConfig", "EraGRPOTrainer", "EraMixin"]

# Methods that ERA overrides.
OVERRIDDEN = (
    "_generate_and_score_completions",
    "_get_per_token_logps_and_entropies",
    "_compute_loss",
)


def _is_from_trl(method: Callable) -> bool:
    return method.__module__.partition(".")[0] == "trl"


def check_trl(installed: str, trainer: type) -> None:
    """Check that ERA's methods fit the installed TRL, and warn of a release newer than RELEASES.

    Args:
        installed: TRL's version.
        trainer: its GRPOTrainer.

    Raises:
        ImportError: a release older than RELEASES, whose methods return something else, or one
            without a method that ERA overrides, or that another package has replaced.
    """
    if too_old := RELEASES.too_old(installed):
        raise ImportError(too_old)

    methods = [getattr(trainer, name) for name in OVERRIDDEN if hasattr(trainer, name)]
    replaced = [part for part in (trainer, *methods) if not _is_from_trl(part)]
    if modules := sorted({part.__module__ for part in replaced}):
        by = ", ".join(modules)  # Unsloth's is a module that it has written: UnslothGRPOTrainer
        before = "unsloth" if "unsloth" in by.lower() else "what imports that"
        raise ImportError(
            f"{by} has replaced trl.GRPOTrainer by its own, in which ERA cannot act. "
            f"Import era.trl before {before}."
        )

    if moved := [name for name in OVERRIDDEN if not hasattr(trainer, name)]:
        raise ImportError(
            f"TRL {installed}: GRPOTrainer has no {', '.join(moved)}, in which era.trl applies "
            f"ERA. {INSTALL}"
        )
    if untested := RELEASES.untested(installed):
        warnings.warn(untested, stacklevel=2)


check_trl(trl.__version__, GRPOTrainer)

# Names of a batch's tensors, (B, T): what ERA decided, and what it was decided for.
_TRAVELS = (
    "completion_ids",
    "old_per_token_logps",
    "era_original_old_log_probs",
    "era_logit_scale",
    "era_dropped",
)
# Methods of a trainer through which an update reaches ERA.
_ACTS = ("training_step", "compute_loss", "_compute_loss", "_get_per_token_logps_and_entropies")


def _field(name: str, text: str) -> Any:
    return dataclasses.field(default=getattr(EraConfig, name), metadata={"help": f"ERA: {text}"})


@dataclasses.dataclass
class EraGRPOConfig(GRPOConfig):
    """TRL's GRPOConfig with the fields of `era.language_config.EraConfig`, prefixed with era_.

    Raises:
        ValueError: on construction, for fields out of range, all of them, by name, and for fields
            that differ from their defaults without era_enable=True.
        TypeError: a trainer without ERA takes this configuration with era_enable=True.
    """

    era_enable: bool = _field("enable", "switch it on.")
    era_low: float = _field("low", "omega_low in nats; responses below it flatten the policy.")
    era_high: float = _field("high", "omega_high in nats; above it the policy sharpens; inf: none.")
    era_low_end: Optional[float] = _field("low_end", "omega_low after era_schedule_steps.")
    era_high_end: Optional[float] = _field("high_end", "omega_high after era_schedule_steps.")
    era_schedule_steps: Optional[int] = _field("schedule_steps", "optimizer steps until then.")
    era_k: float = _field("k", "factor of the logits, > 1; 1 leaves them alone.")
    era_top_fraction: float = _field("top_fraction", "share of the tokens that H_resp averages.")
    era_top_k: Optional[int] = _field("top_k", "log-probs over this many largest logits alone.")
    era_scale_advantages: bool = _field("scale_advantages", "divide advantages by the scale.")
    era_min_advantage: float = _field("min_advantage", "tokens above this advantage are scaled.")
    era_hold: bool = _field("hold", "below low, and in part above high, drop negative advantages.")
    era_compile: bool = _field("compile", "let compiled kernels read the logits.")

    def __post_init__(self):
        super().__post_init__()
        if problems := self.era_config().problems_without_enable("era_"):
            raise ValueError(*problems)

    def era_config(self) -> EraConfig:
        """The fields named era_..., as `era.language_config.EraConfig`; raises its ValueError."""
        prefix = "era_"
        names = [field.name for field in dataclasses.fields(self) if field.name.startswith(prefix)]
        return EraConfig(**{n.removeprefix(prefix): getattr(self, n) for n in names}, prefix=prefix)

    @property
    def train_batch_size(self) -> int:
        """The batch of a step, as in transformers.

        A Trainer reads it when it is built, so that one without ERA ends here: TypeError.
        """
        if self.era_enable and not getattr(self, "_era_trainer", False):
            raise TypeError(
                "era_enable=True in the arguments of a trainer without ERA. Take "
                "era.trl.EraGRPOTrainer, in Axolotl era.axolotl.EraAxolotlGRPOTrainer, or put "
                "era.trl.EraMixin before GRPOTrainer among the bases of yours. Nothing was trained."
            )
        return super().train_batch_size

    def to_sanitized_dict(self) -> dict[str, Any]:
        """The arguments for a log, as in transformers, which reads train_batch_size for them."""
        return super(EraGRPOConfig, self._in_era_trainer()).to_sanitized_dict()

    def _in_era_trainer(self) -> "EraGRPOConfig":
        """A copy, marked as a trainer's with ERA. Its own copies and pickles lose the mark."""
        marked = copy.copy(self)
        marked._era_trainer = True
        return marked

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_era_trainer"}


class EraMixin:
    """ERA for GRPOTrainer or a subclass of it. Put the mixin first among the bases.

    The entropies of the policy that sampled a response decide the response's scale. Where TRL makes
    a pass for the old log-probs (several steps for a batch, vLLM's correction), that pass also
    gives the entropies. Elsewhere the policy of the update is the one that sampled; the entropies
    then come from one more product with the head, without a second pass through the model.

    TRL's methods hand each other less than ERA needs, so the methods here leave it on `self`:

        _generate_and_score_completions      sets _era_sampled, decides about the batch
            _get_per_token_logps_and_...     adds entropies and log-probs to _era_sampled
        _compute_loss                        sets _era_update, calls TRL's loss, with beta twice
            _get_per_token_logps_and_...     reads _era_update, on-policy also decides

    Raises:
        TypeError: when a class puts the mixin behind GRPOTrainer. On construction, arguments that
            are not an EraGRPOConfig or have unknown attributes named era..., or a trainer that is
            not a GRPOTrainer.
        ValueError: on construction, what is not supported with ERA, all of it.
        RuntimeError: in a step, where a class between this one and TRL's, or one derived from it,
            keeps ERA from acting, or parts what ERA decided from the rows for which it did.
    """

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        order = cls.__mro__
        if GRPOTrainer in order and order.index(GRPOTrainer) < order.index(EraMixin):
            raise TypeError(
                f"{cls.__name__}: GRPOTrainer precedes EraMixin, so that ERA would not act. Put "
                "EraMixin first among the bases."
            )

    def __init__(self, *args, **kwargs):
        config = _checked_config(self, (*args, *kwargs.values()))

        # A trainer without ERA refuses a configuration that does not have this mark.
        marked = config._in_era_trainer()
        args = [marked if value is config else value for value in args]
        kwargs = {name: marked if value is config else value for name, value in kwargs.items()}
        super().__init__(*args, **kwargs)

        # What one of the methods below leaves to the next.
        self.era_config = self.args.era_config()
        self._era_update = None  # an _Update, while the loss of its micro-batch is computed
        self._era_sampled = None  # a dict for each pass, while a batch is generated and scored
        self._era_acted = False  # since the last step of the optimizer
        self._era_sums = None  # this process's, of the decisions since the last step

        self.add_callback((_EachStep if self.era_config.enable else _AtStart)(self))
        if self.is_world_process_zero():
            announce(self.era_config)

        # The model is tried here, before anything wraps it.
        if self.era_config.enable:
            model = self.model.get_base_model() if is_peft_model(self.model) else self.model
            _refuse(self, model)
            if self.era_config.scales_logits:
                add_forward(model, self.args)

    def _generate_and_score_completions(self, inputs):
        if not (self.era_config.changes_training and self.model.training):
            return super()._generate_and_score_completions(inputs)
        self._era_sampled = []
        try:
            output = super()._generate_and_score_completions(inputs)
            sampled = self._era_sampled
        finally:
            self._era_sampled = None

        old = output.get("old_per_token_logps")
        if old is None:
            return output

        # Which of the passes was the old log-probs'? With PEFT the reference policy is this model
        # too, without its adapter.
        ids, mask = output["completion_ids"], _loss_mask(output)
        for branches in sampled:
            same_rows = _same(branches["ids"], ids) and _same(branches["original"], old)
            if same_rows and not (mask > branches["mask"]).any():
                break
        else:
            raise self._era_hook_error(
                "_generate_and_score_completions gave answers with old log-probs that ERA did not "
                "make, as where rows are replaced, replayed or reordered"
            )

        # TRL shuffles and splits what this adds with the rest of the batch.
        self._era_decide(branches["entropy"], branches["original"], output, mask)
        output["era_original_old_log_probs"] = old
        if self.era_config.scales_logits:
            scale = output["era_logit_scale"]
            index = torch.where(scale == 1, 0, torch.where(scale > 1, 1, 2)).unsqueeze(-1)
            scaled = branches["scaled"].gather(-1, index).squeeze(-1)
            # A token outside the mask, a tool's say, has no ratio: its old log-prob is 0, as its
            # new one is.
            output["old_per_token_logps"] = scaled.masked_fill(mask == 0, 0)
        output["era_rows"] = self._era_rows(output)
        return output

    def _era_rows(self, inputs):
        """What belongs together in a row, (B, T, 7 or 8) in fp32, to be compared when it is used.

        None where something is missing or has another shape.
        """
        mask = _loss_mask(inputs)
        advantages = _token_advantages(inputs["advantages"], mask)
        parts = [mask, (advantages > self.era_config.min_advantage) * mask]
        parts += [(advantages < 0) * mask] if self.era_config.hold else []
        parts += [inputs.get(name) for name in _TRAVELS]
        if any(part is None or part.shape != mask.shape for part in parts):
            return None
        return torch.stack([part.float() for part in parts], -1)

    def _era_check_rows(self, inputs, ids):
        """Raise RuntimeError where the rows of an update are not those that ERA decided about."""
        decided, old = inputs.get("era_rows"), inputs.get("old_per_token_logps")
        if decided is None and old is None and "era_logit_scale" not in inputs:
            return  # on-policy: the update decides
        rows, taken = self._era_rows({**inputs, "completion_ids": ids}), _loss_mask(inputs) != 0
        if not _same(rows, decided, taken):
            raise RuntimeError(
                f"{type(self).__name__}: an update has answers without what ERA decided for them: "
                "scales, old log-probs, and which advantages take no part. A class then edited, "
                "reordered or replaced a part of the batch, or made the batch without calling "
                "super(). Treat all tensors of a batch alike, those named era_ too, or edit them "
                "in a base behind EraMixin."
            )

    def _compute_loss(self, model, inputs):
        if not (self.era_config.enable and self.model.training):
            return super()._compute_loss(model, inputs)

        self._era_update = _Update(dict(inputs))
        beta = self.beta
        try:
            if not self.era_config.scales_logits:
                return super()._compute_loss(model, self._era_update.inputs)

            # The KL loss is of the original policy, so TRL first computes its loss without it.
            self.beta = 0.0
            loss = super()._compute_loss(model, self._era_update.inputs)
            self.beta = beta
            if self._era_update.entropy is None:
                raise self._era_hook_error(
                    "_compute_loss did not ask for the log-probs that ERA changes"
                )
            return loss + self._era_kl_loss(model) if beta else loss
        finally:
            self.beta, self._era_update = beta, None

    def _era_hook_error(self, what):
        """The error of a class that keeps ERA from acting; what: its method, and what that does."""
        return RuntimeError(
            f"TRL {trl.__version__}: {type(self).__name__}.{what}. Either a class of yours "
            f"replaces what ERA hooks into, or TRL has moved it: {INSTALL}"
        )

    def _era_kl_loss(self, model):
        """TRL's loss once more, of the original policy and with advantages of 0: only the KL loss.

        This includes TRL's bias correction (use_bias_correction_kl), whose ratio must be the
        original policy's.
        """
        inputs = self._era_update.inputs
        inputs["advantages"] = torch.zeros_like(inputs["advantages"])
        inputs.pop("old_per_token_logps", None)
        if "era_original_old_log_probs" in inputs:
            inputs["old_per_token_logps"] = inputs["era_original_old_log_probs"]

        # Its metrics, an entropy bonus and the experts' loss would count twice.
        metrics, self._metrics = self._metrics, {mode: defaultdict(list) for mode in self._metrics}
        bonus, self._entropy_bonus_enabled = self._entropy_bonus_enabled, False
        experts, self.aux_loss_enabled = self.aux_loss_enabled, False

        try:
            return super()._compute_loss(model, inputs)
        finally:
            metrics["train"]["kl"] += self._metrics["train"]["kl"]
            self._metrics, self._entropy_bonus_enabled = metrics, bonus
            self.aux_loss_enabled = experts

    def _get_per_token_logps_and_entropies(
        self, model, input_ids, attention_mask, logits_to_keep, batch_size=None, **options
    ):
        update, sampled = self._era_update, self._era_sampled
        is_reference = model is self.ref_model or (update is None and sampled is None)
        if is_reference or not self.era_config.scales_logits:
            return self._era_trl_log_probs(
                model, input_ids, attention_mask, logits_to_keep, batch_size=batch_size, **options
            )
        if update is not None and update.entropy is not None:  # the second time, for the KL loss
            return update.original, update.entropy, None

        wants_entropy = options.pop("compute_entropy", False)
        options = {k: v for k, v in options.items() if v is not None and v is not False}
        passes = functools.partial(self._era_passes, model, input_ids, attention_mask, options)
        ids = input_ids[:, -logits_to_keep:]
        if update is not None:
            return self._era_update_log_probs(passes, ids)
        mask = attention_mask[:, -logits_to_keep:]
        return self._era_sampled_log_probs(passes, ids, mask, batch_size, wants_entropy)

    def _era_sampled_log_probs(self, passes, ids, mask, batch_size, wants_entropy):
        """TRL's old log-probs; those under ERA's scales, and the entropies, are noted."""
        parts = passes(mask, batch_size, self._era_branches)
        branches = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        self._era_note(ids, mask, branches)
        entropy = branches["entropy"].clone() if wants_entropy else None
        return branches["original"].clone(), entropy, None

    def _era_update_log_probs(self, passes, ids):
        """The log-probs of the loss, under the scales of the batch; on-policy this decides them."""
        update = self._era_update
        inputs, mask = update.inputs, _loss_mask(update.inputs)
        self._era_check_rows(inputs, ids)
        self._era_acted = True
        [terms] = passes(mask, None, self._era_terms)

        # A label that was filtered in one of the passes has no ratio: it takes 1.
        new, old = terms["scaled"], inputs.get("old_per_token_logps")
        if self.era_config.top_k:
            removed = new == OUTSIDE_TOP_K_LOG_PROB
            new = new.masked_fill(removed, 0)
            if old is not None:
                removed = removed | (old == OUTSIDE_TOP_K_LOG_PROB)
                inputs["old_per_token_logps"] = torch.where(removed, new.detach(), old)

        # TRL reads the advantages after this, and the KL loss the rest.
        update.original, update.entropy = terms["original"], terms["entropy"].detach()
        self._era_set_advantages(inputs, mask)
        return new, terms["entropy"], terms.get("aux_loss")

    def _era_trl_log_probs(self, model, input_ids, attention_mask, logits_to_keep, **options):
        """TRL's own log-probs: of a reference policy, or with k = 1, which leaves the logits alone.

        With k = 1 its entropies decide about the batch; without hold only for the metrics.
        """
        update, sampled = self._era_update, self._era_sampled
        notes = sampled is not None and model is not self.ref_model
        decides = update is not None and update.entropy is None

        wants_entropy = options.pop("compute_entropy", False)
        log_probs, entropy, *others = super()._get_per_token_logps_and_entropies(
            model,
            input_ids,
            attention_mask,
            logits_to_keep,
            compute_entropy=wants_entropy or notes,
            **options,
        )
        if entropy is None and (notes or decides):
            raise self._era_hook_error("_get_per_token_logps_and_entropies gave no entropies")

        ids = input_ids[:, -logits_to_keep:]
        if notes:
            branches = {"original": log_probs.clone(), "entropy": entropy.clone()}
            self._era_note(ids, attention_mask[:, -logits_to_keep:], branches)
        if decides:
            inputs, mask = update.inputs, _loss_mask(update.inputs)
            update.entropy = entropy.detach()
            if self.era_config.changes_training:
                self._era_check_rows(inputs, ids)
            if "era_logit_scale" not in inputs:
                self._era_decide(update.entropy, log_probs.detach(), inputs, mask)
            self._era_set_advantages(inputs, mask)
            self._era_acted = True
        return (log_probs, None if notes and not wants_entropy else entropy, *others)

    def _era_note(self, ids, mask, branches):
        """Keep entropies and log-probs of a pass while a batch is scored, with the rows' ids.

        They are clones, here or of what TRL gets: some class may edit them.
        """
        self._era_sampled.append({**branches, "ids": ids.clone(), "mask": mask.clone()})

    def _era_passes(self, model, input_ids, attention_mask, options, mask, batch_size, compute):
        """What the forward gives, a dict for each micro-batch of `batch_size` rows.

        compute: _era_branches or _era_terms. options: TRL's further arguments. Which patches and
        tiles belong to which rows is TRL's knowledge, so with images its method runs, on this
        forward in the place of the model's.
        """
        outputs = []
        size = batch_size or len(input_ids)

        def forward(input_ids, attention_mask, labels=None, fused_lm_head=True, **more):
            rows = mask[len(outputs) * size :][: len(input_ids)]
            terms = self._era_forward(model, input_ids, attention_mask, rows, compute, **more)
            outputs.append(terms)
            trl_outputs = {name: terms.get(name) for name in ("entropy", "aux_loss")}
            return types.SimpleNamespace(log_probs=terms["scaled"], **trl_outputs)

        # Without images the rows are split here, as TRL splits them.
        experts = options.pop("compute_aux_loss", False)
        if options:  # of images: those that are not set were left out before
            super()._get_per_token_logps_and_entropies(
                forward,
                input_ids,
                attention_mask,
                mask.size(1),
                batch_size=size,
                compute_aux_loss=experts,
                **options,
            )
        else:
            more = {"output_router_logits": True} if experts else {}
            for ids, attention in zip(input_ids.split(size), attention_mask.split(size)):
                forward(ids, attention, **more)
        return outputs

    def _era_forward(self, model, input_ids, attention_mask, mask, compute, **more):
        """The model's forward, in which the head calls `compute`."""
        call = HeadCall(functools.partial(compute, mask=mask), input_ids[:, -mask.size(1) :])
        with self.accelerator.autocast():
            return model(input_ids=input_ids, attention_mask=attention_mask, era_call=call, **more)

    def _era_branches(self, head, mask):
        """Entropies, original log-probs, and those under the scales 1, k and 1/k: no gradients."""
        common = {"temperature": self.temperature, "mask": mask, "compile": self.era_config.compile}
        return fused_branch_log_probs(
            k=self.era_config.k, top_k=self.era_config.top_k, **head, **common
        )._asdict()

    def _era_terms(self, head, mask):
        """The terms of an update, under the scales of the batch, or those that this decides."""
        inputs, bonus = self._era_update.inputs, self._entropy_bonus_enabled
        common = {
            **head,
            "temperature": self.temperature,
            "mask": mask,
            "compile": self.era_config.compile,
        }

        # On-policy this update's entropies, from one more product with the head, decide.
        entropy = None
        if "era_logit_scale" not in inputs:
            with torch.no_grad():
                sampled = fused_policy_terms(**common, entropy=True)
            entropy = sampled.entropy
            self._era_decide(entropy, sampled.scaled, inputs, mask)  # under the scale 1

        terms = fused_policy_terms(
            **common,
            scale=inputs["era_logit_scale"],
            top_k=self.era_config.top_k,
            original="ref_per_token_logps" in inputs,
            entropy=bonus or entropy is None,
        )
        entropy = entropy if terms.entropy is None else terms.entropy
        return {**terms._asdict(), "entropy": entropy if bonus else entropy.detach()}

    def _era_decide(self, entropy, log_probs, inputs, mask):
        """Decide about a batch, by entropies and log-probs (B, T) of the policy that sampled it.

        What is decided goes into `inputs`, and into the metrics of the update.
        """
        era = self.era_config.at(self.state.global_step)
        advantages = _token_advantages(inputs["advantages"], mask)
        decision = decide(entropy, log_probs, advantages, mask, era, check=False)
        inputs["era_logit_scale"], inputs["era_dropped"] = decision.scale, decision.dropped
        sums = decision.sums.stacked()
        self._era_sums = sums if self._era_sums is None else self._era_sums + sums

    def _era_set_advantages(self, inputs, mask):
        """Give the loss its advantages, (B, T); where ERA does not change them, they are TRL's."""
        if self.era_config.changes_advantages:
            advantages = _token_advantages(inputs["advantages"], mask)
            decided = inputs["era_logit_scale"], inputs["era_dropped"]
            inputs["advantages"] = loss_advantages(advantages, *decided, self.era_config)


class EraGRPOTrainer(EraMixin, GRPOTrainer):
    """TRL's GRPOTrainer with ERA. With era_enable=False every method that runs is TRL's own."""


class _AtStart(TrainerCallback):
    """Ends a training whose arguments are no longer those that its trainer was made with."""

    def __init__(self, trainer: EraMixin):
        self.trainer = trainer

    def on_train_begin(self, args, state, control, **kwargs):
        if self.trainer.args.era_config() != self.trainer.era_config:
            raise ValueError(
                "ERA's fields were changed after the trainer was made, which has checked and taken "
                "the former ones. Set them before. Nothing was trained."
            )
        if state.is_world_process_zero and (
            warning := self.trainer.era_config.schedule_exceeds(state.max_steps)
        ):
            warnings.warn(warning, stacklevel=2)


class _EachStep(_AtStart):
    """Logs ERA's metrics of each update. Ends a training in which ERA does not act.

    A callback, because a class derived from the trainer can replace any method.
    """

    def on_train_begin(self, args, state, control, **kwargs):
        super().on_train_begin(args, state, control, **kwargs)
        self.trainer._era_sums, self.below_low = None, BelowLow("era_")
        self.decided = -1, math.nan  # the step of the last decisions, their mean H_resp

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        if not self.trainer._era_acted:
            above = type(self.trainer).__mro__[: type(self.trainer).__mro__.index(EraMixin)]
            own = [f"{cls.__name__}.{name}" for cls in above for name in _ACTS if name in vars(cls)]
            raise self.trainer._era_hook_error(
                "training_step made an update in which ERA did not act"
                + (f"; {', '.join(own)} may lack a call of super()" if own else "")
            )
        self.trainer._era_acted = False

    def on_step_end(self, args, state, control, **kwargs):
        trainer, logged = self.trainer, self.trainer._metrics["train"]
        if trainer._era_sums is not None:  # else an earlier step decided for this batch too
            step = state.global_step - 1  # it is already that of the next update
            decided = update_metrics(trainer.accelerator.reduce(trainer._era_sums, "sum"))
            trainer._era_sums = None
            self.decided = step, decided["era/response_entropy"]
            for name, value in {**decided, **trainer.era_config.at(step).scheduled}.items():
                if not math.isnan(value):  # TRL averages over the updates of a logging step
                    logged[name].append(value)
        step, entropy = self.decided
        advice = self.below_low.advice(entropy, trainer.era_config.at(step))
        if advice and state.is_world_process_zero:
            warnings.warn(advice, stacklevel=2)
        logged["era/lost_fraction"].append(self.below_low.fraction)


@dataclasses.dataclass
class _Update:
    """The micro-batch of an update, while TRL computes its loss.

    Attributes:
        inputs: a copy of TRL's. ERA writes old_per_token_logps and advantages to it before TRL
            reads them.
        original: (B, T) log-probs of the original policy, for the KL loss; None before the forward.
        entropy: (B, T) in nats, detached; None before the forward.
    """

    inputs: dict[str, Any]
    original: Optional[torch.Tensor] = None
    entropy: Optional[torch.Tensor] = None


def _same(a, b, where=True) -> bool:
    """Whether two tensors are equal; where: (B, T), the tokens that count."""
    if a is None or b is None or a.shape != b.shape:
        return False
    if where is not True:
        a, b = a[where], b[where]
    return torch.allclose(a.float(), b.float(), rtol=0, atol=0, equal_nan=True)


def _loss_mask(inputs: dict[str, Any]) -> torch.Tensor:
    """The mask, (B, T), of the tokens that TRL's loss takes; a tool's are not among them."""
    mask, tool_mask = inputs["completion_mask"], inputs.get("tool_mask")
    return mask if tool_mask is None else mask * tool_mask


def _token_advantages(advantages: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The advantage of each token, (B, T). TRL's are (B,), a subclass's may be (B, T) already."""
    return advantages if advantages.dim() == 2 else advantages.unsqueeze(-1).expand(mask.shape)


def _checked_config(trainer: EraMixin, arguments: tuple[Any, ...]) -> EraGRPOConfig:
    """The configuration among a trainer's arguments; TypeError as EraMixin says."""
    cls = type(trainer)
    if not isinstance(trainer, GRPOTrainer):
        names = [base.__name__ for base in cls.__mro__ if base.__name__ in TRL]
        why = [f" {name}: {TRL[name].why}." for name in names]
        raise TypeError(
            f"{cls.__name__}: EraMixin is for TRL's GRPOTrainer and classes derived from it."
            f"{''.join(why)} Nothing was trained."
        )

    config = next((value for value in arguments if isinstance(value, GRPOConfig)), None)
    if not isinstance(config, EraGRPOConfig):
        raise TypeError(
            f"{cls.__name__} has {type(config).__name__} for args; ERA's fields are in "
            "era.trl.EraGRPOConfig. Take that one (era_enable=False trains as TRL does), or "
            "for a configuration of your own `class Mine(MyGRPOConfig, EraGRPOConfig)`."
        )

    # A field that was misspelt after the construction would be ignored.
    known = [field.name for field in dataclasses.fields(config)]
    if unknown := [n for n in vars(config) if n not in known and looks_like_era(n)]:
        raise TypeError(
            f"{type(config).__name__} has no {', '.join(unknown)}, which was set on it. Its "
            f"fields are {', '.join(n for n in known if n.startswith('era_'))}."
        )
    if problems := config.era_config().problems_without_enable("era_"):  # set after it, too
        raise ValueError(*problems)
    return config


def _own_loss(trainer: GRPOTrainer) -> str:
    """The field that changes advantages, and the loss that may not see it; "" where neither is."""
    loss, era = super(EraMixin, trainer)._compute_loss.__func__, trainer.era_config
    if not era.changes_advantages or loss is GRPOTrainer._compute_loss:
        return ""
    return f"{'era_hold' if era.hold else 'era_scale_advantages'} with {loss.__qualname__}"


def _refuse(trainer: GRPOTrainer, model: torch.nn.Module) -> None:
    """Raise ValueError with all of TRL's refusals (era/refusals.py) that this trainer has."""
    args, head, name = trainer.args, model.get_output_embeddings(), type(model).__name__
    method = super(EraMixin, trainer)._get_per_token_logps_and_entropies.__func__
    present = {
        "own log-probs": not _is_from_trl(method) and method.__qualname__,
        "own loss with advantages": _own_loss(trainer),
        "Liger": args.use_liger_kernel and hasattr(trainer, "compute_liger_loss"),
    }
    if not trainer.era_config.scales_logits:
        refuse(TRL, present, "era_enable=True")
        return

    loss = super(EraMixin, trainer)._compute_loss.__func__
    own_loss = "" if _is_from_trl(loss) else f"{loss.__qualname__} with beta above 0"
    peft = is_peft_model(trainer.model)
    makes_log_probs_of_images = hasattr(trl.trainer.utils, "add_fused_lm_head")
    present |= {
        "LUSPO": args.loss_type == "luspo" and order(trl.__version__) < order("1.10.0"),
        "images": getattr(trainer, "_is_vlm", False) and not makes_log_probs_of_images,
        "prompt learning": peft and trainer.model.active_peft_config.is_prompt_learning,
        "top-k with an off-policy mask": args.era_top_k
        and args.off_policy_mask_threshold is not None,
        "own loss with KL": args.beta and own_loss,
        "head": type(head) is not torch.nn.Linear and f"a head that is a {type(head).__name__}",
    }

    # Only a model and a head without these can be tried.
    if not any(present.values()):
        present["logits"] = not makes_the_logits(model) and name
    if not any(present.values()) and trainer.aux_loss_enabled:
        present["auxiliary loss"] = not makes_the_aux_loss(model) and name
    refuse(TRL, present, "era_enable=True")


def main() -> None:
    """TRL's own command line for GRPO, with ERA's fields and trainer."""
    trl.GRPOConfig, trl.GRPOTrainer = EraGRPOConfig, EraGRPOTrainer
    import yaml  # TRL's own
    from trl.scripts import grpo  # takes these two from trl when it is called

    # Unlike TRL it refuses an argument that nobody knows, such as a misspelt --era_low.
    parser = grpo.make_parser(prog="python -m era.trl")
    try:
        parsed = parser.parse_args_and_config()
    except (ValueError, OSError, yaml.YAMLError) as error:  # fields out of range, the config file
        parser.error(str(error))
    grpo.main(*parsed)


if __name__ == "__main__":
    main()
