"""The commands: the paper's, flag for flag, and what is refused before one of them starts."""

import json
import math
import os
import shlex
import subprocess
import sys
import zipfile

import pytest

# From the paper's listings lst:train_without_aug and lst:train_with_aug.
PLAIN = "./distributed_train.sh 4 --data-dir ../data --dataset torch/cifar10 --dataset-download -b 64 --model resnet50 --sched cosine --epochs 200 --lr 0.05 --amp --dist-bn reduce"
AUGMENTED = PLAIN.replace(
    "--dist-bn",
    "--remode pixel --reprob 0.6 --aug-splits 3 --aa rand-m9-mstd0.5-inc1 --resplit --split-bn --jsd --dist-bn",
)
VARIABLES = (
    "GPUS",
    "DATA_DIR",
    "OUTPUT",
    "SEED",
    "H0",
    "AUG",
    "NUM_CLASSES",
    "EPOCHS",
    "DOWNLOAD",
    "PYTHON",
    "DRY_RUN",
    "CHECK_ONLY",
    "ENVIRONMENT_TO_COME",
)


@pytest.fixture
def launch(project_root):
    def run(*args, **variables):
        environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
        command = [sys.executable, project_root / "overlays/timm/recipes/era/launch.py", *args]
        return subprocess.run(command, env={**environment, **variables}, capture_output=True, text=True, timeout=900)

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
        printed = printed.replace(" --dataset torch/cifar10 --dataset-download", "").replace(
            "../data", "../data/imagenet"
        )
    found = commands(name)
    assert [value(command, "--seed") for command in found] == (
        ["42", "43", "44"] if name.startswith("cifar10") else ["42"]
    )
    for command in found:
        ours = [
            "--seed",
            value(command, "--seed"),
            "--output",
            value(command, "--output"),
            "--experiment",
            value(command, "--experiment"),
        ]
        assert command == shlex.split(f"{printed} {added}") + ours
    assert len({value(command, "--experiment") for command in found}) == len(found)


def test_environment_chooses(commands):
    (command,) = commands(
        "cifar10-aug-era", GPUS="2", DATA_DIR="/my data", SEED="7", H0="0.9", NUM_CLASSES="10", OUTPUT="/o"
    )
    assert command[1] == "2" and value(command, "--data-dir") == "/my data" and value(command, "--num-classes") == "10"
    assert value(command, "--era-min-entropy") == "0.9" and value(command, "--output") == "/o"
    assert value(command, "--experiment") == "cifar10-10classes-aug-era0.9-seed7"


def test_grids(commands):
    entropies = lambda name, **variables: [
        value(command, "--era-min-entropy") for command in commands(name, **variables)
    ]
    assert "0.6" in entropies("cifar10-sweep") and "1.2" in entropies("imagenet-sweep")
    assert entropies("cifar10-sweep", H0="0.1 2", SEED="1 2") == ["0.1", "2"] * 2
    assert all("--jsd" in command for command in commands("imagenet-sweep", AUG="1")) and not any(
        "--jsd" in command for command in commands("imagenet-sweep")
    )
    grid = commands("cifar10-regularization")
    added = [" ".join(command[len(shlex.split(PLAIN)) : command.index("--seed")]) for command in grid]
    assert added == [
        "",
        "--smoothing 0.2",
        "--smoothing 0.3",
        "--drop 0.1",
        "--drop 0.2",
        "--drop 0.3",
        "--era-min-entropy 0.6",
    ]
    assert all("--jsd" in command for command in commands("cifar10-regularization", AUG="1"))
    assert [("--era-min-entropy" in command, "--jsd" in command) for command in commands("cifar10-time")] == [
        (False, True),
        (True, True),
    ]


@pytest.mark.parametrize(
    "name, epochs, runs", [("imagenet-sweep", 100, 5), ("cifar10-time", 3, 2), ("cifar10-sweep", None, 5)]
)
def test_some_runs_are_stopped_before_their_schedule_ends(launch, name, epochs, runs):
    lines = launch(name, DRY_RUN="1").stdout.splitlines()
    assert len(lines) == runs and all(
        line.endswith(f"  # is stopped after {epochs} epochs") if epochs else "#" not in line for line in lines
    )


def test_only_the_time_has_a_folder_of_its_own(commands):
    """A run that several experiments have is trained once, but for the one whose clock counts."""
    main, sweep, time = (
        {(value(command, "--output"), value(command, "--experiment")) for command in commands(name)}
        for name in ("cifar10-era", "cifar10-sweep", "cifar10-time")
    )
    assert main & sweep and not time & (main | {("x", name) for _, name in main})
    assert commands("imagenet-sweep", H0="1.2") == commands("imagenet-era")


def test_added_flags_come_last(commands):
    command = commands("cifar10", "--epochs", "5", "--log-entropy", "--jsd", SEED="1")[0]
    assert command[command.index("--seed") + 2 : command.index("--output")] == [
        "--epochs",
        "5",
        "--log-entropy",
        "--jsd",
    ]


def test_train_py_takes_every_command(timm_scripts, commands, recipe):
    """By its own parser: what the flags mean, those shortened in the paper included."""
    code = "import json, sys, train as t; print(json.dumps([list(t.parser._option_string_actions), *(vars(t.parser.parse_args(words)) for words in json.load(sys.stdin))]))"
    every = {name: commands(name) for name in recipe.runs.EXPERIMENTS}
    words = [command[2:] for found in every.values() for command in found]
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=timm_scripts,
        input=json.dumps(words),
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert result.returncode == 0, result.stderr
    flags, *parsed = json.loads(result.stdout)
    assert {*recipe.preflight.OWN_FLAGS, *recipe.preflight.READ_FLAGS} <= set(flags)
    assert {flag for flag in flags if recipe.preflight.flag_problems([f"{flag}=1"])} == set(recipe.preflight.OWN_FLAGS)
    for args, command in zip(parsed, words, strict=True):
        assert (
            args["lr"] == 0.05
            and args["batch_size"] == 64
            and args["epochs"] == 200
            and args["amp"]
            and args["num_classes"] is None
        )
        assert args["jsd_loss"] == ("--jsd" in command) and args["smoothing"] == float(
            dict(zip(command, command[1:])).get("--smoothing", 0.1)
        )
        assert args["era_min_entropy"] == (
            float(value(command, "--era-min-entropy")) if "--era-min-entropy" in command else None
        )


def problems(recipe, name, tmp_path, *added, **settings):
    experiment = recipe.runs.EXPERIMENTS[name]
    settings = recipe.runs.Settings(**settings)
    experiment = recipe.runs.with_settings(experiment, settings)
    jobs = [
        (run, tmp_path / run.name, recipe.preflight.wanted_epochs(run, experiment))
        for run in recipe.runs.runs(experiment, settings, list(added))
    ]
    return recipe.preflight.find_problems(experiment.dataset, jobs, tmp_path, sys.executable, settings.gpus, True, True)


@pytest.mark.parametrize("n", [2, 10, 1000])
@pytest.mark.parametrize("tau", [math.e, 4.0, 100.0])
def test_feasible_min_entropies_are_those_of_the_activation(recipe, project_root, n, tau):
    import importlib.util

    spec = importlib.util.spec_from_file_location(
        "timm_era_of_the_recipe", project_root / "overlays/timm/timm/layers/era.py"
    )
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
        assert not [
            problem for problem in problems(recipe, name, tmp_path, num_classes=classes) if problem.startswith("ERA")
        ]
    assert [
        problem
        for problem in problems(recipe, "cifar10-era", tmp_path, num_classes=10, min_entropies=(2.3,))
        if "between -0.0597 and 2.2429" in problem
    ]


def images(folder, classes, split="train"):
    for label in range(classes):
        (folder / split / f"n{label}").mkdir(parents=True)


@pytest.mark.parametrize("validation", ["validation", "val", "eval"])
def test_imagenet_folder(recipe, tmp_path, validation):
    images(tmp_path / "images", 1000)
    images(tmp_path / "images", 1000, validation)
    found = problems(recipe, "imagenet", tmp_path, data_dir=str(tmp_path / "images"))
    assert not [problem for problem in found if problem.startswith("data")]


@pytest.mark.parametrize(
    "train, validation, settings, said",
    [
        (0, 10, {}, "/train (timm also takes training)"),
        (10, 9, {}, "must be the same"),
        (700, 700, {}, "700 classes, 1000 expected"),
        (12, 12, {"num_classes": 10}, "12 classes, 10 expected"),
    ],
)
def test_imagenet_folder_that_will_not_do(recipe, tmp_path, train, validation, settings, said):
    images(tmp_path, train)
    images(tmp_path, validation, "val")
    (problem,) = [
        problem
        for problem in problems(recipe, "imagenet", tmp_path, data_dir=str(tmp_path), **settings)
        if problem.startswith("data")
    ]
    assert said in problem


def test_splits_are_where_timm_looks_for_them(recipe, patched_timm, tmp_path):
    """By timm's own search, which falls back to the whole folder."""
    code = "import json, sys; from timm.data.dataset_factory import _search_split as s; print(json.dumps([s(*pair) for pair in json.load(sys.stdin)]))"
    asked = []
    for split, names in recipe.preflight.SPLITS.items():
        for name in (*names, "other"):
            (tmp_path / split / name / name).mkdir(parents=True)
            asked.append((str(tmp_path / split / name), split))
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=patched_timm, input=json.dumps(asked), capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    for (root, _), found in zip(asked, json.loads(result.stdout)):
        name = os.path.basename(root)
        assert found == (root if name == "other" else f"{root}/{name}")


def test_all_that_is_missing_is_said_at_once(launch, tmp_path):
    """Here in the overlay's folder, which as the source package has no train.py."""
    result = launch(
        "cifar10-sweep",
        DOWNLOAD="0",
        DATA_DIR=str(tmp_path),
        OUTPUT=str(tmp_path / "out"),
        CUDA_VISIBLE_DEVICES="0,1",
        PYTHON="/no/python",
        H0="0.6 7 8",
    )
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
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "name, added, variables, said",
    [
        (
            "cifar10",
            [],
            {"GPUS": "0", "SEED": "x", "EPOCHS": "-1", "NUM_CLASSES": "ten"},
            ["GPUS=0", "SEED=x", "EPOCHS=-1", "NUM_CLASSES=ten"],
        ),
        ("cifar10-sweep", [], {"H0": "0.3 nan", "AUG": "yes"}, ["H0=0.3 nan", "AUG=yes"]),
        ("cifar10", [], {"H0": "0.3"}, ["without ERA"]),
        ("cifar10-aug", [], {"AUG": "0"}, ["with augmentation in the paper"]),
        (
            "cifar10",
            ["--seed=3", "--output", "x", "--era-min-entropy", "1"],
            {},
            ["--seed cannot be set here: SEED does", "--output cannot", "H0 does"],
        ),
        (
            "cifar10",
            ["--see", "3", "--epoch=5"],
            {},
            [
                "--see is short for --seed, which cannot be set here: SEED does.",
                "--epoch is short for --epochs. Write --epochs in full.",
            ],
        ),
        ("cifar10", ["--epochs", "many"], {}, ["invalid int value: 'many'"]),
        ("cifar10", ["--epochs", "-3"], {}, ["--epochs must be at least 1"]),
        ("cifar10", [], {"EPOCHS": "500"}, ["EPOCHS=500: the schedule has 200"]),
        ("cifar10", [], {"SEED": "-5"}, ["SEED=-5: one or several integers from 0"]),
        ("cifar", [], {}, ["no experiment 'cifar'", "cifar10-aug-era"]),
    ],
)
def test_bad_values_are_named_at_start(launch, name, added, variables, said):
    result = launch(name, *added, DRY_RUN="1", **variables)
    assert result.returncode != 0 and result.stdout == "" and "Traceback" not in result.stderr
    for part in said:
        assert part in result.stderr


def test_no_short_form_gets_around_the_checks(recipe):
    """train.py's parser takes any beginning of a flag that no other flag has."""
    for flag in {**recipe.preflight.OWN_FLAGS, **recipe.preflight.READ_FLAGS}:
        for end in range(3, len(flag)):
            for word in (flag[:end], f"{flag[:end]}=1"):
                assert any(
                    f"{flag[:end]} is short for {flag}" in problem
                    for problem in recipe.preflight.flag_problems([word, "1"])
                ), word


def test_cifar10_downloaded_by_half_is_not_there(recipe, tmp_path):
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for name in (
        "data_batch_1",
        "data_batch_2",
        "data_batch_3",
        "data_batch_4",
        "data_batch_5",
        "test_batch",
        "batches.meta",
    ):
        assert not recipe.preflight.has_cifar10(tmp_path)
        (folder / name).touch()
    assert recipe.preflight.has_cifar10(tmp_path)


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
    (tmp_path / "data").mkdir()
    if raised:
        with pytest.raises(
            recipe.launch.Refused,
            match="could not be downloaded into .*/data: no route to host. .* set DATA_DIR. No run was started.",
        ):
            recipe.launch.download_cifar10(tmp_path / "data", python)
    else:
        recipe.launch.download_cifar10(tmp_path / "data", python)
    assert os.listdir(tmp_path / "data") == ([] if raised else ["True"])
    assert f"downloading CIFAR-10 into {tmp_path / 'data'}" in capsys.readouterr().out


def test_environments_that_will_not_do(recipe, tmp_path):
    bare = script(tmp_path / "bare", f'exec "{sys.executable}" -I -S "$@"')
    (problem,) = recipe.preflight.environment_problems(bare)
    assert f"{bare} lacks torch, torchvision, yaml," in problem
    (problem,) = recipe.preflight.environment_problems(
        script(tmp_path / "no-torchrun", """echo '{"lacks": [], "scripts": ""}'""")
    )
    assert "has torch but no torchrun" in problem
    (problem,) = recipe.preflight.environment_problems(script(tmp_path / "no-python", "exit 1"))
    assert "no Python that starts" in problem
    assert recipe.preflight.environment_problems(sys.executable) == []


def test_one_process_on_a_cpu(recipe, tmp_path):
    about_gpus = lambda gpus: [
        problem
        for problem in problems(recipe, "cifar10", tmp_path, "--device", "cpu", gpus=gpus)
        if problem.startswith("GPUs")
    ]
    assert about_gpus(1) == [] and "Set GPUS=1 instead of 2." in about_gpus(2)[0]


def test_model_with_fewer_outputs_than_classes(recipe, tmp_path):
    images(tmp_path, 5)
    images(tmp_path, 5, "val")
    about_data = lambda classes: [
        problem
        for problem in problems(recipe, "cifar10", tmp_path, "--dataset=", data_dir=str(tmp_path), num_classes=classes)
        if problem.startswith("data")
    ]
    assert (
        about_data(5) == about_data(6) == []
        and "5 classes, the model 4 outputs. Set NUM_CLASSES=5." in about_data(4)[0]
    )
    cifar10 = lambda classes: [
        problem for problem in problems(recipe, "cifar10", tmp_path, num_classes=classes) if problem.startswith("data")
    ]
    assert cifar10(10) == [] and "CIFAR-10 has 10 classes, the model 9 outputs" in cifar10(9)[0]


def test_min_entropy_keeps_its_digits(commands):
    found = commands("cifar10-era", SEED="1", H0="0.34330373112 0.34330373113")
    assert [value(command, "--era-min-entropy") for command in found] == ["0.34330373112", "0.34330373113"]
    assert len({value(command, "--experiment") for command in found}) == 2


def test_a_dry_run_tells_of_infeasible_min_entropies(launch):
    assert (
        "note: ERA: H0=9 is not feasible for 1000 classes"
        in launch("cifar10-era", SEED="1", H0="9", DRY_RUN="1").stderr
    )


# Runs that are there already


def run_of(recipe, *added, **settings):
    settings = recipe.runs.Settings(seeds=(42,), **settings)
    return recipe.runs.runs(
        recipe.runs.with_settings(recipe.runs.EXPERIMENTS["cifar10"], settings), settings, list(added)
    )[0]


def begun(recipe, folder, epochs, checkpoint=True):
    (folder / "command.txt").write_text(shlex.join(run_of(recipe).command))
    (folder / "summary.csv").write_text("epoch,eval_top1\n" + "".join(f"{epoch},10\n" for epoch in range(epochs)))
    if checkpoint:
        checkpoint_in(folder, "last")
    return folder


def checkpoint_in(folder, name):
    with zipfile.ZipFile(folder / f"{name}.pth.tar", "w"):  # as torch.save's files are
        return folder / f"{name}.pth.tar"


def test_data_may_lie_elsewhere_when_a_run_goes_on(recipe, tmp_path):
    begun(recipe, tmp_path, epochs=5)
    assert recipe.preflight.folder_problems(run_of(recipe, data_dir="/another place"), tmp_path, 200) == []
    (problem,) = recipe.preflight.folder_problems(run_of(recipe, "--lr", "0.1"), tmp_path, 200)
    assert "(then: nothing; now: --lr 0.1)" in problem
    (problem,) = recipe.preflight.folder_problems(run_of(recipe, gpus=8, data_dir="/another place"), tmp_path, 200)
    assert "(then: 4; now: 8)" in problem


def test_differing_words(recipe):
    assert recipe.preflight.differing_words(["a", "b", "c", "d"], ["a", "x", "y z", "d"]) == ("b c", "x 'y z'")


def test_run_that_lost_its_last_checkpoint_is_not_begun_again(recipe, tmp_path):
    """timm unlinks it, and then renames tmp.pth.tar to it."""
    begun(recipe, tmp_path, epochs=12, checkpoint=False)
    ask = lambda epochs=200: recipe.preflight.folder_problems(run_of(recipe), tmp_path, epochs)
    assert ask(12) == []
    (problem,) = ask()
    assert f"{tmp_path} has 12 epochs and no last.pth.tar" in problem and problem.endswith(
        "Move the folder away to begin again."
    )
    for name in ("checkpoint-9", "checkpoint-10"):
        checkpoint_in(tmp_path, name)
    (tmp_path / "checkpoint-11.pth.tar").write_bytes(b"PK\x03\x04 and no end")
    assert f"cp {tmp_path}/checkpoint-10.pth.tar {tmp_path}/last.pth.tar. Or move the folder" in ask()[0]
    checkpoint_in(tmp_path, "tmp")
    assert f"cp {tmp_path}/tmp.pth.tar {tmp_path}/last.pth.tar" in ask()[0]
    (tmp_path / "tmp.pth.tar").rename(tmp_path / "last.pth.tar")
    assert ask() == []


def test_run_killed_before_its_first_checkpoint_begins_again(recipe, tmp_path):
    begun(recipe, tmp_path, epochs=1, checkpoint=False)
    assert recipe.preflight.folder_problems(run_of(recipe), tmp_path, 200) == []
    begun(recipe, tmp_path, epochs=2, checkpoint=False)
    assert recipe.preflight.folder_problems(run_of(recipe), tmp_path, 200) != []


def test_help_names_every_experiment_and_variable(launch, recipe):
    text = launch("--help").stdout
    assert all(name in text for name in (*recipe.runs.EXPERIMENTS, *VARIABLES[:-1]))
