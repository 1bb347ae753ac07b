"""What make llm-stage1 asks of the active environment."""

import importlib.util
import re

import pytest


@pytest.fixture
def check(project_root, monkeypatch):
    spec = importlib.util.spec_from_file_location("check_gpu_environment", project_root / "requirements/check_gpu_environment.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def problems(installed):
        def version(name):
            if name not in installed:
                raise module.metadata.PackageNotFoundError
            return installed[name]

        monkeypatch.setattr(module.metadata, "version", version)
        return list(module.problems())

    return problems


@pytest.fixture
def locked(project_root):
    lock = "".join((project_root / f"requirements/{name}.txt").read_text() for name in ("verl-gpu", "verl-gpu-flash-attn"))
    return dict(re.findall(r"^([a-z0-9-]+)(?:\[\w+\])?==(\S+)", lock, re.MULTILINE))


def test_the_locked_environment_is_enough(check, locked):
    assert check(locked) == []


@pytest.mark.parametrize(
    "package, version, said",
    [("vllm", "0.11.0", "vllm 0.11.0, below 0.9 needed"), ("torch", "2.5.1+cu124", "torch 2.5.1+cu124, at least 2.6 needed"), ("tensordict", "0.7.0", "below 0.6.3"), ("ray", None, "no ray")],
)
def test_another_version_is_named(check, locked, package, version, said):
    installed = {**locked, package: version} if version else {name: v for name, v in locked.items() if name != package}
    (problem,) = check(installed)
    assert said in problem
