# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""recipes/llm/slurm_ray.sbatch in a real Slurm with a real Ray: its address, its run scripts, its pieces."""

import shutil
import sys
from pathlib import Path

import pytest
from cluster import ADDRESSES, NODES
from grid_launch import ROOT

FIRST, SECOND = NODES
pytestmark = pytest.mark.rehearsal
DRIVER = """
import os, socket, ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
ray.init(os.environ["RAY_ADDRESS"])
group = ray.util.placement_group([{"GPU": 8}] * 2, strategy="STRICT_SPREAD")
@ray.remote(num_gpus=8, num_cpus=0, scheduling_strategy=PlacementGroupSchedulingStrategy(group))
def where():
    return socket.gethostname() + " " + os.environ["CUDA_VISIBLE_DEVICES"]
print(ray.cluster_resources()["GPU"], *sorted(ray.get([where.remote(), where.remote()])), sep="\\n")
"""
# Each start trains a step, and does not end before the time limit unless that was the last.
RUN = """
[[ -z "$CHECK_ONLY" ]] || exit 0
steps=$(cat {name} 2> /dev/null || echo 0)
echo "{name} $steps" >> starts
((steps < {last})) || exit 0
echo $((steps + 1)) > {name}
((steps + 1 == {last})) || sleep 900
"""


@pytest.fixture
def checkout(tmp_path):
    folder = tmp_path / "a checkout"
    (folder / "recipe/era").mkdir(parents=True)
    shutil.copy(ROOT / "recipes/llm/slurm_ray.sbatch", folder / "recipe/era")
    (folder / "driver.py").write_text(DRIVER)
    (folder / "recipe/era/run_driver.sh").write_text('[[ -n "$CHECK_ONLY" ]] || exec "$PYTHON" driver.py')
    for name, last in (("first", 3), ("second", 2)):
        (folder / f"recipe/era/run_{name}.sh").write_text(RUN.format(name=name, last=last))
    return folder


@pytest.fixture
def sbatch(cluster, checkout):
    """sbatch(options, words..., variables...): what the command prints. Jobs write into the file `log`."""

    def submit(options, *words, **variables):
        # Ray would start a process for each of the 32 CPUs.
        given = {"PYTHON": sys.executable, "RAY_enable_worker_prestart": "0", **variables}
        command = ("sbatch", "--parsable", "--output=log", *options.split(), "recipe/era/slurm_ray.sbatch", *words)
        return cluster.run(*command, check=False, cwd=checkout, **given).stdout.strip()

    return submit


def test_two_nodes_have_sixteen_gpus_where_each_takes_itself_for_a_loopback(sbatch, checkout):
    sbatch("--wait --nodes=2", "run_driver.sh")
    said, gpus = (checkout / "log").read_text(), "0,1,2,3,4,5,6,7"
    assert f"127.0.1.1 {FIRST}\n" in Path("/etc/netns", FIRST, "hosts").read_text()
    assert f"Ray runs on 2 nodes x 8 GPUs at {ADDRESSES[FIRST]}:6379" in said, said
    assert f"\n16.0\n{FIRST} {gpus}\n{SECOND} {gpus}\n" in said, said


@pytest.mark.parametrize(
    "node, address, instead, message",
    [
        (SECOND, ADDRESSES[FIRST], "", f"of {SECOND}, asked for {FIRST}, has no IPv4 address of the first node."),
        (SECOND, ADDRESSES[FIRST], "127.0.0.1", f"asked for {FIRST}, gives 127.0.0.1 for the first node, {FIRST}."),
        # Slurm says this itself, because slurm.conf has the name alone.
        (FIRST, "127.0.1.1", "", f'Unable to resolve "{FIRST}"'),
    ],
)
def test_a_first_node_without_an_address_is_named(sbatch, checkout, node, address, instead, message):
    hosts = Path("/etc/netns", node, "hosts")
    before = hosts.read_text()
    assert f"\n{address} {FIRST}\n" in before
    hosts.write_text(before.replace(f"\n{address} ", f"\n{instead} " if instead else "\n# "))  # in place: it is mounted
    sbatch("--wait --nodes=2", "run_driver.sh")
    said = (checkout / "log").read_text()
    assert message in said and "\nerror: " in f"\n{said}" and "Ray runs" not in said, said


def test_an_array_trains_two_runs_beyond_time_limits_and_cancels_what_is_left(cluster, sbatch, checkout):
    """Each piece begins where the one before it was ended, whichever run that was."""
    starts = checkout / "starts"
    array = sbatch("--array=1-6%1 --nodes=1 --time=60", "run_first.sh", "run_second.sh")
    after = sbatch(f"--dependency=afterany:{array} --nodes=1", "run_driver.sh", CHECK_ONLY="1")
    expected = []
    for piece, lines in enumerate((["first 0"], ["first 1"], ["first 2", "second 0"]), 1):
        expected += lines
        cluster.wait_for(lambda: starts.exists() and len(starts.read_text().splitlines()) == len(expected))
        assert cluster.state(after) == "PENDING"
        cluster.run("scontrol", "update", f"JobId={array}_{piece}", "TimeLimit=1")
        cluster.wait_for(lambda: cluster.state(f"{array}_{piece}") == "TIMEOUT")
    cluster.wait_until_empty()
    assert starts.read_text().splitlines() == [*expected, "first 3", "second 1"]
    assert cluster.state(f"{array}_4") == cluster.state(after) == "COMPLETED"
    assert "JobState=CANCELLED" in cluster.show("job", array)  # what there is of pieces 5 and 6
