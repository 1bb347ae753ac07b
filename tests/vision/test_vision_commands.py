"""The commands: the paper's, flag for flag, and what is refused before one of them starts."""

import json
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
import zipfile

import pytest

# From the paper's listings lst:train_without_aug and lst:train_with_aug.
PLAIN = (
    "./distributed_train.sh 4 --data-dir ../data --dataset torch/cifar10 --dataset-download -b 64 --model resnet50 "
    "--sched cosine --epochs 200 --lr 0.05 --amp --dist-bn reduce"
)
AUGMENTATION = "--remode pixel --reprob 0.6 --aug-splits 3 --aa rand-m9-mstd0.5-inc1 --resplit --split-bn --jsd"
AUGMENTED = PLAIN.replace("--dist-bn", f"{AUGMENTATION} --dist-bn")


@pytest.fixture
def commands(launch):
    """Of an experiment, as its dry run prints them: the words after the variables."""

    def run(*args, **variables):
        result = launch(*args, DRY_RUN="1", **variables)
        assert result.returncode == 0, result.stderr
        lines = [shlex.split(line, comments=True) for line in result.stdout.splitlines()]
        return [words[words.index("./distributed_train.sh") :] for words in lines]

    return run


def value(command, flag):
    return command[command.index(flag) + 1]


@pytest.mark.parametrize(
    "dataset, min_entropy, seeds", [("cifar10", "0.6", ["42", "43", "44"]), ("imagenet", "1.2", ["42"])]
)
@pytest.mark.parametrize("augmented", [False, True])
@pytest.mark.parametrize("with_era", [False, True])
def test_main_results_are_the_printed_commands(commands, dataset, min_entropy, seeds, augmented, with_era):
    printed = AUGMENTED if augmented else PLAIN
    if dataset == "imagenet":
        printed = printed.replace(" --dataset torch/cifar10 --dataset-download", "").replace(
            "../data", "../data/imagenet"
        )
    if with_era:
        printed += f" --era-min-entropy {min_entropy}"
    found = commands(dataset + "-aug" * augmented + "-era" * with_era)
    assert [value(command, "--seed") for command in found] == seeds
    for command in found:
        ours = [word for flag in ("--seed", "--output", "--experiment") for word in (flag, value(command, flag))]
        assert command == shlex.split(printed) + ours
    assert len({value(command, "--experiment") for command in found}) == len(found)


def test_environment_chooses(commands):
    given = {
        "GPUS": "2",
        "DATA_DIR": "/my data",
        "SEED": "7",
        "H0": "0.34330373112 0.9",
        "NUM_CLASSES": "10",
        "OUTPUT": "/o",
    }
    command, other = commands("cifar10-aug-era", "--epochs", "5", "--log-entropy", **given)
    assert command[1] == "2" and value(command, "--data-dir") == "/my data" and value(command, "--num-classes") == "10"
    assert value(command, "--era-min-entropy") == "0.34330373112" and value(command, "--output") == "/o"
    assert value(command, "--experiment") == "cifar10-10classes-aug-era0.34330373112-seed7"
    assert value(other, "--era-min-entropy") == "0.9"
    added = command[command.index("--seed") + 2 : command.index("--output")]
    assert added == ["--epochs", "5", "--log-entropy"]


def test_grids(commands):
    def entropies(name, **variables):
        return [value(command, "--era-min-entropy") for command in commands(name, **variables)]

    assert "0.6" in entropies("cifar10-sweep") and "1.2" in entropies("imagenet-sweep")
    assert entropies("cifar10-sweep", H0="0.1 2", SEED="1 2") == ["0.1", "2"] * 2
    assert all("--jsd" in command for command in commands("imagenet-sweep", AUG="1"))
    assert not any("--jsd" in command for command in commands("imagenet-sweep"))
    grid = commands("cifar10-regularization")
    added = [" ".join(command[len(shlex.split(PLAIN)) : command.index("--seed")]) for command in grid]
    smoothing, drop = ["--smoothing 0.2", "--smoothing 0.3"], ["--drop 0.1", "--drop 0.2", "--drop 0.3"]
    assert added == ["", *smoothing, *drop, "--era-min-entropy 0.6"]
    assert all("--jsd" in command for command in commands("cifar10-regularization", AUG="1"))
    timed = commands("cifar10-time")
    assert ["--era-min-entropy" in command for command in timed] == [False, True]
    assert all("--jsd" in command for command in timed)


@pytest.mark.parametrize(
    "name, epochs, runs", [("imagenet-sweep", 100, 5), ("cifar10-time", 3, 2), ("cifar10-sweep", None, 5)]
)
def test_some_runs_are_stopped_before_their_schedule_ends(launch, name, epochs, runs):
    lines = launch(name, DRY_RUN="1").stdout.splitlines()
    ending = f"  # is stopped after {epochs} epochs"
    assert len(lines) == runs and all(line.endswith(ending) if epochs else "#" not in line for line in lines)


def test_only_timed_runs_have_a_folder_of_their_own(commands):
    """A run that several experiments share is trained once, unless its time is measured."""
    main, sweep, time = (
        {(value(command, "--output"), value(command, "--experiment")) for command in commands(name)}
        for name in ("cifar10-era", "cifar10-sweep", "cifar10-time")
    )
    assert main & sweep and {os.path.basename(output) for output, _ in time} == {"time"}
    assert commands("imagenet-sweep", H0="1.2") == commands("imagenet-era")


def test_train_py_takes_every_command(timm_scripts, recipe):
    """By its own parser: what the flags mean, including those shortened in the paper."""
    code = (
        "import json, sys, train as t\n"
        "parsed = [vars(t.parser.parse_args(words)) for words in json.load(sys.stdin)]\n"
        "print(json.dumps([list(t.parser._option_string_actions), *parsed]))"
    )
    experiments, settings = recipe.runs.EXPERIMENTS.values(), recipe.runs.Settings()
    words = [run.command[2:] for each in experiments for run in recipe.runs.runs(each, settings, [])]
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=timm_scripts, input=json.dumps(words), capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    flags, *parsed = json.loads(result.stdout)
    assert {*recipe.preflight.OWN_FLAGS, *recipe.preflight.READ_FLAGS} <= set(flags)
    assert {flag for flag in flags if recipe.preflight.flag_problems([f"{flag}=1"])} == set(recipe.preflight.OWN_FLAGS)
    for args, command in zip(parsed, words, strict=True):
        given = dict(zip(command, command[1:]))
        same = {"lr": 0.05, "batch_size": 64, "epochs": 200, "amp": True, "num_classes": None}
        assert {name: args[name] for name in same} == same
        assert args["jsd_loss"] == ("--jsd" in command) and args["smoothing"] == float(given.get("--smoothing", 0.1))
        min_entropy = given.get("--era-min-entropy")
        assert args["era_min_entropy"] == (min_entropy and float(min_entropy))


def problems(recipe, name, tmp_path, *added, about="", **settings):
    """Those that begin with `about`."""
    experiment = recipe.runs.EXPERIMENTS[name]
    settings = recipe.runs.Settings(**settings)
    experiment = recipe.runs.with_settings(experiment, settings)
    jobs = [
        (run, tmp_path / run.name, recipe.preflight.wanted_epochs(run, experiment))
        for run in recipe.runs.runs(experiment, settings, list(added))
    ]
    found = recipe.preflight.find_problems(experiment.dataset, jobs, tmp_path, None, settings.gpus, True)
    return [problem for problem in found if problem.startswith(about)]


@pytest.mark.parametrize("n", [2, 10, 1000])
@pytest.mark.parametrize("tau", [math.e, 4.0, 100.0])
def test_feasible_min_entropies_are_those_of_the_activation(recipe, era, n, tau):
    verdicts = set()
    for min_entropy in [-4 + 0.37 * step for step in range(40)]:
        command = ("", "", "--num-classes", str(n), "--era-tau", repr(tau), "--era-min-entropy", repr(min_entropy))
        try:
            era.EntropyRegularizingActivation(n, min_entropy, tau)
            feasible = True
        except ValueError:
            feasible = False
        assert (recipe.preflight.era_problems(recipe.preflight.flags_of(command)) == []) == feasible, min_entropy
        verdicts.add(feasible)
    assert verdicts == {True, False}


@pytest.mark.parametrize("classes", [None, 10])
def test_default_sweeps_are_feasible(recipe, tmp_path, classes):
    for name in recipe.runs.EXPERIMENTS:
        assert problems(recipe, name, tmp_path, about="ERA", num_classes=classes) == []
    (problem,) = problems(recipe, "cifar10-era", tmp_path, about="ERA", num_classes=10, min_entropies=(2.3,))
    assert "between -0.0597 and 2.2429" in problem


def images(folder, classes, split="train"):
    for label in range(classes):
        (folder / split / f"n{label}").mkdir(parents=True)


@pytest.mark.parametrize(
    "name, train, validation, settings, said",
    [
        ("imagenet", 1000, 1000, {}, None),
        ("imagenet", 0, 10, {}, "/train (timm also takes training)"),
        ("imagenet", 10, 9, {}, "must be the same"),
        ("imagenet", 12, 12, {"num_classes": 10}, "12 classes, 10 expected"),
        ("cifar10", 5, 5, {"num_classes": 6}, None),
        ("cifar10", 5, 5, {"num_classes": 4}, "5 classes, the model 4 outputs. Set NUM_CLASSES=5."),
    ],
)
def test_folder_of_images(recipe, tmp_path, name, train, validation, settings, said):
    images(tmp_path, train)
    images(tmp_path, validation, "val")
    added = ["--dataset="] if name == "cifar10" else []
    found = problems(recipe, name, tmp_path, *added, about="data", data_dir=str(tmp_path), **settings)
    assert found == [] if said is None else len(found) == 1 and said in found[0]


def test_splits_are_where_timm_looks_for_them(recipe, import_timm, tmp_path):
    """By timm's own search, which falls back to the whole folder."""
    from timm.data.dataset_factory import _search_split

    for split, names in recipe.preflight.SPLITS.items():
        for name in (*names, "other"):
            root = tmp_path / split / name
            (root / name).mkdir(parents=True)
            assert _search_split(str(root), split) == str(root if name == "other" else root / name)


def test_all_that_is_missing_is_said_at_once(launch, patched_timm, tmp_path):
    """In a checkout that, like one of the source package, has no train.py."""
    shutil.copytree(patched_timm / "recipes/era", tmp_path / "timm/recipes/era", ignore=shutil.ignore_patterns("*.pyc"))
    given = {"DOWNLOAD": "0", "DATA_DIR": str(tmp_path), "OUTPUT": str(tmp_path / "out"), "CUDA_VISIBLE_DEVICES": "0,1"}
    result = launch("cifar10-sweep", checkout=tmp_path / "timm", **given, PYTHON="/no/python", H0="0.6 7 8")
    assert result.returncode == 1 and "Traceback" not in result.stderr
    for said in (
        "no train.py",
        "apply timm --source git",
        "no Python that starts at /no/python",
        "wants 4 (GPUS), this machine has 2",
        "no CIFAR-10",
        "H0=7 is not feasible",
        "H0=8 is not feasible",
    ):
        assert said in result.stderr, result.stderr
    assert os.listdir(tmp_path) == ["timm"]


@pytest.mark.parametrize(
    "command, variables, said",
    [
        ("cifar10", {"GPUS": "0", "SEED": "x"}, ["GPUS=0", "SEED=x"]),
        ("cifar10", {"EPOCHS": "500"}, ["EPOCHS=500: the schedule has 200"]),
        ("cifar10-sweep", {"H0": "0.3 nan", "AUG": "yes"}, ["H0=0.3 nan", "AUG=yes"]),
        ("cifar10", {"H0": "0.3"}, ["without ERA"]),
        ("cifar10-aug", {"AUG": "0"}, ["with augmentation in the paper"]),
        ("cifar10 --seed=3 --output x", {}, ["--seed cannot be set here: SEED does", "--output cannot"]),
        ("cifar10 --era-min-entropy 1", {}, ["H0 does"]),
        ("cifar10 --see 3", {}, ["--see is short for --seed, which cannot be set here: SEED does."]),
        ("cifar10 --epoch=5", {}, ["--epoch is short for --epochs. Write --epochs in full."]),
        ("cifar10 --epochs -3", {}, ["--epochs must be at least 1"]),
        ("cifar", {}, ["no experiment 'cifar'", "cifar10-aug-era"]),
    ],
)
def test_bad_values_are_named_at_start(launch, command, variables, said):
    result = launch(*command.split(), DRY_RUN="1", **variables)
    assert result.returncode != 0 and result.stdout == "" and "Traceback" not in result.stderr
    for part in said:
        assert part in result.stderr


def test_no_short_form_gets_around_the_checks(recipe):
    """train.py's parser takes any beginning of a flag that no other flag has."""
    for flag in {**recipe.preflight.OWN_FLAGS, **recipe.preflight.READ_FLAGS}:
        for end in range(3, len(flag)):
            for word in (flag[:end], f"{flag[:end]}=1"):
                found = recipe.preflight.flag_problems([word, "1"])
                assert any(f"{flag[:end]} is short for {flag}" in problem for problem in found), word


@pytest.mark.parametrize(
    "about, added, settings, said",
    [
        ("data", [], {"num_classes": 10}, None),
        ("data", [], {"num_classes": 9}, "CIFAR-10 has 10 classes, the model 9 outputs"),
        ("GPUs", ["--device", "cpu"], {"gpus": 1}, None),
        ("GPUs", ["--device", "cpu"], {"gpus": 2}, "Set GPUS=1 instead of 2."),
    ],
)
def test_cifar10_has_enough_outputs_and_one_process_on_a_cpu(recipe, tmp_path, about, added, settings, said):
    found = problems(recipe, "cifar10", tmp_path, *added, about=about, **settings)
    assert found == [] if said is None else len(found) == 1 and said in found[0]


def script(file, text):
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)
    return str(file)


@pytest.mark.parametrize("raised", ["", "raise RuntimeError('first line\\nno route to host')"])
def test_cifar10_is_downloaded_by_torchvision(recipe, tmp_path, capsys, raised):
    """With a stand-in for torchvision."""
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision/__init__.py").touch()
    (tmp_path / "torchvision/datasets.py").write_text(
        f"def CIFAR10(root, download):\n    {raised}\n    open(f'{{root}}/{{download}}', 'w')\n"
    )
    python = script(tmp_path / "python", f'PYTHONPATH="{tmp_path}" exec "{sys.executable}" "$@"')
    data = tmp_path / "data"
    data.mkdir()
    if raised:
        said = "could not be downloaded into .*/data: no route to host. .* set DATA_DIR. No run was started."
        with pytest.raises(recipe.launching.Refused, match=said):
            recipe.launch.download_cifar10(data, python)
    else:
        recipe.launch.download_cifar10(data, python)
    assert os.listdir(data) == ([] if raised else ["True"])
    assert f"downloading CIFAR-10 into {data}" in capsys.readouterr().out


@pytest.mark.parametrize(
    "text, said",
    [
        (f'exec "{sys.executable}" -I -S "$@"', "lacks torch, torchvision, yaml,"),
        ("""echo '{"lacks": [], "scripts": ""}'""", "has torch but no torchrun"),
        ("exit 1", "no Python that starts"),
        (f'exec "{sys.executable}" "$@"', None),
    ],
)
def test_environment_that_trains(recipe, tmp_path, text, said):
    found = recipe.preflight.environment_problems(script(tmp_path / "python", text))
    assert found == [] if said is None else len(found) == 1 and said in found[0]


def test_a_dry_run_warns_of_infeasible_min_entropies(launch):
    said = launch("cifar10-era", SEED="1", H0="9", DRY_RUN="1").stderr
    assert "note: ERA: H0=9 is not feasible for 1000 classes" in said


def test_help_names_every_experiment_and_documented_variable(launch, recipe, project_root):
    rows = re.findall(r"^\| (`[A-Z].*?) \|", (project_root / "docs/vision/recipes.md").read_text(), re.MULTILINE)
    variables = set(re.findall(r"`([A-Z0-9_]+)", " ".join(rows))) - {"ARGS"}
    text = launch("--help").stdout
    assert len(variables) > 8 and all(name in text for name in (*recipe.runs.EXPERIMENTS, *variables))


# Folders that hold a run already


def run_of(recipe, *added, **settings):
    settings = recipe.runs.Settings(seeds=(42,), **settings)
    experiment = recipe.runs.with_settings(recipe.runs.EXPERIMENTS["cifar10"], settings)
    return recipe.runs.runs(experiment, settings, list(added))[0]


def write_begun_run(recipe, folder, epochs):
    (folder / "command.txt").write_text(shlex.join(run_of(recipe).command))
    (folder / "summary.csv").write_text("epoch,eval_top1\n" + "".join(f"{epoch},10\n" for epoch in range(epochs)))


def write_checkpoint(folder, name):
    with zipfile.ZipFile(folder / f"{name}.pth.tar", "w"):  # as torch.save's files are
        pass


@pytest.mark.parametrize(
    "added, settings, said",
    [
        ([], {"data_dir": "/another place"}, None),
        (["--lr", "0.1", "--notes", "a b"], {}, "(then: nothing; now: --lr 0.1 --notes 'a b')"),
        ([], {"gpus": 8, "data_dir": "/another place"}, "(then: 4; now: 8)"),
    ],
)
def test_only_the_data_may_move_when_a_run_is_resumed(recipe, tmp_path, added, settings, said):
    write_begun_run(recipe, tmp_path, epochs=5)
    write_checkpoint(tmp_path, "last")
    found = recipe.preflight.folder_problems(run_of(recipe, *added, **settings), tmp_path, 200)
    assert found == [] if said is None else len(found) == 1 and said in found[0]


def test_run_that_lost_its_last_checkpoint_is_not_begun_again(recipe, tmp_path):
    """timm deletes it, and then renames tmp.pth.tar to it."""

    def ask(epochs=200):
        return recipe.preflight.folder_problems(run_of(recipe), tmp_path, epochs)

    write_begun_run(recipe, tmp_path, epochs=1)
    assert ask() == []  # killed before its first checkpoint, so there is nothing to lose
    write_begun_run(recipe, tmp_path, epochs=2)
    assert ask() != []
    write_begun_run(recipe, tmp_path, epochs=12)
    assert ask(12) == []
    (problem,) = ask()
    assert f"{tmp_path} has 12 epochs and no last.pth.tar" in problem
    assert problem.endswith("Move the folder away to begin again.")
    for name in ("checkpoint-9", "checkpoint-10"):
        write_checkpoint(tmp_path, name)
    (tmp_path / "checkpoint-11.pth.tar").write_bytes(b"PK\x03\x04 and no end")
    assert f"cp {tmp_path}/checkpoint-10.pth.tar {tmp_path}/last.pth.tar. Or move the folder" in ask()[0]
    write_checkpoint(tmp_path, "tmp")
    assert f"cp {tmp_path}/tmp.pth.tar {tmp_path}/last.pth.tar" in ask()[0]
    (tmp_path / "tmp.pth.tar").rename(tmp_path / "last.pth.tar")
    assert ask() == []


def test_checkpoint_that_is_cut_off_is_named(recipe, tmp_path):
    write_begun_run(recipe, tmp_path, epochs=1)
    (tmp_path / "last.pth.tar").write_bytes(b"PK\x03\x04 and no end")
    (problem,) = recipe.preflight.folder_problems(run_of(recipe), tmp_path, 200)
    assert f"{tmp_path / 'last.pth.tar'} is cut off" in problem


def test_run_of_another_origin_is_named(recipe, tmp_path):
    write_checkpoint(tmp_path, "last")
    (problem,) = recipe.preflight.folder_problems(run_of(recipe), tmp_path, 200)
    assert "was not started from here" in problem
