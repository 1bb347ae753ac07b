# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""tools/gpu_check.sh on a machine without a GPU: stand-ins for nvidia-smi, and for make, which trains nothing."""

import os
import shutil
import subprocess

import pytest

H100 = "NVIDIA H100 80GB HBM3, 9.0, 81559"


@pytest.fixture
def gpu_check(project_root, tmp_path):
    """gpu_check(parts, make, card): the result, where make is this shell script; its arguments are the target's.

    A script that ends with 124 is one that `timeout` has ended.
    """
    (tmp_path / "tools").mkdir()
    shutil.copy(project_root / "tools/gpu_check.sh", tmp_path / "tools")
    python = tmp_path / ".venv/timm-gpu/bin/python"  # which downloads CIFAR-10
    python.parent.mkdir(parents=True)
    python.symlink_to(shutil.which("true"))

    def run(parts, make="", card=H100):
        stand_ins = {"nvidia-smi": f"echo '{card}'", "make": make, "python3": "", "timeout": 'shift 3; exec "$@"'}
        for name, script in stand_ins.items():
            file = tmp_path / "bin" / name
            file.parent.mkdir(exist_ok=True)
            file.write_text(f"#!/bin/bash\n{script}\n")
            file.chmod(0o755)
        variables = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "MAKE": "make", "CHECKOUTS": "checkouts"}
        variables |= {"ENVIRONMENTS": ".venv", "PARTS": parts}
        command = ["bash", "tools/gpu_check.sh"]
        return subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True)

    return run


TRAINING = """
case $1 in llm-era-1.5b) for a in "$@"; do [[ $a != CKPTS_DIR=* ]] || folder=${a#*=}; done; mkdir -p $folder
for ((step = 1; step <= %d; step++)); do echo '{"step": '$step', "data": {}}' >> $folder/metrics.jsonl; done
exit %d;; esac
"""


@pytest.mark.parametrize(
    "steps, code, said",
    [
        (0, 124, "failed, at least 2 expected: 0 training steps"),  # it hangs in the first rollout
        (1, 124, "failed, at least 2 expected: 1 training steps"),  # or in the first with trained weights
        (3, 124, "passed: 3 training steps, exit code 124"),  # a slow card
        (5, 0, "passed: 5 training steps, exit code 0"),
        (0, 0, "failed, at least 2 expected: 0 training steps"),
        (4, 2, "failed: 4 training steps, exit code 2"),
    ],
)
def test_a_part_has_passed_if_it_has_trained(gpu_check, steps, code, said):
    result = gpu_check("llm", TRAINING % (steps, code))
    assert f"llm: {said}" in result.stdout and result.returncode == ("failed" in said)


def test_rows_are_counted_where_the_launchers_have_their_runs(gpu_check, project_root):
    real = f"PATH='{os.environ['PATH']}' {shutil.which('make')} -s -C {project_root}"
    dry = f'{real} "$@" DRY_RUN=1 CHECKOUTS=/none ENVIRONMENTS=/none 2> /dev/null'
    row = 'folder=${folder/#*results/results}; mkdir -p "$folder"; printf "step,loss\\n100,1.5\\n" > "$folder/%s.csv"'
    make = f"""
        case $1 in
            control-time) folder=$({dry} | sed 's|mkdir -p \\([^ ]*\\) .*|\\1|'); {row % "train"} ;;
            vision-*) folder=$({dry} | sed 's|.*--output \\([^ ]*\\) --experiment \\([^ ]*\\) .*|\\1/\\2|')
                {row % "summary"} ;;
        esac
    """
    result = gpu_check("control vision", make)
    assert "control: passed: 1 rows of 100 steps" in result.stdout and "vision: passed: 1 epochs" in result.stdout


@pytest.mark.parametrize(
    "part, record",
    [
        ("kernels", "bench-gpu-actor.csv"),
        ("llm", "metrics.jsonl"),
        ("control", "time/x-seed1/train.csv"),
        ("vision", "x-seed42/summary.csv"),
    ],
)
def test_what_an_earlier_check_finished_does_not_count(gpu_check, tmp_path, part, record):
    """Its results are removed; the recipes would skip a finished run."""
    file = tmp_path / "results/gpu-check" / part / record
    file.parent.mkdir(parents=True)
    file.write_text("epoch,loss\n0,1.5\n1,1.25\n2,1.0\n")
    result = gpu_check(part)
    assert f"{part}: failed, at least" in result.stdout and result.returncode == 1 and not file.exists()


@pytest.mark.parametrize(
    "parts, card, said",
    [
        ("vision", "NVIDIA B200, 10.0, 183359", "kernels up to 9.0 (Hopper)"),
        ("vision", "NVIDIA GeForce RTX 5090, 12.0, 32607", "has compute capability 12.0"),
        ("kernels vision", "NVIDIA L40S, 8.9, 46068", "make gpu-check PARTS="),
        ("control kernel", H100, "PARTS=control kernel: there are kernels, llm, control and vision."),
        ("vision", "", "nvidia-smi names no GPU here"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_is_set_up(gpu_check, parts, card, said):
    result = gpu_check(parts, "touch started", card)
    assert result.returncode == 1 and said in result.stderr and result.stdout == ""


def test_a_card_of_48_gb_does_for_the_other_parts(gpu_check):
    assert "control: running" in gpu_check("control", card="NVIDIA L40S, 8.9, 46068").stdout
