# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Grids of recipes/grid.py as arrays in a real Slurm, and on two Ray nodes: cancelled, requeued, and on a lost node."""

import re
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from cluster import ADDRESSES, NODES, kill
from grid_launch import ROOT

AGENTS = ("one", "two")
pytestmark = pytest.mark.rehearsal


@pytest.fixture
def grid(cluster, tmp_path):
    """The recipes in a folder with a space, and tests/counting.py there in the place of recipes.control's: two runs.

    Its runs wait at 10 for go(). launch() starts it on the login node, as an array unless its variables say otherwise.
    """
    project = tmp_path / "a project"
    for package in ("era", "recipes"):
        shutil.copytree(ROOT / package, project / package)
    text, step = (ROOT / "tests/counting.py").read_text(), "    time.sleep(0.05)\n"
    assert text.count(step) == 1
    hold = f"    while count == 10 and not Path({str(project / 'go')!r}).exists():\n        time.sleep(0.1)\n"
    text = text.replace(step, step + hold).replace("tests/counting.py", "recipes/control/__main__.py")
    (project / "recipes/control/__main__.py").write_text(text)
    folders = [project / f"runs/x-{agent}-seed1" for agent in AGENTS]

    def launch(**variables):
        given = {"PYTHONPATH": str(project), "PYTHON": sys.executable, "OUTPUT": str(project / "runs"), "SLURM": "1"}
        words = (sys.executable, "-m", "recipes.control", "counts")
        return cluster.run(*words, check=False, cwd=project, **given | variables)

    def submit(**variables):
        result = launch(**variables)
        assert result.returncode == 0, result.stderr
        return re.search(r"Submitted batch job (\d+)", result.stdout)[1]

    def come_to_10():
        files = [folder / "count" for folder in folders]
        cluster.wait_for(lambda: all(file.exists() and file.read_text() == "10" for file in files))

    def logs():
        return [(folder / "log.txt").read_text().splitlines() for folder in folders]

    def said(job, index):
        return (project / f"runs/slurm-{job}_{index}.txt").read_text()

    go = (project / "go").touch
    return SimpleNamespace(launch=launch, submit=submit, come_to_10=come_to_10, logs=logs, said=said, go=go)


def finish(cluster, grid):
    grid.go()
    cluster.wait_until_empty()
    assert "0 of 2 runs to train" in grid.launch().stdout


def test_an_array_trains_each_run_once_with_the_cpus_it_asks_for(cluster, grid):
    first = grid.submit(CPUS_PER_RUN="3", SBATCH_ARRAY_INX="1-6%1")
    grid.come_to_10()
    assert "NumCPUs=3 " in cluster.show("job", f"{first}_0")
    second = grid.submit()
    for index in range(2):
        cluster.wait_for(lambda: cluster.state(f"{second}_{index}") == "FAILED")
        assert "is being trained by another launch" in grid.said(second, index)
    finish(cluster, grid)
    assert grid.logs() == [["from 0"], ["from 0"]]
    assert all(f"1 of 1: x-{agent}-seed1 finished" in grid.said(first, index) for index, agent in enumerate(AGENTS))


@pytest.mark.parametrize(
    "grid, asked",
    [
        ("control humanoidbench", "NumCPUs=16 .*TresPerNode=gres:gpu:1 "),
        ("control ppo", "NumCPUs=1 "),
        ("vision cifar10", "NumCPUs=20 .*TresPerNode=gres:gpu:4 "),
    ],
)
def test_the_papers_grids_ask_for_what_their_runs_need(cluster, grid, asked):
    python = f"{sys.executable} -m recipes.{grid}".split()
    script = cluster.run(*python, cwd=ROOT, SLURM="1", DRY_RUN="1", OUTPUT=str(cluster.folder)).stdout
    (cluster.folder / "script").write_text(script)
    job = cluster.run("sbatch", "--parsable", "--hold", "script").stdout.strip()
    assert re.search(asked, cluster.show("job", job)), cluster.show("job", job)


def test_what_scancel_ends_goes_on(cluster, grid):
    job = grid.submit()
    grid.come_to_10()
    cluster.run("scancel", job)
    cluster.wait_until_empty()
    grid.submit()
    finish(cluster, grid)
    assert grid.logs() == [["from 0", "from 10"]] * 2


def test_a_requeued_run_goes_on_and_its_log_is_kept(cluster, grid):
    job = grid.submit()
    grid.come_to_10()
    cluster.run("scontrol", "requeue", f"{job}_0")
    cluster.wait_for(lambda: grid.logs()[0] == ["from 0", "from 10"])
    finish(cluster, grid)
    assert grid.logs() == [["from 0", "from 10"], ["from 0"]]
    assert grid.said(job, 0).count("1 of 1 runs to train") == 2


def test_the_run_of_a_lost_node_goes_on_on_the_other(cluster, grid):
    job = grid.submit(CPUS_PER_RUN="20")  # of 32: one run per node
    grid.come_to_10()
    (lost,) = re.findall(r" NodeList=(\S+)", cluster.show("job", f"{job}_1"))
    kill(lost)
    cluster.wait_for(lambda: cluster.state(f"{job}_1") == "PENDING")
    finish(cluster, grid)
    assert grid.logs() == [["from 0"], ["from 0", "from 10"]] and lost not in cluster.show("job", f"{job}_1")


def test_only_the_run_of_a_lost_ray_node_is_trained_again(cluster, grid):
    address, (first, second) = f"{ADDRESSES[NODES[0]]}:6379", NODES
    ray = (str(Path(sys.executable).with_name("ray")), "start", "--block", "--num-cpus=1", "--disable-usage-stats")
    cluster.daemon(first, *ray, "--head", f"--node-ip-address={ADDRESSES[first]}", "--port=6379")
    cluster.daemon(second, *ray, f"--address={address}")
    given = {"at": first, "SLURM": "", "RAY_ADDRESS": address}
    has_both = f"import ray; ray.init('{address}'); assert ray.cluster_resources()['CPU'] == 2"
    cluster.wait_for(lambda: cluster.run(sys.executable, "-c", has_both, at=first, check=False).returncode == 0)
    with ThreadPoolExecutor() as threads:
        launched = threads.submit(grid.launch, **given)
        grid.come_to_10()
        kill(second)
        grid.go()
        result = launched.result()
    (lost,) = re.findall("x-(.*)-seed1", result.stderr)
    again = grid.launch(**given)
    assert again.returncode == 0 and "1 of 2 runs to train" in again.stdout, again.stdout + again.stderr
    assert grid.logs() == [["from 0", "from 10"] if agent == lost else ["from 0"] for agent in AGENTS]
