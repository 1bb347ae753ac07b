"""What make llm-stage1, make vision-cifar10 and the runs of FastTD3 ask of the active environment."""

import importlib.util
import re
import subprocess
import sys

import pytest

VERL, VERL_09, TIMM, FASTTD3 = "verl v0.4.1", "verl-0.9", "timm v1.0.20", "fasttd3 2d83b6a"
LOCKS = {
    "verl": ("verl-gpu", "verl-gpu-flash-attn"),
    "verl-0.9": ("verl-0.9-gpu", "verl-0.9-gpu-flash-attn"),
    "timm": ("timm-gpu",),
    "fasttd3": ("fasttd3-gpu",),
    "playground": ("fasttd3-playground",),
    "cpu": ("cpu",),
    "verl-0.9-cpu": ("verl-0.9-cpu",),
    "control-cpu": ("control-cpu",),
    "rivals-vision": ("rivals-vision",),
}


@pytest.fixture
def locked(project_root):
    """locked(environment): the versions that its files pin."""

    def versions(environment):
        text = "".join((project_root / f"requirements/{lock}.txt").read_text() for lock in LOCKS[environment])
        return dict(re.findall(r"^([a-z0-9-]+)(?:\[\w+\])?==(\S+)", text, re.MULTILINE))

    return versions


@pytest.fixture
def check(project_root, monkeypatch):
    """check(framework, installed): the problems of an environment with these versions; None: not installed."""
    file = project_root / "requirements/check_gpu_environment.py"
    spec = importlib.util.spec_from_file_location("check_gpu_environment", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def problems(framework, installed):
        def version(name):
            if installed.get(name) is None:
                raise module.metadata.PackageNotFoundError
            return installed[name]

        monkeypatch.setattr(module.metadata, "version", version)
        return list(module.problems(module.NEEDED[framework]))

    return problems


@pytest.mark.parametrize(
    "framework, environment",
    [(VERL, "verl"), (VERL_09, "verl-0.9"), (TIMM, "timm"), (TIMM, "verl"), (FASTTD3, "fasttd3")],
)
def test_the_locked_environments_are_enough(check, locked, framework, environment):
    assert check(framework, locked(environment)) == []


@pytest.mark.parametrize(
    "framework, environment, other, said",
    [
        (VERL, "verl", {"vllm": "0.11.0"}, ["vllm 0.11.0, below 0.9 needed"]),
        (VERL, "verl", {"ray": None}, ["no ray"]),
        (
            VERL_09,
            "verl-0.9",
            {"verl": "0.8.0", "tensordict": "0.9.1"},
            ["verl 0.8.0, at least 0.9 needed", "tensordict 0.9.1, at least 0.10 needed"],
        ),
        (
            TIMM,
            "timm",
            {"torch": "2.3.1+cu121", "safetensors": None},
            ["torch 2.3.1+cu121, at least 2.4 needed", "no safetensors"],
        ),
        (
            FASTTD3,
            "fasttd3",
            {"numpy": "2.3.2", "gymnasium": "1.2.0", "wandb": None},
            ["numpy 2.3.2, below 2 needed", "gymnasium 1.2.0, below 1 needed", "no wandb"],
        ),
    ],
)
def test_what_an_environment_lacks_is_named(check, locked, framework, environment, other, said):
    assert check(framework, {**locked(environment), **other}) == said


def test_the_environment_of_playground_is_not_that_of_humanoid_bench(check, locked):
    """Its mujoco is too new: that is why there are two."""
    problems = check(FASTTD3, locked("playground"))
    assert any(problem.endswith("below 3.2 needed") for problem in problems) and "no dm-control" in problems


@pytest.mark.parametrize("environment", LOCKS)
def test_locks_keep_what_their_in_files_pin(project_root, locked, environment):
    lock, *_ = LOCKS[environment]
    text = (project_root / f"requirements/{lock}.in").read_text()
    pinned = re.findall(r"^([\w-]+)(?:\[\w+\])?==(\S+) *(?:#.*)?$", text, re.MULTILINE)  # those for every Python
    assert pinned
    assert {name.lower(): version for name, version in pinned}.items() <= locked(environment).items()


@pytest.mark.parametrize("framework", ["verl", "verl-0.9", "timm", "fasttd3"])
def test_the_command_names_the_framework(project_root, framework):
    """In a Python without any package."""
    command = [sys.executable, "-S", "-I", project_root / "requirements/check_gpu_environment.py", framework]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 1 and f"is not what {framework} " in result.stdout and "no torch" in result.stdout
