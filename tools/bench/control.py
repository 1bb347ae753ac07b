"""Time of FastTD3's and FastSAC-ERA's updates in train.py, as ratios, and the activation's share of them.

    python -m tools.bench.control --checkout checkouts/fasttd3 [--rounds 15] [--device cuda] [--csv FILE]

This measures train.py itself. Its main() runs up to the training loop, with an environment that only has sizes; then
the loop over the updates of one environment step, taken from its source, runs with main()'s variables. That is
num_updates (2) times: sample, normalise, update the critic (with target actions), update the policy where
policy_frequency says so, update the target network. So networks, AMP (on a GPU, bf16), optimizers and torch.compile are
as in training. The replay buffer holds random numbers, and the learning rates are close to 0, so that all turns are
alike.

Removing FastTD3's delay doubles the policy updates, with or without ERA. So all arms are compared with FastTD3 without
delay too. A step's own noise may hide the share of what ERA adds to it. So two parts are measured alone, for each
target action and each policy update of a step, as shares of the arm's step:

- the activation: ln sigma from the head's output, and its gradient in a policy update;
- the last layers: from the features behind the actor's trunk to the actions and back, with the head for sigma,
  sampling, the entropies for the log and AdamW of these layers. The share is the time beyond that of FastTD3's last
  layers.

The arms take turns in one process, in reversed order every other turn, and are compared turn by turn. Peak memory (on a
GPU) is what an arm adds: networks, optimizers, a small replay buffer and its first steps, CUDA graphs included.
OMP_NUM_THREADS sets the number of threads; TORCHINDUCTOR_COMPILE_THREADS=1 keeps compilers' processes off the cores.
"""

import ast
import contextlib
import copy
import gc
import importlib.util
import io
import statistics
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import tensordict
import torch
import torch.nn as nn

from tools.bench import tables

ARMS = {
    "fasttd3": ("FastTD3", ["--agent", "fasttd3"]),
    "no-delay": ("FastTD3 without delay", ["--agent", "fasttd3", "--policy_frequency", "1"]),
    "era": ("FastSAC-ERA", ["--agent", "fastsac_era"]),
    "era-delta": ("FastSAC-ERA, learned delta", ["--agent", "fastsac_era", "--era_learn_delta"]),
    "era-tanh": ("FastSAC-ERA, tanh", ["--agent", "fastsac_era", "--era_distribution", "tanh"]),
    "era-clipped": ("FastSAC-ERA, clipped", ["--agent", "fastsac_era", "--era_distribution", "clipped"]),
    "era-batch": ("FastSAC-ERA, batch level", ["--agent", "fastsac_era", "--era_level", "batch"]),
}
BASELINES = ("fasttd3", "no-delay")
OBSERVATIONS = {2: 11, 19: 51, 61: 151}  # by action dimensions: Reacher-v4, h1-walk-v0, h1hand-walk-v0
LEARNING_RATE = 1e-12  # not 0, by which a compiled AdamW divides
NUM_ENVS = 128  # train.py's default; a batch has as many samples of each
COLUMNS = {
    **{"ms": 9, "p20 - p80": 17, "x FastTD3": 9, "p20 - p80 ": 13, "x no delay": 10, "p20 - p80  ": 13},
    **{"activation, %": 13, "p20 - p80   ": 13, "last layers, %": 14, "p20 - p80    ": 13, "peak, MiB": 9},
}
# Names in the rows, and their scale and digits in the table.
PRINTED = (
    ("seconds", 1e3, 1),
    ("seconds_ratio", 1, 3),
    ("no_delay_ratio", 1, 3),
    ("activation_share", 100, 2),
    ("alone_share", 100, 2),
)


class ReadyToTrain(Exception):
    """Raised where the run's log is opened, just before the training loop. Its argument: main()'s variables."""


def ready_to_train(*_):
    raise ReadyToTrain(sys._getframe(1).f_locals)


def variables_of_main(args, arm, batch_size, dim, mode):
    """The variables of train.py's main() and of its module before the training loop.

    The module is loaded once per arm, so that each arm has its own functions for torch.compile, which limits how often
    one function is recompiled.
    """
    envs = SimpleNamespace(num_envs=NUM_ENVS, num_obs=OBSERVATIONS[dim], num_actions=dim, asymmetric_obs=False)
    envs.reset = lambda: torch.zeros(NUM_ENVS, envs.num_obs, device=args.device)
    sys.modules["environments.gymnasium_env"] = SimpleNamespace(make_envs=lambda *_: (envs, envs, envs))
    spec = importlib.util.spec_from_file_location("train", args.train_script)
    train = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(train)
    train.RunLog = ready_to_train
    flags = f"--env_name Gym-Sizes --no_use_wandb --num_envs {NUM_ENVS} --batch_size {batch_size} --buffer_size 256 "
    flags += f"--actor_learning_rate {LEARNING_RATE} --critic_learning_rate {LEARNING_RATE} "
    flags += f"{'--cuda' if args.device == 'cuda' else '--no_cuda'} "
    flags += "--compile" if mode == "compiled" else "--no_compile"
    sys.argv = [str(args.train_script), *flags.split(), *ARMS[arm][1]]
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="tyro")  # of fields that are None by default
            train.main()
    except ReadyToTrain as ready:
        return {**vars(train), **ready.args[0]}


def updates_of_a_step(path):
    """The code of train.py's loop over the updates of one environment step."""
    tree = ast.parse(path.read_text())
    (loop,) = (
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.For) and ast.unparse(node.iter) == "range(args.num_updates)"
    )
    return compile(ast.Module([loop], type_ignores=[]), str(path), "exec")


def step_run(args, main):
    """A function that runs the updates of one environment step."""
    buffer = main["rb"]
    for random in (buffer.observations, buffer.next_observations, buffer.rewards):
        random.normal_()
    buffer.actions.uniform_(-1, 1)
    buffer.ptr = buffer.buffer_size
    main["global_step"] = main["args"].learning_starts + 1
    updates = updates_of_a_step(args.train_script)

    def step():
        main["mark_step"]()
        main["logs_dict"] = main["TensorDict"]()
        exec(updates, main)

    return step


def activation_run(main, batch_size):
    """A function that runs a step's share of ERA's activation, with a policy update at every update."""
    settings, device = main["args"], main["device"]
    actor = copy.deepcopy(main["actor"])
    log_std = torch.compile(actor.log_std, mode=settings.compile_mode) if settings.compile else actor.log_std
    dtype = main["amp_dtype"] if main["amp_enabled"] else torch.float
    pre_std = torch.randn(batch_size, main["n_act"], device=device, dtype=dtype, requires_grad=True)
    gradient = torch.randn(batch_size, main["n_act"], device=device)  # of a loss by ln sigma

    def activation():
        main["mark_step"]()
        for _ in range(settings.num_updates):
            log_std(pre_std)
            torch.autograd.grad(log_std(pre_std), pre_std, gradient)

    return activation


def head_run(main, batch_size):
    """A function that runs a step's share of the actor behind its trunk, with a policy update at every update."""
    settings, device = main["args"], main["device"]
    actor = copy.deepcopy(main["actor"])

    def autocast():
        return torch.autocast(main["amp_device_type"], main["amp_dtype"], enabled=main["amp_enabled"])

    features = torch.randn(batch_size, main["n_obs"], device=device)
    for name in ("net", "fc_head"):  # the latter since FastTD3 229ed59
        if hasattr(actor, name):
            with torch.no_grad(), autocast():
                features = getattr(actor, name)(features)
            setattr(actor, name, nn.Identity())
    features.requires_grad_()
    gradient = torch.randn(batch_size, main["n_act"], device=device)  # the critic's
    learning_rate = torch.tensor(LEARNING_RATE, device=device)
    optimizer = torch.optim.AdamW(
        main["era_training"].parameter_groups(actor), lr=learning_rate, weight_decay=settings.weight_decay
    )

    def target_actions():
        with autocast():
            return actor(features).detach()

    def update():
        with autocast():
            actions, residual_loss = main["era_training"].policy_actions(actor, {"observations": features}, {})
            loss = residual_loss + (gradient * actions).sum()
        features.grad = None
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    if settings.compile:
        target_actions, update = (
            torch.compile(function, mode=settings.compile_mode) for function in (target_actions, update)
        )

    def head():
        main["mark_step"]()
        for _ in range(settings.num_updates):
            target_actions()
            update()

    return head


def check(arm, main):
    """Check that the arm does in a step what its name says."""
    updates = [
        max(int(state["step"]) for state in main[name].state.values()) for name in ("q_optimizer", "actor_optimizer")
    ]
    assert updates == [2, 1 if arm == "fasttd3" else 2], f"{arm}: {updates} updates of critic and policy in one step"
    logs = main["logs_dict"]
    names = sorted(logs.keys())  # a TensorDict refuses `name in logs`
    assert ("gaussian_entropy" in names) == arm.startswith("era"), f"{arm}: logs {names}"
    if arm.startswith("era"):
        entropy, target = logs["gaussian_entropy"].item(), (logs["target_entropy"] + logs["delta"]).item()
        assert entropy > target - 1e-3, f"{arm}: the Gaussian's entropy is {entropy} nats, H0' {target}"


def prepare(args, arm, batch_size, dim, mode):
    """Functions that run the arm's step, its last layers and, for ERA, its activation; and peak memory in MiB on a GPU.

    All three have been warmed up.
    """
    if args.device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
    main = variables_of_main(args, arm, batch_size, dim, mode)
    step = step_run(args, main)
    step()
    check(arm, main)
    for _ in range(3):  # compilation, the allocator, recording of CUDA graphs
        step()
    peak = (torch.cuda.max_memory_allocated() - held) / 2**20 if args.device == "cuda" else None
    head = head_run(main, batch_size)
    activation = activation_run(main, batch_size) if arm.startswith("era") else None
    for run in filter(None, (head, activation)):
        for _ in range(4):
            run()
    return step, head, activation, peak


def shares_of_a_step(name, parts, steps):
    """Median and spread of the shares, from times paired by turn."""
    shares = [part / step for part, step in zip(parts, steps)]
    low, *_, high = statistics.quantiles(shares, n=5, method="inclusive")
    return {name: statistics.median(shares), f"{name}_p20": low, f"{name}_p80": high}


def measure(args, batch_size, dim, mode):
    """A row of `summarise` for each arm, compared with FastTD3; added are the other ratio and the two shares.

    They are `no_delay_ratio`, `activation_share` and `alone_share`, each with `..._p20` and `..._p80`.
    """
    torch._dynamo.reset()
    gc.collect()  # the networks of the last table
    runs, memory = {}, {}
    for arm in args.arms:
        *runs[arm], memory[arm] = prepare(args, arm, batch_size, dim, mode)
    all_runs = [run for three in runs.values() for run in three if run]
    repeats = {run: max(1, round(tables.TURN_SECONDS / tables.seconds_of(args.device, run, 1))) for run in all_runs}
    seconds, alone, activation = ({arm: [] for arm in args.arms} for _ in range(3))
    for turn in range(args.rounds):
        for arm in args.arms if turn % 2 else reversed(args.arms):
            for times, run in zip((seconds, alone, activation), runs[arm]):
                if run:
                    times[arm].append(tables.seconds_of(args.device, run, repeats[run]))
    rows = tables.summarise(seconds, memory, dict.fromkeys(seconds, "fasttd3"))
    for row, other in zip(rows, tables.summarise(seconds, {}, dict.fromkeys(seconds, "no-delay"))):
        arm, ends = row["arm"], ("", "_p20", "_p80")
        row.update({f"no_delay_ratio{end}": other[f"seconds_ratio{end}"] for end in ends})
        row.update({f"{name}_share{end}": None for name in ("activation", "alone") for end in ends})
        if arm not in BASELINES:
            row.update(shares_of_a_step("activation_share", activation[arm], seconds[arm]))
            more = [era - plain for era, plain in zip(alone[arm], alone["no-delay"])]
            row.update(shares_of_a_step("alone_share", more, seconds[arm]))
    return rows


def print_rows(rows):
    width = max(len(title) for title, _ in ARMS.values())
    print("| " + " | ".join([f"{'arm':<{width}}", *(f"{name:>{size}}" for name, size in COLUMNS.items())]) + " |")
    print("|" + "|".join(["-" * (width + 2), *("-" * (size + 1) + ":" for size in COLUMNS.values())]) + "|")
    for row in rows:
        cells = []
        for name, scale, digits in PRINTED:
            middle, low, high = (
                "" if row[name + quantile] is None else f"{scale * row[name + quantile]:.{digits}f}"
                for quantile in ("", "_p20", "_p80")
            )
            cells += [middle, f"{low} - {high}" if middle else ""]
        cells.append("" if row["peak_mib"] is None else f"{row['peak_mib']:.0f}")
        title = f"{ARMS[row['arm']][0]:<{width}}"
        cells = [f"{cell:>{size}}" for cell, size in zip(cells, COLUMNS.values())]
        print(f"| {' | '.join([title, *cells])} |")
    sys.stdout.flush()


def environment(args):
    precision = "AMP bf16" if args.device == "cuda" else "fp32"
    return {**tables.machine_of(args.device), "tensordict": tensordict.__version__, "precision": precision}


def read_arguments():
    parser = tables.make_parser(__doc__, "FastTD3")
    parser.add_argument(
        "--dims",
        type=int,
        nargs="+",
        choices=OBSERVATIONS,
        default=list(OBSERVATIONS),
        help="action dimensions: of Reacher-v4, of HumanoidBench without hands and with them",
    )
    parser.add_argument(
        "--batch-size",
        type=int,
        nargs="+",
        help=f"multiples of {NUM_ENVS} (default: 1024 4096, on a GPU the paper's 32768)",
    )
    parser.add_argument(
        "--arms", nargs="+", choices=ARMS, default=list(ARMS), help="beside FastTD3 with and without delay"
    )
    args = parser.parse_args()
    args.arms = [arm for arm in ARMS if arm in (*BASELINES, *args.arms)]
    args.batch_size = args.batch_size or ([32768] if args.device == "cuda" else [1024, 4096])
    args.train_script = Path(args.checkout).resolve() / "fast_td3/train.py"
    problems = tables.find_problems(args, "FastTD3", "fast_td3/era.py")
    uneven = [str(size) for size in args.batch_size if size < NUM_ENVS or size % NUM_ENVS]
    if uneven:
        problems.append(
            f"--batch-size {' '.join(uneven)}: multiples of {NUM_ENVS}, the number of environments, expected"
        )
    if problems:
        parser.error("; ".join(problems))
    return args


def main():
    args = read_arguments()
    sys.path.insert(0, str(args.train_script.parent))
    torch._dynamo.config.cache_size_limit = 64  # head_run's functions share their code among all arms
    machine = environment(args)
    print("; ".join(f"{key} {value}" for key, value in machine.items() if value is not None))
    print(f"medians of {args.rounds} turns; ratios and shares of a step paired by turn; last layers: beyond FastTD3's")
    rows = []
    for mode in args.modes:
        for batch_size in args.batch_size:
            for dim in args.dims:
                print(f"\nD = {dim}, batch {batch_size:,}, {mode}:\n", flush=True)
                found = measure(args, batch_size, dim, mode)
                print_rows(found)
                shape = {"action_dim": dim, "observation_dim": OBSERVATIONS[dim], "batch_size": batch_size}
                shape |= {"mode": mode, "rounds": args.rounds}
                rows += [{**machine, **shape, **tables.rounded(row)} for row in found]
                if args.csv:
                    tables.write_csv(args.csv, rows)


if __name__ == "__main__":
    main()
