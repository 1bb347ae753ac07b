"""Time of ERA, of the paper's listing and of no activation, alone and in steps of timm models, as ratios.

    python -m tools.bench.vision --checkout checkouts/timm [--rounds 15] [--device cuda] [--csv FILE]

First the activation alone, between logits and cross-entropy; then whole steps of timm models: forward, cross-entropy,
backward and SGD, on a GPU with automatic mixed precision as in train.py --amp. Both are measured in training, and in
evaluation without gradients, eager and compiled. What is compiled is the model or the activation; the loss stays
outside, as in train.py. The listing (paper, code:image) is reproduced here, including its unused maximum.

The arms take turns in one process, in reversed order every other turn, and are compared turn by turn. A step's own
noise may hide the activation's share of it. So the activation is also measured alone with the step's batch, and the
last column is its time divided by the step's. Before anything is measured, the arms' outputs and gradients are
compared. Memory is what autograd keeps for the backward pass. OMP_NUM_THREADS sets the number of threads.
"""

import argparse
import contextlib
import copy
import math
import sys
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F

from tools.bench import tables

ARMS = {
    "plain": "cross-entropy",
    "listing": "the listing",
    "approx": "ERA, approx",
    "exact": "ERA, exact",
    "logged": "ERA, approx, entropies logged",
}
INVERSES = {"approx": "approx", "exact": "exact", "logged": "approx"}
PASSES = ("training", "evaluation")
COLUMNS = {"ms": 9, "p20 - p80": 17, "x plain": 7, "p20 - p80 ": 13, "x listing": 9, "kept, MiB": 9, "alone, %": 8}


class Listing(nn.Module):
    def __init__(self, num_classes, min_entropy):
        super().__init__()
        c_h, upper_bound = math.exp(min_entropy - 1), math.log(4.0) / 4.0
        self.slope = (upper_bound - c_h / num_classes) / (1 - 1 / num_classes)
        self.b = (c_h - self.slope) / num_classes

    def forward(self, x):
        h = self.slope * x.softmax(dim=-1) + self.b
        u = -1 - torch.log(h)
        new_logits = (-1 - torch.sqrt(2 * u) - 3 / 4 * u).to(x.dtype)
        x = x - torch.max(x, dim=-1, keepdim=True).values.detach()
        return new_logits - torch.min(new_logits, dim=-1, keepdim=True).values.detach()


def paper_min_entropy(num_classes):
    return 0.6 if num_classes == 10 else 1.2  # CIFAR-10, ImageNet


def activations(num_classes):
    from timm.layers.era import EntropyRegularizingActivation

    min_entropy = paper_min_entropy(num_classes)
    era = {
        arm: EntropyRegularizingActivation(num_classes, min_entropy, inverse=inverse)
        for arm, inverse in INVERSES.items()
    }
    return {"plain": nn.Identity(), "listing": Listing(num_classes, min_entropy), **era}


def classifiers(model):
    """A copy of a timm model for each arm."""
    from timm.layers.era import attach_era

    min_entropy = paper_min_entropy(model.num_classes)
    era = {arm: attach_era(copy.deepcopy(model), min_entropy, inverse=inverse) for arm, inverse in INVERSES.items()}
    return {
        "plain": model,
        "listing": nn.Sequential(copy.deepcopy(model), Listing(model.num_classes, min_entropy)),
        **era,
    }


def loss_function(arm):
    """With ERA, train.py measures the entropies of the predictions beside the loss."""
    from timm.utils.era import EntropyMeter

    return EntropyMeter(nn.CrossEntropyLoss()) if arm == "logged" else F.cross_entropy


def compiled(module, mode):
    return module if mode == "eager" or isinstance(module, nn.Identity) else torch.compile(module, dynamic=False)


def activation_runs(args, batch, num_classes, pass_, mode):
    """For each arm a function that runs it once, and one that runs only what keeps tensors for the backward pass."""
    generator = torch.Generator().manual_seed(0)
    logits = (3 * torch.randn(batch, num_classes, generator=generator)).to(args.device)
    logits.requires_grad_(pass_ == "training")
    target = torch.randint(num_classes, (batch,), generator=generator).to(args.device)

    def functions(activation, loss_fn):
        def loss():
            return loss_fn(activation(logits), target)

        def train():
            logits.grad = None
            loss().backward()

        return (train if pass_ == "training" else loss), loss

    return {
        arm: functions(compiled(module.to(args.device), mode), loss_function(arm))
        for arm, module in activations(num_classes).items()
    }


def step_runs(args, model, pass_, mode):
    """Like activation_runs, for training steps or evaluations of a model."""
    images = torch.randn(args.batch, *model.pretrained_cfg["input_size"], device=args.device)
    target = torch.randint(model.num_classes, (args.batch,), device=args.device)

    def functions(classifier, loss_fn):
        classifier = classifier.to(args.device).train(pass_ == "training")
        # lr=0: the weights stay, so that all turns are alike.
        optimizer = torch.optim.SGD(classifier.parameters(), lr=0.0, momentum=0.9, nesterov=True)
        scaler = torch.amp.GradScaler(args.device, enabled=args.device == "cuda")
        forward = compiled(classifier, mode)

        def loss():
            with torch.autocast(args.device, torch.float16) if args.device == "cuda" else contextlib.nullcontext():
                return loss_fn(forward(images), target)

        def train():
            optimizer.zero_grad()
            scaler.scale(loss()).backward()
            scaler.step(optimizer)
            scaler.update()

        return (train if pass_ == "training" else loss), loss

    return {arm: functions(classifier, loss_function(arm)) for arm, classifier in classifiers(model).items()}


def check(args, num_classes):
    """Check the arms: approx is the listing, exact solves the paper's equation, plain is neither."""
    logits = (3 * torch.randn(16, num_classes, dtype=torch.float64, device=args.device)).requires_grad_()
    target = torch.zeros(16, dtype=torch.long, device=args.device)
    found = {}
    for arm, activation in activations(num_classes).items():
        log_q = activation(logits).log_softmax(dim=-1)
        found[arm] = torch.cat([log_q, *torch.autograd.grad(F.nll_loss(log_q, target), logits)])
    distances = {arm: ((found[arm] - found["listing"]).norm() / found["listing"].norm()).item() for arm in found}
    message = f"{num_classes} classes: relative distances from the listing {distances}"
    assert distances["approx"] < 1e-9 and 1e-5 < distances["exact"] < distances["plain"], message
    y = activations(num_classes)["exact"](logits.detach())
    total = (-y * y.exp()).sum(dim=-1)  # sum h = C
    expected = torch.full_like(total, math.exp(paper_min_entropy(num_classes) - 1))
    assert torch.allclose(total, expected, rtol=1e-9), f"{num_classes} classes: ERA, exact does not solve the equation"


def kept_mib(loss):
    """MiB that autograd keeps between forward and backward pass, without parameters; each storage counts once."""
    kept = []

    def keep(tensor):
        if not isinstance(tensor, nn.Parameter):
            kept.append(tensor)  # keeps its storage's address from being reused
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        result = loss()  # its graph holds the tensors
    sizes = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in kept}
    del result
    return sum(sizes.values()) / 2**20


def measure(args, runs, pass_):
    """Rows of `summarise` for the arms, compared with plain; added are `listing_ratio`, `..._p20` and `..._p80`."""
    with torch.set_grad_enabled(pass_ == "training"):
        for _ in range(2):  # compilation, the allocator, cuDNN's choice
            for run, _ in runs.values():
                run()
        once = {arm: tables.seconds_of(args.device, run, 3) for arm, (run, _) in runs.items()}
        repeats = {arm: max(1, round(tables.TURN_SECONDS / time)) for arm, time in once.items()}
        seconds = {arm: [] for arm in runs}
        for turn in range(args.rounds):
            for arm in runs if turn % 2 else reversed(runs):
                seconds[arm].append(tables.seconds_of(args.device, runs[arm][0], repeats[arm]))
        memory = {arm: kept_mib(loss) for arm, (_, loss) in runs.items()} if pass_ == "training" else {}
    rows = tables.summarise(seconds, memory, dict.fromkeys(seconds, "plain"))
    for row, other in zip(rows, tables.summarise(seconds, {}, dict.fromkeys(seconds, "listing"))):
        row.update({f"listing_ratio{end}": other[f"seconds_ratio{end}"] for end in ("", "_p20", "_p80")})
        row["kept_mib"] = row.pop("peak_mib")
        del row["peak_ratio"]
    return rows


def print_rows(rows):
    width = max(map(len, ARMS.values()))
    print("| " + " | ".join([f"{'arm':<{width}}", *(f"{name:>{size}}" for name, size in COLUMNS.items())]) + " |")
    print("|" + "|".join(["-" * (width + 2), *("-" * (size + 1) + ":" for size in COLUMNS.values())]) + "|")
    for row in rows:
        cells = [
            f"{1e3 * row['seconds']:.3f}",
            f"{1e3 * row['seconds_p20']:.3f} - {1e3 * row['seconds_p80']:.3f}",
            f"{row['seconds_ratio']:.3f}",
            f"{row['seconds_ratio_p20']:.3f} - {row['seconds_ratio_p80']:.3f}",
            f"{row['listing_ratio']:.3f}",
            "" if row["kept_mib"] is None else f"{row['kept_mib']:.2f}",
            "" if row["alone_share"] is None else f"{100 * row['alone_share']:.3f}",
        ]
        cells = [f"{ARMS[row['arm']]:<{width}}", *(f"{cell:>{size}}" for cell, size in zip(cells, COLUMNS.values()))]
        print(f"| {' | '.join(cells)} |")
    sys.stdout.flush()


def measure_activation(args, batch, num_classes, pass_, mode):
    torch._dynamo.reset()  # otherwise the arms of all sizes reach the limit on recompilations of one function
    return measure(args, activation_runs(args, batch, num_classes, pass_, mode), pass_)


def measure_steps(args, name, pass_, mode):
    import timm

    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=args.classes)
    torch._dynamo.reset()
    rows = measure(args, step_runs(args, model, pass_, mode), pass_)
    alone = {row["arm"]: row["seconds"] for row in measure_activation(args, args.batch, args.classes, pass_, mode)}
    for row in rows:
        row["alone_share"] = (alone[row["arm"]] - alone["plain"]) / rows[0]["seconds"]
    return rows


def environment(args):
    import timm

    return {**tables.machine_of(args.device), "timm": timm.__version__}


def size(text):
    batch, _, classes = text.partition("x")
    if not (batch.isdigit() and classes.isdigit() and int(batch) >= 1 and int(classes) >= 10):
        raise argparse.ArgumentTypeError(f"{text!r} is not BATCHxCLASSES, such as 256x1000, with at least 10 classes")
    return int(batch), int(classes)


def read_arguments():
    parser = tables.make_parser(__doc__, "timm")
    parser.add_argument(
        "--sizes",
        type=size,
        nargs="*",
        default=[(64, 10), (256, 1000), (64, 21841)],
        metavar="BATCHxCLASSES",
        help="of the logits of the activation alone (default: 64x10 256x1000 64x21841)",
    )
    parser.add_argument(
        "--models",
        nargs="*",
        default=["resnet50", "test_resnet"],
        metavar="MODEL",
        help="timm models whose steps are measured, with their own image size (default: resnet50 test_resnet)",
    )
    parser.add_argument("--batch", type=int, help="images of a step (default: 8, on a GPU 64)")
    parser.add_argument("--classes", type=int, default=1000, help="of the models")
    args = parser.parse_args()
    args.batch = args.batch if args.batch is not None else 64 if args.device == "cuda" else 8
    file = "timm/layers/era.py"
    problems = tables.find_problems(args, "timm", file)
    if (Path(args.checkout) / file).is_file():
        sys.path.insert(0, str(Path(args.checkout).resolve()))
        import timm

        unknown = [name for name in args.models if not timm.is_model(name)]
        problems += [f"no models of timm: {', '.join(unknown)}"] if unknown else []
    if not args.sizes and not args.models:
        problems.append("neither sizes nor models to measure")
    if args.batch < 2 or args.classes < 10:
        problems.append("a batch of at least 2 and at least 10 classes are needed")
    if problems:
        parser.error("; ".join(problems))
    return args


def main():
    args = read_arguments()
    torch.backends.cudnn.benchmark = True  # as in train.py
    machine = environment(args)
    print("; ".join(f"{key} {value}" for key, value in machine.items() if value is not None))
    print(f"medians of {args.rounds} turns; ratios paired by turn; kept: for the backward pass, without parameters")
    planned = [("activation", *size_, measure_activation, size_) for size_ in args.sizes]
    planned += [(name, args.batch, args.classes, measure_steps, (name,)) for name in args.models]
    for num_classes in {table[2] for table in planned}:
        check(args, num_classes)
    rows = []
    for what, batch, num_classes, measure_table, arguments in planned:
        for mode in args.modes:
            for pass_ in PASSES:
                print(f"\n{what}, {batch} x {num_classes:,} logits, {pass_}, {mode}:\n", flush=True)
                found = [{"alone_share": None, **row} for row in measure_table(args, *arguments, pass_, mode)]
                print_rows(found)
                shape = {"what": what, "batch": batch, "classes": num_classes}
                shape |= {"pass": pass_, "mode": mode, "rounds": args.rounds}
                rows += [{**machine, **shape, **tables.rounded(row)} for row in found]
                if args.csv:
                    tables.write_csv(args.csv, rows)


if __name__ == "__main__":
    main()
