"""The locks of requirements/, and what the runs on GPUs ask of the active environment."""

import re
import runpy
import subprocess
import sys
from importlib import metadata

import pytest

CPU = ["cpu", "verl-0.9-cpu", "trl-cpu", "axolotl-cpu", "control-cpu", "vllm-cpu"]
GPU = ["verl", "verl-0.9", "timm", "fasttd3"]


@pytest.fixture
def text(project_root):
    return lambda name: (project_root / "requirements" / name).read_text()


@pytest.fixture
def locked(text, project_root):
    """locked(environment): the versions that its files pin."""

    def versions(environment):
        files = (project_root / "requirements").glob(f"{environment}*.txt")
        lines = "\n".join(text(file.name) for file in files)
        return dict(re.findall(r"^([a-z0-9-]+)(?:\[\w+\])?==(\S+)", lines, re.MULTILINE))

    return versions


@pytest.fixture
def check(project_root, monkeypatch):
    """check(framework, installed): the problems of an environment with these versions."""
    module = runpy.run_path(str(project_root / "recipes/llm/check_gpu_environment.py"))

    def problems(framework, installed):
        def version(name):
            if name.lower() not in installed:
                raise metadata.PackageNotFoundError
            return installed[name.lower()]

        monkeypatch.setattr(metadata, "version", version)
        return module["problems"](framework)

    return problems


@pytest.mark.parametrize("framework, environment", [*((name, f"{name}-gpu") for name in GPU), ("timm", "verl-gpu")])
def test_the_locked_environments_are_enough(check, locked, framework, environment):
    assert check(framework, locked(environment)) == []


def test_what_an_environment_lacks_is_named(check, locked):
    verl, timm = locked("verl-gpu"), locked("timm-gpu")
    assert check("verl", verl | {"vllm": "0.11.0", "flash-attn": "2.4.2"}) == [
        "vllm 0.11.0, below 0.9 needed",
        "flash-attn 2.4.2, at least 2.4.3 needed",
    ]
    assert check("timm", timm | {"torch": "2.3.1+cu121"}) == ["torch 2.3.1+cu121, at least 2.4 needed"]
    del timm["safetensors"]
    assert check("timm", timm) == ["no safetensors"]


@pytest.mark.parametrize("environment", [*CPU, "era-release", *(f"{name}-gpu" for name in GPU)])
def test_locks_keep_what_their_in_files_pin(text, environment):
    lines = text(f"{environment}.in") + (text(f"{environment}-torch.txt") if environment in CPU else "")
    lock = text(f"{environment}.txt") + (text(f"{environment}-torch.txt") if environment in CPU else "")
    pinned = re.findall(r"^([\w-]+)(?:\[[\w,]+\])?(==\S+)", lines, re.MULTILINE)
    assert pinned
    for name, version in pinned:
        assert re.search(rf"^{name}(\[[\w,]+\])?{re.escape(version)}(\s|$)", lock, re.MULTILINE | re.IGNORECASE), name


def test_the_tools_have_one_version_everywhere(text, locked, project_root):
    """In lint.in and its lock, in the extra dev, and in the hooks of pre-commit."""
    tools = dict(re.findall(r"^(ruff|mypy)==(\S+)", text("lint.in"), re.MULTILINE))
    extra = re.search(r"^dev = \[(.*)\]", (project_root / "pyproject.toml").read_text(), re.MULTILINE)[1]
    assert tools == dict(re.findall(r'"(ruff|mypy)==([^"]+)"', extra))
    assert tools.items() <= locked("lint").items()
    assert f"rev: v{tools['ruff']}\n" in (project_root / ".pre-commit-config.yaml").read_text()


@pytest.mark.parametrize("environment", [*CPU, "era-release", *(f"{name}-gpu" for name in GPU)])
def test_lock_has_hashes_and_a_cpus_torch_is_apart(text, environment):
    packages = [one for one in re.split(r"\n(?=\S)", text(f"{environment}.txt")) if not one.startswith("#")]
    assert len(packages) > 40 and all("--hash=sha256:" in one for one in packages)
    torchs = r"^(torch|torchvision|triton|nvidia-(?!ml-py).*|cuda-.*)=="
    pins_torch = re.search(torchs, text(f"{environment}.txt"), re.MULTILINE)
    assert bool(pins_torch) == environment.endswith("-gpu")


@pytest.mark.parametrize("framework", GPU)
def test_command_needs_no_package_and_names_the_framework(project_root, framework):
    command = [sys.executable, "-S", "-I", project_root / "recipes/llm/check_gpu_environment.py", framework]
    result = subprocess.run(command, capture_output=True, text=True)
    name = framework.partition("-")[0]
    assert result.returncode == 1 and f"is not what {name} " in result.stdout.lower() and "no torch" in result.stdout
