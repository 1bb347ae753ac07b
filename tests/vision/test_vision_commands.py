# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The commands: the paper's, flag for flag, and what is refused before one of them starts."""

import json
import os
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from era.discrete import EntropyRegularizingActivation
from recipes import grid
from recipes.vision.timm import SPLITS, Timm, folder_of_images_problems

# From the paper's listings lst:train_without_aug and lst:train_with_aug.
PLAIN = (
    "./distributed_train.sh 4 --data-dir ../data --dataset torch/cifar10 --dataset-download -b 64 --model resnet50 "
    "--sched cosine --epochs 200 --lr 0.05 --amp --dist-bn reduce"
)
AUGMENTATION = "--remode pixel --reprob 0.6 --aug-splits 3 --aa rand-m9-mstd0.5-inc1 --resplit --split-bn --jsd"
AUGMENTED = PLAIN.replace("--dist-bn", f"{AUGMENTATION} --dist-bn")


@pytest.fixture
def commands(monkeypatch):
    """commands(experiment, flags..., VARIABLE=...): the words of each run."""

    def words(name, *added, **variables):
        with monkeypatch.context() as given:
            for variable, value in variables.items():
                given.setenv(variable, value)
            script = Timm(name, added)
            return [script.argv(run) for run in script.runs]

    return words


@pytest.mark.parametrize("added, cpus", [((), 10), (("-j", "8"), 18), (("--workers=0",), 2)])
def test_slurm_cpus_for_processes_and_data_loaders(monkeypatch, added, cpus):
    monkeypatch.setenv("GPUS", "2")
    assert f"#SBATCH --cpus-per-task={cpus}\n#SBATCH --gres=gpu:2\n" in grid.slurm_script(Timm("cifar10", added))


def value(command, flag):
    return command[command.index(flag) + 1]


def entropies(commands):
    return [float(value(command, "--era-min-entropy")) for command in commands if "--era-min-entropy" in command]


@pytest.mark.parametrize("dataset, min_entropy", [("cifar10", "0.6"), ("imagenet", "1.2")])
@pytest.mark.parametrize("augmented", [False, True])
def test_main_results_are_the_printed_commands(commands, dataset, min_entropy, augmented):
    printed = AUGMENTED if augmented else PLAIN
    if dataset == "imagenet":
        printed = printed.replace(" --dataset torch/cifar10 --dataset-download", "")
        printed = printed.replace("../data", "../data/imagenet")
    for with_era in (False, True):
        found = commands(dataset + "-aug" * augmented + "-era" * with_era)
        for command in found:
            added = ["--era-min-entropy", min_entropy] if with_era else []
            ours = [word for flag in ("--seed", "--output", "--experiment") for word in (flag, value(command, flag))]
            assert command == shlex.split(printed) + added + ours
        assert len({value(command, "--experiment") for command in found}) == len(found)


def test_variables_choose(commands):
    given = {"GPUS": "2", "DATA_DIR": "/my data", "SEED": "7 07", "H0": "0.34330373112 0.9", "NUM_CLASSES": "10"}
    command, other = commands("cifar10-aug-era", "--epochs", "5", "--log-entropy", OUTPUT="/o", **given)
    assert command[1] == "2" and value(command, "--data-dir") == "/my data" and value(command, "--num-classes") == "10"
    assert value(command, "--era-min-entropy") == "0.34330373112" and value(command, "--output") == "/o"
    assert value(command, "--experiment") == "cifar10-10classes-aug-era0.34330373112-seed7"
    assert value(other, "--era-min-entropy") == "0.9"
    added = command[command.index("--seed") + 2 : command.index("--output")]
    assert added == ["--epochs", "5", "--log-entropy"]


def test_grids(commands):
    assert 0.6 in entropies(commands("cifar10-sweep")) and 1.2 in entropies(commands("imagenet-sweep"))
    assert entropies(commands("cifar10-sweep", H0="0.1 2", SEED="1 2")) == [0.1, 2] * 2
    assert all("--jsd" in command for command in commands("imagenet-sweep", AUG="1"))
    assert not any("--jsd" in command for command in commands("imagenet-sweep"))
    arms = [
        command[len(shlex.split(PLAIN)) : command.index("--seed")] for command in commands("cifar10-regularization")
    ]
    smoothing, drop = ["--smoothing 0.2", "--smoothing 0.3"], ["--drop 0.1", "--drop 0.2", "--drop 0.3"]
    assert list(map(" ".join, arms)) == ["", *smoothing, *drop, "--era-min-entropy 0.6"]
    timed = commands("cifar10-time")
    assert len(timed) == 2 and entropies(timed) == [0.6] and all("--jsd" in command for command in timed)


def test_runs_that_stop_early_and_runs_that_experiments_share(commands, monkeypatch):
    """A run of several experiments is trained once, unless its time is measured."""
    assert {run.steps for run in Timm("imagenet-sweep").runs} == {100}
    assert {run.steps for run in Timm("cifar10-time").runs} == {3} and Timm("cifar10").runs[0].steps is None
    main, sweep, time = (
        {(value(command, "--output"), value(command, "--experiment")) for command in commands(name)}
        for name in ("cifar10-era", "cifar10-sweep", "cifar10-time")
    )
    assert main & sweep and {os.path.basename(output) for output, _ in time} == {"time"}
    (stopped,), (whole,) = commands("imagenet-sweep", H0="1.2"), commands("imagenet-era")
    assert stopped == [*whole, "--cooldown-epochs=-100"]
    monkeypatch.setenv("EPOCHS", "5")
    assert {run.steps for run in Timm("cifar10").runs} == {5}


def test_train_py_takes_every_command(timm_scripts):
    """By its own parser: what the flags mean, including those shortened in the paper."""
    code = (
        "import json, sys, train as t\n"
        "parsed = [vars(t.parser.parse_args(words)) for words in json.load(sys.stdin)]\n"
        "print(json.dumps([list(t.parser._option_string_actions), *parsed]))"
    )
    words = [run.command[2:] for name in Timm.experiments for run in Timm(name).runs]
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=timm_scripts, input=json.dumps(words), capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    flags, *parsed = json.loads(result.stdout)
    assert {*Timm.own_flags, *Timm.harmless} <= set(flags)
    for args, command in zip(parsed, words, strict=True):
        given = dict(zip(command, command[1:]))
        same = {"lr": 0.05, "batch_size": 64, "epochs": 200, "amp": True, "num_classes": None}
        assert {name: args[name] for name in same} == same
        assert args["jsd_loss"] == ("--jsd" in command) and args["smoothing"] == float(given.get("--smoothing", 0.1))
        min_entropy = given.get("--era-min-entropy")
        assert args["era_min_entropy"] == (min_entropy and float(min_entropy))


@pytest.mark.parametrize("classes", [10, 1000])
def test_default_sweeps_are_feasible(commands, classes):
    for name in Timm.experiments:
        for min_entropy in entropies(commands(name)):
            assert EntropyRegularizingActivation(classes, min_entropy).floor > min_entropy


@pytest.mark.parametrize(
    "train, validation, wanted, said",
    [(3, 3, 3, []), (5, 5, None, []), (0, 3, 3, ["no "]), (10, 9, 10, ["must be the same"]), (3, 3, 5, ["5 expected"])],
)
def test_folder_of_images(tmp_path, train, validation, wanted, said):
    for split, classes in (("train", train), ("val", validation)):
        for label in range(classes):
            (tmp_path / split / f"n{label}").mkdir(parents=True)
    found = folder_of_images_problems(tmp_path, wanted)
    assert len(found) == len(said) and all(words in problem for words, problem in zip(said, found))


def test_splits_are_where_timm_looks_for_them(import_timm, tmp_path):
    """By timm's own search, which falls back to the whole folder."""
    from timm.data.dataset_factory import _search_split

    for names in SPLITS:
        for name in (*names, "other"):
            root = tmp_path / names[0] / name
            (root / name).mkdir(parents=True)
            assert _search_split(str(root), names[0]) == str(root if name == "other" else root / name)


def checkpoint(folder, name):
    with zipfile.ZipFile(folder / name, "w"):  # as torch.save's files are
        pass


def test_checkpoint_is_the_newest_whole_one_and_data_may_have_moved(monkeypatch, tmp_path):
    """timm deletes the last one, and then renames tmp.pth.tar to it: a kill may come between."""
    monkeypatch.setenv("OUTPUT", str(tmp_path))
    script = Timm("cifar10")
    run, folder = script.runs[0], Path(script.runs[0].folder)
    folder.mkdir()
    (folder / "command.txt").write_text(shlex.join(run.command))
    monkeypatch.setenv("DATA_DIR", "/another place")
    moved = Timm("cifar10")
    assert moved.runs[0].command != run.command and grid.folder_problems(moved, moved.runs[0]) == []
    assert script.checkpoint(run) is None
    for age, name in enumerate(("tmp.pth.tar", "checkpoint-9.pth.tar", "model_best.pth.tar")):
        checkpoint(folder, name)
        os.utime(folder / name, (10**9 - age, 10**9 - age))
    (folder / "checkpoint-11.pth.tar").write_bytes(b"PK\x03\x04 and no end")
    assert script.argv(run)[-2:] == ["--resume", str(folder / "tmp.pth.tar")]
    checkpoint(folder, "last.pth.tar")
    assert script.checkpoint(run).name == "last.pth.tar"


def test_a_run_is_finished_with_all_epochs_of_its_launch(monkeypatch, tmp_path):
    """EPOCHS ends a run before its schedule does."""
    monkeypatch.setenv("OUTPUT", str(tmp_path))
    whole, (run, *_) = Timm("cifar10"), Timm("cifar10").runs
    run.folder.mkdir()
    rows = ["epoch,train_loss,eval_top1\n", *(f"{epoch},2.0,50.0\n" for epoch in range(200))]
    (run.folder / "summary.csv").write_text("".join(rows))
    assert whole.is_finished(run)
    (run.folder / "summary.csv").write_text(rows[0] + rows[-1])
    assert not whole.is_finished(run) and "no row of step 1" in whole.incomplete_because(run)
    (run.folder / "summary.csv").write_text("".join(rows[:4]))
    monkeypatch.setenv("EPOCHS", "3")
    early = Timm("cifar10")
    assert early.is_finished(early.runs[0]) and not whole.is_finished(run)
