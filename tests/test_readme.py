# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""README's code, the first lines of the page of each of its routes, and examples/: they run as they stand, in processes
of their own, and show that ERA is on.

Of the plug-ins, those run whose framework this environment has: test-verl-0.9, test-trl, test-timm, test-control and
test-pins run this file in theirs. An example that trains only in an environment of the user's says so."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

SETTINGS = r"enable: true\nlow: 0\.45\nhigh: 3\.0"
ACTIVATION = r"EntropyRegularizingActivation\(num_classes=10, min_entropy=0\.6"
ROUTES = {  # by the words of README's first column: the framework's module, and what the page's first lines print
    "verl 0.9": ("verl", SETTINGS),
    "TRL 1.9 to 1.16": ("trl", r"EraConfig\(enable=True, low=0\.45"),
    "timm": ("timm", ACTIVATION),
    "stable-baselines3": ("stable_baselines3", r"gaussian_entropy_per_dim -0\.3000 for a target of -0\.3;"),
    "sbx": ("sbx", r"gaussian_entropy_per_dim -0\.[34]\d+ for a target of -0\.5;"),
    "rsl_rl": ("rsl_rl", r"EraHead\(target_entropy=-0\.3"),
    "brax, mujoco_playground": ("brax", "ERA is on"),
    "a loop of your own": ("torch", ACTIVATION),
}
PATCHED = {"verl v0.4.1": SETTINGS, "timm's scripts": ACTIVATION, "FastTD3": "Using FastSAC-ERA"}
ENTROPY = r"from -0\.30000?\d* to -0\.(?:3000|2999)\d* nats"
EXAMPLES = {  # the framework's module, arguments that end it soon, and what it prints at the end
    "sb3_ppo.py": (
        "stable_baselines3",
        "--steps 2048",
        r"gaussian_entropy_per_dim +\| -0\.3 [\s\S]*of the mean action",
    ),
    "sbx_sac.py": ("sbx", "--steps 200", r"ERA after \d+ steps: [\s\S]*of the mean action"),
    "rsl_rl_ppo.py": ("rsl_rl", "--iterations 2", ENTROPY),
    "brax_ppo.py": ("brax", "--steps 2048 --envs 64", r"ERA is on: [\s\S]*the action in a first state: \[.*\d.*\]"),
    "timm_classifier.py": ("timm", "--model test_resnet --steps 30", r"% right; smallest entropy 0\.9[89]"),
    "own_grpo_step.py": ("torch", "", r"scaled_token_fraction 0\.[1-9]\d+\nera/dropped_token_fraction 0\.\d*[1-9]"),
}
IN_PATCHED = ("verl_0.4.1.sh", "timm_scripts.sh", "fasttd3.sh")
ELSEWHERE = ("trl_grpo.py", "verl_0.9.sh", "axolotl_grpo.yaml")  # below, and tests/llm/with_axolotl
# Before any test has put a checkout's packages on sys.path.
INSTALLED = {module for module, *_ in (*ROUTES.values(), *EXAMPLES.values()) if importlib.util.find_spec(module)}


@pytest.fixture
def printed(project_root, tmp_path):
    """printed(command, folder, **variables): what the command prints, run in the folder with this environment."""

    def run(command: list, folder: Path = tmp_path, **variables) -> str:
        environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "PYTHONPATH": os.pathsep.join([str(project_root), os.environ.get("PYTHONPATH", "")]).strip(os.pathsep),
            **variables,
        }
        ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=900)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout + ran.stderr

    return run


@pytest.fixture
def first_lines(project_root):
    """first_lines(route): the command of the page's first block of code, without what installs and changes folders."""

    def command(route: str, flags: str = "") -> list:
        readme = (project_root / "README.md").read_text()
        ((page, anchor),) = re.findall(rf"^\| \[{re.escape(route)}\]\(([^)#]+)#?([^)]*)\)", readme, re.MULTILINE)
        text = (project_root / page).read_text()
        if anchor:
            heading = next(h for h in re.findall(r"^## .*", text, re.MULTILINE) if slug(h) == anchor)
            text = text[text.index(heading) :]
        language, code = re.search(r"^```(\w*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL).groups()
        if language == "python":
            return [sys.executable, "-c", code]
        lines = [line for line in code.splitlines() if not re.match(r"pip install|python3 apply\.py|cd ", line)]
        return ["bash", "-ec", "\n".join(lines) + flags]

    return command


def slug(heading: str) -> str:
    return re.sub(r"[^\w -]", "", heading.removeprefix("## ").lower()).replace(" ", "-")


def require(module: str) -> None:
    if module not in INSTALLED:
        pytest.skip(f"{module} is not in this environment")


def require_those_of_the_scripts() -> None:
    there = torch.__version__.startswith("2.6.0") and all(map(importlib.util.find_spec, ("torchvision", "wandb")))
    if not there:
        pytest.skip("the packages of patched checkouts are those of the CPU environment, with torch 2.6.0")


def test_readmes_code_prints_what_readme_says(project_root, printed):
    readme = (project_root / "README.md").read_text()
    code, shown = re.search(r"^```python\n(.*?)^```\n\nprints `(.*?)`", readme, re.MULTILINE | re.DOTALL).groups()
    assert shown in printed([sys.executable, "-c", code])
    assert len(readme.splitlines()) <= 100


@pytest.mark.parametrize("route", ROUTES)
def test_the_page_of_a_plug_in_begins_with_what_shows_that_era_is_on(printed, first_lines, route):
    module, shown = ROUTES[route]
    require(module)
    assert re.search(shown, printed(first_lines(route)))


@pytest.mark.parametrize("route", PATCHED)
def test_the_page_of_a_patched_checkout_begins_so_too(request, printed, first_lines, tmp_path, route):
    require_those_of_the_scripts()
    upstream = re.match(r"\w+", route)[0].lower()
    folder, flags = request.getfixturevalue(f"patched_{upstream}"), ""
    if route == "FastTD3":  # it would train, and writes logs beside it
        folder, flags = shutil.copytree(folder, tmp_path / "fasttd3", symlinks=True), " --total_timesteps 0"
    assert re.search(PATCHED[route], printed(first_lines(route, flags), folder))


# examples/


def test_readme_has_every_example_and_each_is_run_or_named(project_root):
    files = {file.name for file in (project_root / "examples").iterdir() if file.is_file()}
    readme = (project_root / "README.md").read_text()
    assert set(re.findall(r"\(examples/([\w.]+)\)", readme)) == files
    run = {*EXAMPLES, *IN_PATCHED, *ELSEWHERE}
    assert run <= files
    for name in files - run:
        assert "# Not run as a whole" in (project_root / "examples" / name).read_text()


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs(printed, name):
    module, arguments, shown = EXAMPLES[name]
    require(module)
    assert re.search(shown, printed([sys.executable, "-m", f"examples.{name[:-3]}", *arguments.split()]))


def test_the_example_of_trl_runs(project_root, printed, tmp_path):
    pytest.importorskip("trl")
    make = "import sys, tiny_grpo, torch; tiny_grpo.write(sys.argv[1], torch.float32); "
    make += "tiny_grpo.tokenizer().save_pretrained(sys.argv[1])"
    paths = os.pathsep.join(str(project_root / folder) for folder in (".", "tests/llm/with_trl", "tests/llm"))
    printed([sys.executable, "-c", make, str(tmp_path / "model")], PYTHONPATH=paths)
    command = [sys.executable, "-m", "examples.trl_grpo", "--model", "model", "--steps", "2", "--low", "2.9"]
    said = printed(command)
    assert "ERA is on: EraConfig(enable=True, low=2.9" in said
    assert re.search(r"response entropy [23]\.\d+ nats in step 1, [23]\.\d+ in the last; omega_low is 2\.9", said), said


def test_the_example_of_verl_0_9_has_settings_that_verl_knows(project_root, printed):
    require("verl")
    said = printed(["bash", str(project_root / "examples/verl_0.9.sh"), "--cfg", "job"])
    assert re.search(r"era:\n +enable: true\n +low: 0\.45", said) and "lr: 1.0e-06" in said


def test_the_examples_of_patched_checkouts(
    project_root, printed, patched_verl, patched_timm, patched_fasttd3, tmp_path
):
    """verl's settings are known, timm trains a tiny folder of images, FastTD3 starts."""
    require_those_of_the_scripts()
    from PIL import Image

    examples = project_root / "examples"
    said = printed(["bash", examples / "verl_0.4.1.sh", "--cfg", "job"], CHECKOUTS=str(patched_verl.parent))
    assert re.search(r"era:\n +enable: true\n +low: 0\.45", said) and "lr: 1.0e-06" in said
    for split in ("train", "validation"):
        for label in ("black", "white"):
            (tmp_path / "data" / split / label).mkdir(parents=True)
            for number in range(4):
                Image.new("RGB", (64, 64), label).save(tmp_path / "data" / split / label / f"{number}.png")
    few = "--num-classes 2 --epochs 1 --batch-size 4 --workers 1 --era-min-entropy 0.3"
    printed(["bash", examples / "timm_scripts.sh", "data", *few.split()], CHECKOUTS=str(patched_timm.parent))
    assert "eval_entropy_min" in next(tmp_path.glob("results/**/summary.csv")).read_text()
    checkouts = tmp_path / "checkouts"
    shutil.copytree(patched_fasttd3, checkouts / "fasttd3", symlinks=True)
    flags = "--env_name Gym-HalfCheetah-v4 --no_cuda --total_timesteps 0"
    said = printed(["bash", examples / "fasttd3.sh", *flags.split()], CHECKOUTS=str(checkouts))
    assert "Using FastSAC-ERA" in said
