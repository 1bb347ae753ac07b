"""A small training loop that replaces timm's train.py where only timm's source package, which lacks it, is available.

It takes the flags of train.py that the demo uses, builds everything with timm's own factories, and writes the same
files: summary.csv, and checkpoints with the ERA setting among their arguments.
"""

import argparse
from pathlib import Path

import torch
from timm import utils
from timm.data import create_dataset, create_loader, resolve_data_config
from timm.layers import raw_logits
from timm.loss import LabelSmoothingCrossEntropy
from timm.models import create_model
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from timm.utils import era

# train.py's defaults
WEIGHT_DECAY = 2e-5
WARMUP_LR = 1e-5


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("data-dir", "output", "experiment", "model", "opt", "sched", "device"):
        parser.add_argument(f"--{name}", required=True)
    whole = (
        "num-classes",
        "img-size",
        "batch-size",
        "validation-batch-size",
        "warmup-epochs",
        "epochs",
        "seed",
        "workers",
        "checkpoint-hist",
    )
    for name in whole:
        parser.add_argument(f"--{name}", required=True, type=int)
    for name in ("crop-pct", "smoothing", "lr"):
        parser.add_argument(f"--{name}", required=True, type=float)
    parser.add_argument("--no-aug", action="store_true", required=True)
    era.add_arguments(parser)
    parser.set_defaults(resume="")
    args = parser.parse_args()
    era.check_arguments(args)
    return args


def train_epoch(model, loader, loss_fn, optimizer) -> dict[str, float]:
    model.train()
    losses = utils.AverageMeter()
    for images, targets in loader:
        loss = loss_fn(model(images), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.update(loss.item(), len(targets))
    return {"loss": losses.avg, **era.entropy_metrics(loss_fn)}


@torch.inference_mode()
def validate(model, loader, loss_fn) -> dict[str, float]:
    model.eval()
    losses, top1, top5 = utils.AverageMeter(), utils.AverageMeter(), utils.AverageMeter()
    with raw_logits(model) as activation:
        for images, targets in loader:
            logits = model(images)
            losses.update(loss_fn(activation(logits), targets).item(), len(targets))
            for meter, accuracy in zip((top1, top5), utils.accuracy(logits, targets, topk=(1, 5))):
                meter.update(accuracy.item(), len(targets))
    return {"loss": losses.avg, "top1": top1.avg, "top5": top5.avg, **era.entropy_metrics(loss_fn)}


def main() -> None:
    utils.setup_default_logging()
    args = parse()
    utils.random_seed(args.seed)
    model = create_model(args.model, num_classes=args.num_classes).to(args.device)
    era.setup(model, args)

    def loader(split: str, batch_size: int):
        config = resolve_data_config(vars(args), model=model)
        return create_loader(
            create_dataset("", root=args.data_dir, split=split),
            batch_size=batch_size,
            is_training=split == "train",
            no_aug=args.no_aug,
            num_workers=args.workers,
            device=torch.device(args.device),
            **{name: config[name] for name in ("input_size", "mean", "std", "interpolation", "crop_pct")},
        )

    train_loader, validation_loader = loader("train", args.batch_size), loader("validation", args.validation_batch_size)
    train_loss, validation_loss = era.meter(
        args, LabelSmoothingCrossEntropy(args.smoothing), torch.nn.CrossEntropyLoss()
    )
    optimizer = create_optimizer_v2(model, opt=args.opt, lr=args.lr, weight_decay=WEIGHT_DECAY)
    scheduler, epochs = create_scheduler_v2(
        optimizer, sched=args.sched, num_epochs=args.epochs, warmup_epochs=args.warmup_epochs, warmup_lr=WARMUP_LR
    )
    output = Path(args.output, args.experiment)
    output.mkdir(parents=True, exist_ok=True)
    saver = utils.CheckpointSaver(
        model,
        optimizer,
        args=args,
        checkpoint_dir=str(output),
        recovery_dir=str(output),
        max_history=args.checkpoint_hist,
    )
    scheduler.step(0)
    for epoch in range(epochs):
        lr = optimizer.param_groups[0]["lr"]
        trained = train_epoch(model, train_loader, train_loss, optimizer)
        validated = validate(model, validation_loader, validation_loss)
        utils.update_summary(epoch, trained, validated, output / "summary.csv", lr=lr, write_header=epoch == 0)
        saver.save_checkpoint(epoch, metric=validated["top1"])
        scheduler.step(epoch + 1, validated["top1"])


if __name__ == "__main__":
    main()
