# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""README's routes: each line runs as it stands, in a process of its own, and shows that ERA is on.

Of the plug-ins, those run whose framework this environment has: test-verl-0.9, test-trl, test-timm, test-control and
test-pins run this file in theirs. Two lines go into a configuration of the user's: tests of
their own start them."""

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
PLUG_INS = {  # by route: the framework's module, and what is printed
    "verl 0.9": ("verl", SETTINGS),
    "TRL 1.9 to 1.16": ("trl", r"EraConfig\(enable=True, low=0\.45"),
    "timm, in your own loop": ("timm", ACTIVATION),
    "stable-baselines3": ("stable_baselines3", r"gaussian_entropy_per_dim -0\.3000 for a target of -0\.3;"),
    "sbx": ("sbx", r"gaussian_entropy_per_dim -0\.[34]\d+ for a target of -0\.5;"),
    "rsl_rl": ("rsl_rl", r"EraHead\(target_entropy=-0\.3"),
    "brax, mujoco_playground": ("brax", "ERA is on"),
    "a loop of your own, torch": ("torch", ACTIVATION),
}
# Before any test has put a checkout's packages on sys.path.
INSTALLED = {module for module, _ in PLUG_INS.values() if importlib.util.find_spec(module)}


@pytest.fixture
def printed(project_root, tmp_path):
    """printed(route, folder): what the first line of the route's third column prints, run in the folder.

    flags end a training that would take its time.
    """

    def run(route: str, folder: Path = tmp_path, flags: str = "") -> str:
        rows = re.findall(r"^\| (.*) \|$", (project_root / "README.md").read_text(), re.MULTILINE)
        cells = {row.split(" | ")[0]: row.split(" | ")[2] for row in rows if row.count(" | ") >= 3}
        lines = re.match(r"(?:in `\S+`[:,] )?((?:`[^`]+`(?:<br>)?)+)", cells[route])[1]
        code = lines.strip("`").replace("`<br>`", "\n")
        command = ["bash", "-c", code + flags] if code.startswith("python3") else ["python3", "-c", code]
        environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join([str(project_root), os.environ.get("PYTHONPATH", "")]).strip(os.pathsep),
        }
        ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=900)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout + ran.stderr

    return run


@pytest.mark.parametrize("route", PLUG_INS)
def test_a_plug_ins_line_shows_that_era_is_on(printed, route):
    module, shown = PLUG_INS[route]
    if module not in INSTALLED:
        pytest.skip(f"{module} is not in this environment")
    assert re.search(shown, printed(route))


def test_the_scripts_lines_show_that_era_is_on(printed, patched_verl, patched_timm):
    if not torch.__version__.startswith("2.6.0"):
        pytest.skip("the scripts' packages are those of verl v0.4.1, with torch 2.6.0")
    assert re.search(ACTIVATION, printed("timm's scripts, v1.0.20 or v1.0.28", patched_timm))
    assert re.search(SETTINGS, printed("verl v0.4.1, the paper's", patched_verl))


def test_fasttd3s_line_shows_that_era_is_on(printed, patched_fasttd3, tmp_path):
    if not torch.__version__.startswith("2.6.0"):
        pytest.skip("FastTD3's packages are those of the CPU environment, with torch 2.6.0")
    checkout = shutil.copytree(patched_fasttd3, tmp_path / "fasttd3", symlinks=True)
    assert "Using FastSAC-ERA" in printed("FastTD3", checkout, " --total_timesteps 0")
