# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The checkpoints of an LLM run: which one it goes on from, and whether that is whole.

verl would start anew without the checkpoint, resume another run's, or end once the cluster is up.
"""

import zipfile
from collections.abc import Collection, Iterator
from pathlib import Path

TRACKER = "latest_checkpointed_iteration.txt"
# By what verl's `checkpoint.load_contents` may name, the files of each rank that FSDP's workers then load.
FILES = {"model": "model", "optimizer": "optim", "extra": "extra_state"}


def checkpoint_problems(config) -> Iterator[str]:
    """What is wrong with the steps of the run, and with the checkpoint that it goes on from."""
    trainer, tracker = config.trainer, Path(config.trainer.default_local_dir) / TRACKER
    last = trainer.total_training_steps
    if last is not None and (not isinstance(last, int) or last < 1):
        yield f"steps: trainer.total_training_steps (TOTAL_STEPS) is {last!r}, not a whole number of at least 1."
        return
    start = trainer.get("resume_from_path")
    if trainer.resume_mode == "resume_path":
        folder = Path(str(start))
        step = step_of(folder)
        if not folder.is_dir():
            yield f"checkpoint: no {start}. Run stage 1 to its end, or set STAGE1_CKPT to its last checkpoint."
        elif step is None or str(start).endswith("/"):  # verl takes the rest of the path for the step
            yield f"checkpoint: {start} does not end in the name of a step's folder, as in .../global_step_600."
        elif lacks := checkpoint_lacks(folder, config):
            yield f"checkpoint: {lacks}"
        elif last is not None and step >= last and not trainer.get("val_only"):
            yield f"steps: the run begins after step {step}, and TOTAL_STEPS={last} counts the steps before it too."
    elif trainer.resume_mode == "auto" and tracker.exists():
        written = tracker.read_text(errors="replace").strip()
        folder = tracker.parent / f"global_step_{written}"
        if not written.isdigit() or not folder.is_dir():
            yield (
                f"checkpoint: {tracker} says {written!r}, and there is no such checkpoint. Write the number of the "
                "newest complete global_step_<number> into it, or remove it to start from scratch."
            )
        elif lacks := checkpoint_lacks(folder, config):
            yield f"checkpoint: {lacks} {tracker} names the checkpoint to resume: {instead(folder, config)}."
        elif start and int(written) <= (step_of(Path(str(start))) or 0):
            yield (
                f"checkpoint: {tracker.parent} has step {written}, and this run starts from {start}: the folder is "
                "another run's. Set CKPTS_DIR to a folder of its own."
            )
    elif start:
        yield (
            f"checkpoint: trainer.resume_from_path={start} would be ignored with trainer.resume_mode="
            f"{trainer.resume_mode}: the run would begin with the model's own weights. Leave resume_mode out."
        )


def step_of(folder: Path) -> int | None:
    """The step of a checkpoint's folder, by its name."""
    step = folder.name.removeprefix("global_step_")
    return int(step) if step.isdigit() else None


def begins_after(config) -> int:
    """The step that the run goes on from, 0 if it starts from scratch."""
    trainer = config.trainer
    if trainer.resume_mode == "resume_path":
        return step_of(Path(str(trainer.get("resume_from_path")))) or 0
    return newest_step(config) if trainer.resume_mode == "auto" else 0


def newest_step(config) -> int:
    """The step of the checkpoint that verl has named last; 0 without one."""
    tracker = Path(config.trainer.default_local_dir) / TRACKER
    written = tracker.read_text(errors="replace").strip() if tracker.is_file() else ""
    return int(written) if written.isdigit() else 0


def checkpoint_lacks(folder: Path, config, contents: Collection[str] = ()) -> str:
    """A sentence on what a checkpoint lacks to be loaded on this run's GPUs; empty if nothing.

    Args:
        contents: of FILES, what is wanted; by default what verl will load, and the position in the data.
    """
    ranks = config.trainer.nnodes * config.trainer.n_gpus_per_node
    names = [] if contents else ["data.pt"]
    if config.actor_rollout_ref.actor.strategy.startswith("fsdp"):
        options = config.actor_rollout_ref.actor.get("checkpoint", {})
        wanted = contents or options.get("load_contents") or FILES
        kinds = [file for kind, file in FILES.items() if kind in wanted]
        names = [f"actor/{kind}_world_size_{ranks}_rank_{rank}.pt" for kind in kinds for rank in range(ranks)] + names
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        others = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        why = (
            f"A checkpoint loads on as many GPUs as wrote it, here {ranks}; what was not saved does not belong into "
            "actor.checkpoint.load_contents."
        )
        if missing == ["data.pt"]:
            why = "Without it verl would take the problems from the first one again."
        return f"{folder} lacks {missing[0]}{others}. {why}"
    cut = next((name for name in names if is_cut(folder / name)), None)
    return f"{folder}/{cut} is empty or was cut short, as by a full disk." if cut else ""


def is_cut(file: Path) -> bool:
    """Whether a file of torch.save's, a zip archive whose directory comes last, has lost its end."""
    with file.open("rb") as opened:
        begin = opened.read(2)
    return not begin or (begin == b"PK" and not zipfile.is_zipfile(file))


def instead(folder: Path, config) -> str:
    """What to do where the newest checkpoint is not whole."""
    steps = sorted((step_of(other) or 0, other) for other in folder.parent.glob("global_step_*") if other != folder)
    whole = [step for step, other in steps if step and not checkpoint_lacks(other, config)]
    return f"write {whole[-1]}, the newest whole one, into it" if whole else "remove it to start from scratch"


def reached_step(config) -> int | None:
    """The step of the newest checkpoint if that is the run's last one; verl would train a step more from there.

    The model is enough of a checkpoint from which nothing is trained on.
    """
    step, last = newest_step(config), config.trainer.total_training_steps
    trains_on = config.trainer.resume_mode == "auto" and not config.trainer.get("val_only")
    if not trains_on or not isinstance(last, int) or not last <= step:
        return None
    folder = Path(config.trainer.default_local_dir) / f"global_step_{step}"
    return step if folder.is_dir() and not checkpoint_lacks(folder, config, ["model"]) else None
