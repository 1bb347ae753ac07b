"""What make llm-stage1, make vision-cifar10 and the runs of FastTD3 ask of the active environment."""

import importlib.util
import re
import subprocess
import sys

import pytest


@pytest.fixture
def check(project_root, monkeypatch):
    spec = importlib.util.spec_from_file_location(
        "check_gpu_environment", project_root / "requirements/check_gpu_environment.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def problems(installed, framework="verl v0.4.1"):
        def version(name):
            if name not in installed:
                raise module.metadata.PackageNotFoundError
            return installed[name]

        monkeypatch.setattr(module.metadata, "version", version)
        return list(module.problems(module.NEEDED[framework]))

    return problems


def versions(project_root, *locks):
    text = "".join((project_root / f"requirements/{name}.txt").read_text() for name in locks)
    return dict(re.findall(r"^([a-z0-9-]+)(?:\[\w+\])?==(\S+)", text, re.MULTILINE))


@pytest.fixture
def locked(project_root):
    return versions(project_root, "verl-gpu", "verl-gpu-flash-attn")


def test_the_locked_environment_is_enough(check, locked):
    assert check(locked) == []


@pytest.mark.parametrize(
    "package, version, said",
    [
        ("vllm", "0.11.0", "vllm 0.11.0, below 0.9 needed"),
        ("torch", "2.5.1+cu124", "torch 2.5.1+cu124, at least 2.6 needed"),
        ("tensordict", "0.7.0", "below 0.6.3"),
        ("ray", None, "no ray"),
    ],
)
def test_another_version_is_named(check, locked, package, version, said):
    installed = {**locked, package: version} if version else {name: v for name, v in locked.items() if name != package}
    (problem,) = check(installed)
    assert said in problem


def test_the_locked_environments_are_enough_for_timm(check, locked, project_root):
    """That of the LLM runs too."""
    for environment in (versions(project_root, "timm-gpu"), locked):
        assert check(environment, "timm v1.0.20") == []


def test_what_timm_lacks_is_named(check, project_root):
    installed = {**versions(project_root, "timm-gpu"), "torch": "2.3.1+cu121"}
    del installed["safetensors"]
    assert check(installed, "timm v1.0.20") == ["torch 2.3.1+cu121, at least 2.4 needed", "no safetensors"]


def test_the_locked_environment_is_enough_for_fasttd3(check, project_root):
    assert check(versions(project_root, "fasttd3-gpu"), "fasttd3 2d83b6a") == []


def test_the_environment_of_playground_is_not_that_of_humanoid_bench(check, project_root):
    """Its mujoco is too new: that is why there are two."""
    problems = check(versions(project_root, "fasttd3-playground"), "fasttd3 2d83b6a")
    assert any(problem.endswith("below 3.2 needed") for problem in problems) and "no dm-control" in problems


def test_what_fasttd3_lacks_is_named(check, project_root):
    installed = {**versions(project_root, "fasttd3-gpu"), "numpy": "2.3.2", "gymnasium": "1.2.0"}
    del installed["wandb"]
    assert check(installed, "fasttd3 2d83b6a") == [
        "numpy 2.3.2, below 2 needed",
        "gymnasium 1.2.0, below 1 needed",
        "no wandb",
    ]


def test_torch_fits_jax_in_the_environment_of_playground(project_root):
    """jax[cuda12] takes its cuDNN from the same package as torch 2.6.0, which asks for exactly this one."""
    found = versions(project_root, "fasttd3-playground")
    assert (found["torch"], found["nvidia-cudnn-cu12"], found["jax"]) == (
        "2.6.0",
        "9.1.0.70",
        found["jax-cuda12-plugin"],
    )


def test_torchvision_fits_torch(project_root):
    """torchvision 0.21 is built for torch 2.6, in every lock."""
    for lock in ("cpu", "verl-gpu", "timm-gpu"):
        found = versions(project_root, lock)
        assert (found["torch"], found["torchvision"]) == ("2.6.0", "0.21.0")


@pytest.mark.parametrize("framework", ["verl", "timm", "fasttd3"])
def test_the_command_names_the_framework(project_root, framework):
    """In a Python without any package."""
    result = subprocess.run(
        [sys.executable, "-S", "-I", project_root / "requirements/check_gpu_environment.py", framework],
        capture_output=True,
        text=True,
    )
    assert result.returncode == 1 and f"is not what {framework} " in result.stdout and "no torch" in result.stdout
