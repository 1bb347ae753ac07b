"""The commands: the paper's, flag for flag, and what is refused before one of them starts."""

import json
import math
import os
import shlex
import subprocess
import sys

import pytest

# From the paper's listings lst:train_without_aug and lst:train_with_aug.
PLAIN = "./distributed_train.sh 4 --data-dir ../data --dataset torch/cifar10 --dataset-download -b 64 --model resnet50 --sched cosine --epochs 200 --lr 0.05 --amp --dist-bn reduce"
AUGMENTED = PLAIN.replace("--dist-bn", "--remode pixel --reprob 0.6 --aug-splits 3 --aa rand-m9-mstd0.5-inc1 --resplit --split-bn --jsd --dist-bn")
VARIABLES = ("GPUS", "DATA_DIR", "OUTPUT", "SEED", "H0", "AUG", "NUM_CLASSES", "EPOCHS", "DOWNLOAD", "PYTHON", "DRY_RUN", "CHECK_ONLY", "ENVIRONMENT_TO_COME")


@pytest.fixture
def launch(project_root):
    def run(*args, **variables):
        environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
        command = [sys.executable, project_root / "overlays/timm/recipes/era/launch.py", *args]
        return subprocess.run(command, env={**environment, **variables}, capture_output=True, text=True, timeout=120)

    return run


@pytest.fixture
def commands(launch):
    """Of an experiment, as its dry run prints them: the words after the variables."""

    def run(*args, **variables):
        result = launch(*args, DRY_RUN="1", **variables)
        assert result.returncode == 0, result.stderr
        found = []
        for line in result.stdout.splitlines():
            words = shlex.split(line, comments=True)
            found.append(words[words.index("./distributed_train.sh") :])
        return found

    return run


def value(command, flag):
    return command[command.index(flag) + 1]


@pytest.mark.parametrize(
    "name, printed, added",
    [
        ("cifar10", PLAIN, ""),
        ("cifar10-era", PLAIN, "--era-min-entropy 0.6"),
        ("cifar10-aug", AUGMENTED, ""),
        ("cifar10-aug-era", AUGMENTED, "--era-min-entropy 0.6"),
        ("imagenet", PLAIN, ""),
        ("imagenet-era", PLAIN, "--era-min-entropy 1.2"),
        ("imagenet-aug", AUGMENTED, ""),
        ("imagenet-aug-era", AUGMENTED, "--era-min-entropy 1.2"),
    ],
)
def test_main_results_are_the_printed_commands(commands, name, printed, added):
    if name.startswith("imagenet"):
        printed = printed.replace(" --dataset torch/cifar10 --dataset-download", "").replace("../data", "../data/imagenet")
    found = commands(name)
    assert [value(command, "--seed") for command in found] == (["42", "43", "44"] if name.startswith("cifar10") else ["42"])
    for command in found:
        ours = ["--seed", value(command, "--seed"), "--output", value(command, "--output"), "--experiment", value(command, "--experiment")]
        assert command == shlex.split(f"{printed} {added}") + ours
    assert len({value(command, "--experiment") for command in found}) == len(found)


def test_environment_chooses(commands):
    (command,) = commands("cifar10-aug-era", GPUS="2", DATA_DIR="/my data", SEED="7", H0="0.9", NUM_CLASSES="10", OUTPUT="/o")
    assert command[1] == "2" and value(command, "--data-dir") == "/my data" and value(command, "--num-classes") == "10"
    assert value(command, "--era-min-entropy") == "0.9" and value(command, "--output") == "/o"
    assert value(command, "--experiment") == "cifar10-10classes-aug-era0.9-seed7"


def test_grids(commands):
    entropies = lambda name, **variables: [value(command, "--era-min-entropy") for command in commands(name, **variables)]
    assert "0.6" in entropies("cifar10-sweep") and "1.2" in entropies("imagenet-sweep")
    assert entropies("cifar10-sweep", H0="0.1 2", SEED="1 2") == ["0.1", "2"] * 2
    assert all("--jsd" in command for command in commands("imagenet-sweep", AUG="1")) and not any("--jsd" in command for command in commands("imagenet-sweep"))
    grid = commands("cifar10-regularization")
    added = [" ".join(command[len(shlex.split(PLAIN)) : command.index("--seed")]) for command in grid]
    assert added == ["", "--smoothing 0.2", "--smoothing 0.3", "--drop 0.1", "--drop 0.2", "--drop 0.3", "--era-min-entropy 0.6"]
    assert [("--era-min-entropy" in command, "--jsd" in command) for command in commands("cifar10-time")] == [(False, True), (True, True)]


def test_only_the_time_has_a_folder_of_its_own(commands):
    """A run that several experiments have is trained once, but for the one whose clock counts."""
    main, sweep, time = ({(value(command, "--output"), value(command, "--experiment")) for command in commands(name)} for name in ("cifar10-era", "cifar10-sweep", "cifar10-time"))
    assert main & sweep and not time & (main | {("x", name) for _, name in main})
    assert commands("imagenet-sweep", H0="1.2") == commands("imagenet-era")


def test_added_flags_come_last(commands):
    command = commands("cifar10", "--epochs", "5", "--log-entropy", SEED="1")[0]
    assert command[command.index("--seed") + 2 : command.index("--output")] == ["--epochs", "5", "--log-entropy"]


def test_train_py_takes_every_command(timm_scripts, commands, recipe):
    """By its own parser: what the flags mean, those shortened in the paper included."""
    code = "import json, sys, train; print(json.dumps([vars(train.parser.parse_args(words)) for words in json.load(sys.stdin)]))"
    every = {name: commands(name) for name in recipe.runs.EXPERIMENTS}
    words = [command[2:] for found in every.values() for command in found]
    result = subprocess.run([sys.executable, "-c", code], cwd=timm_scripts, input=json.dumps(words), capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert result.returncode == 0, result.stderr
    for args, command in zip(json.loads(result.stdout), words):
        assert args["lr"] == 0.05 and args["batch_size"] == 64 and args["epochs"] == 200 and args["amp"] and args["num_classes"] is None
        assert args["jsd_loss"] == ("--jsd" in command) and args["smoothing"] == float(dict(zip(command, command[1:])).get("--smoothing", 0.1))
        assert args["era_min_entropy"] == (float(value(command, "--era-min-entropy")) if "--era-min-entropy" in command else None)


def problems(recipe, name, tmp_path, *added, **settings):
    experiment = recipe.runs.EXPERIMENTS[name]
    settings = recipe.runs.Settings(**settings)
    experiment = recipe.runs.with_settings(experiment, settings)
    jobs = [(run, tmp_path / run.name, recipe.preflight.wanted_epochs(run, experiment)) for run in recipe.runs.runs(experiment, settings, list(added))]
    return recipe.preflight.find_problems(experiment.dataset, jobs, tmp_path, sys.executable, settings.gpus, True, True)


@pytest.mark.parametrize("n", [2, 10, 1000])
@pytest.mark.parametrize("tau", [math.e, 4.0, 100.0])
def test_feasible_min_entropies_are_those_of_the_activation(recipe, project_root, n, tau):
    import importlib.util

    spec = importlib.util.spec_from_file_location("timm_era_of_the_recipe", project_root / "overlays/timm/timm/layers/era.py")
    layer = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(layer)
    verdicts = set()
    for min_entropy in [-4 + 0.37 * step for step in range(40)]:
        command = ("", "", "--num-classes", str(n), "--era-tau", repr(tau), "--era-min-entropy", repr(min_entropy))
        try:
            layer.EntropyRegularizingActivation(n, min_entropy, tau)
            feasible = True
        except ValueError:
            feasible = False
        assert (recipe.preflight.era_problems(recipe.preflight.flags_of(command)) == []) == feasible, min_entropy
        verdicts.add(feasible)
    assert verdicts == {True, False}


@pytest.mark.parametrize("classes", [None, 10])
def test_default_sweeps_are_feasible(recipe, tmp_path, classes):
    for name in recipe.runs.EXPERIMENTS:
        assert not [problem for problem in problems(recipe, name, tmp_path, num_classes=classes) if problem.startswith("ERA")]
    assert [problem for problem in problems(recipe, "cifar10-era", tmp_path, num_classes=10, min_entropies=(2.3,)) if "between -0.0597 and 2.2429" in problem]


def images(folder, classes, split="train"):
    for label in range(classes):
        (folder / split / f"n{label}").mkdir(parents=True)


@pytest.mark.parametrize("validation", ["validation", "val", "eval"])
def test_imagenet_folder(recipe, tmp_path, validation):
    images(tmp_path / "images", 1000)
    images(tmp_path / "images", 1000, validation)
    found = problems(recipe, "imagenet", tmp_path, data_dir=str(tmp_path / "images"))
    assert not [problem for problem in found if problem.startswith("data")]


@pytest.mark.parametrize("train, validation, settings, said", [(0, 10, {}, "/train (timm also takes training)"), (10, 9, {}, "must be the same"), (700, 700, {}, "700 classes, 1000 expected"), (12, 12, {"num_classes": 10}, "12 classes, 10 expected")])
def test_imagenet_folder_that_will_not_do(recipe, tmp_path, train, validation, settings, said):
    images(tmp_path, train)
    images(tmp_path, validation, "val")
    (problem,) = [problem for problem in problems(recipe, "imagenet", tmp_path, data_dir=str(tmp_path), **settings) if problem.startswith("data")]
    assert said in problem


def test_splits_are_where_timm_looks_for_them(recipe, patched_timm, tmp_path):
    """By timm's own search, which falls back to the whole folder."""
    code = "import json, sys; from timm.data.dataset_factory import _search_split as s; print(json.dumps([s(*pair) for pair in json.load(sys.stdin)]))"
    asked = []
    for split, names in recipe.preflight.SPLITS.items():
        for name in (*names, "other"):
            (tmp_path / split / name / name).mkdir(parents=True)
            asked.append((str(tmp_path / split / name), split))
    result = subprocess.run([sys.executable, "-c", code], cwd=patched_timm, input=json.dumps(asked), capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    for (root, _), found in zip(asked, json.loads(result.stdout)):
        name = os.path.basename(root)
        assert found == (root if name == "other" else f"{root}/{name}")


def test_all_that_is_missing_is_said_at_once(launch, tmp_path):
    """Here in the overlay's folder, which as the source package has no train.py."""
    result = launch("cifar10-sweep", DOWNLOAD="0", DATA_DIR=str(tmp_path), OUTPUT=str(tmp_path / "out"), CUDA_VISIBLE_DEVICES="0,1", PYTHON="/no/python", H0="0.6 7 8")
    assert result.returncode == 1 and "Traceback" not in result.stderr
    for said in ("no train.py", "apply timm --source git", "no Python that starts at /no/python", "wants 4 (GPUS), this machine has 2", "no CIFAR-10", "H0=7 is not feasible", "H0=8 is not feasible"):
        assert said in result.stderr, result.stderr
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "name, added, variables, said",
    [
        ("cifar10", [], {"GPUS": "0", "SEED": "x", "EPOCHS": "-1", "NUM_CLASSES": "ten"}, ["GPUS=0", "SEED=x", "EPOCHS=-1", "NUM_CLASSES=ten"]),
        ("cifar10-sweep", [], {"H0": "0.3 nan", "AUG": "yes"}, ["H0=0.3 nan", "AUG=yes"]),
        ("cifar10", [], {"H0": "0.3"}, ["without ERA"]),
        ("cifar10-aug", [], {"AUG": "0"}, ["with augmentation in the paper"]),
        ("cifar10", ["--seed=3", "--output", "x", "--era-min-entropy", "1"], {}, ["--seed cannot be set here: SEED does", "--output cannot", "H0 does"]),
        ("cifar10", ["--epochs", "many"], {}, ["invalid int value: 'many'"]),
        ("cifar", [], {}, ["no experiment 'cifar'", "cifar10-aug-era"]),
    ],
)
def test_bad_values_are_named_at_start(launch, tmp_path, name, added, variables, said):
    result = launch(name, *added, DRY_RUN="1", **variables)
    assert result.returncode != 0 and result.stdout == "" and "Traceback" not in result.stderr
    for part in said:
        assert part in result.stderr


def test_help_names_every_experiment_and_variable(launch, recipe):
    text = launch("--help").stdout
    assert all(name in text for name in (*recipe.runs.EXPERIMENTS, *VARIABLES[:-1]))
