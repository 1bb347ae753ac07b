# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""recipes/llm/slurm_ray.sbatch without Slurm and Ray, for which stand-ins run: what it refuses, and what it starts.

tests/rehearsal/slurm runs it in a real Slurm and Ray.
"""

import os
import shutil
import signal
import subprocess
from contextlib import suppress

import pytest

FIRST, SECOND = SCRIPTS = "run_first.sh", "run_second.sh"
STAND_INS = {
    "srun": 'while [[ $1 == --* ]]; do node=${1#*=}; shift; done; NODE=$node exec "$@"',
    "scontrol": 'case "$2" in hostnames) echo "$NODES";; job) echo " $ARRAY";; *) echo " NodeAddr=name-of-$3 x";; esac',
    "getent": 'echo "getent $* on $NODE" >> log; [[ -z "$FOUND" ]] || echo "$FOUND STREAM"',
    "ray": 'echo "ray $*" >> log; exec sleep "$RAY_LASTS"',
    # Asked for the free GPUs, once Ray has been started on all nodes.
    "python": 'until (($(grep -c ^ray log) == SLURM_JOB_NUM_NODES)); do sleep 0.1; done; echo "$FREE"',
    "scancel": 'echo "scancel $*" >> log',
}
RUN = """
echo "$(basename $0) check=$CHECK_ONLY ray=$RAY_ADDRESS $*" >> log
[[ $CHECK_ONLY != 1 || -z $CHECK_FAILS ]] || { echo "no model" >&2; exit 1; }
[[ $CHECK_ONLY == 1 || $0 != *$FAILS ]]
"""


@pytest.fixture
def job(tmp_path, project_root):
    """job(words..., variables...): the exit code, what the job said on stderr, and what it started."""
    for folder in ("bin", "recipe/era"):
        (tmp_path / folder).mkdir(parents=True)
    for name, line in STAND_INS.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/bash\n{line}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    for name in SCRIPTS:
        (tmp_path / "recipe/era" / name).write_text(RUN)
    shutil.copy(project_root / "recipes/llm/slurm_ray.sbatch", tmp_path)
    slurm = {"JOB_ID": "7", "JOB_NUM_NODES": "2", "GPUS_ON_NODE": "8", "CPUS_ON_NODE": "4", "JOB_NODELIST": "node[1-2]"}
    given = {f"SLURM_{name}": value for name, value in slurm.items()} | {
        **{"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "SLURM_SUBMIT_DIR": str(tmp_path), "HOME": str(tmp_path)},
        **{"PYTHON": f"{tmp_path}/bin/python", "NODES": "node1\nnode2", "FOUND": "10.0.0.1", "FAILS": "none"},
        **{"FREE": "16", "RAY_LASTS": "900"},
    }

    def run(*words, **variables):
        command, env, log = ["bash", "slurm_ray.sbatch", *words], {**given, **variables}, tmp_path / "log"
        log.unlink(missing_ok=True)
        with (tmp_path / "said").open("w") as said:  # no pipe, which the steps of Ray would keep open
            files = {"stdout": subprocess.DEVNULL, "stderr": said}
            process = subprocess.Popen(command, cwd=tmp_path, env=env, start_new_session=True, **files)
        code = process.wait(timeout=900)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # Slurm ends the steps with the job
        return code, (tmp_path / "said").read_text(), log.read_text().splitlines() if log.exists() else []

    return run


def test_scripts_run_in_turn_at_the_address_that_the_last_node_sees(job):
    code, said, log = job(*SCRIPTS, "a=b c", "d=e")
    assert code == 0, said
    assert log[:2] == [f"{FIRST} check=1 ray=none a=b c d=e", "getent ahostsv4 name-of-node1 on node2"]
    head, worker = sorted(log[2:4], key=lambda line: "--head" not in line)
    assert "--head --node-ip-address=10.0.0.1 --port=6379" in head and worker.endswith("--address=10.0.0.1:6379")
    assert log[4:] == [f"{name} check= ray=10.0.0.1:6379 a=b c d=e" for name in SCRIPTS]


@pytest.mark.parametrize("fails, ran", [(FIRST, [FIRST]), (SECOND, [FIRST, SECOND]), ("none", [FIRST, SECOND])])
def test_the_first_failure_ends_the_job(job, fails, ran):
    code, _, log = job(*SCRIPTS, FAILS=fails, SLURM_ARRAY_JOB_ID="5", ARRAY="ArrayTaskThrottle=1 JobName=era")
    assert [line.partition(" ")[0] for line in log if " check= " in line] == ran
    assert (code == 0) == (log[-1] == "scancel --state=PENDING 5") == (fails == "none")


@pytest.mark.parametrize(
    "words, variables, message",
    [
        ([], {}, "the name of a run script is missing"),
        (["a=b"], {}, "the name of a run script is missing"),
        (["run_third.sh"], {}, "no recipe/era/run_third.sh in /"),
        (SCRIPTS, {"CKPTS_DIR": "/x"}, "CKPTS_DIR belongs to one run, and this job has 2."),
        (SCRIPTS, {"TOTAL_STEPS": "9"}, "TOTAL_STEPS belongs to one run"),
        ([FIRST], {"PYTHON": "/no/python"}, "no /no/python. Set PYTHON"),
        ([FIRST], {"SLURM_ARRAY_JOB_ID": "5", "ARRAY": "ArrayTaskThrottle=10"}, "the same run at the same time."),
        ([FIRST], {"CHECK_FAILS": "1"}, "no model"),
        ([FIRST], {"FOUND": ""}, "of node2, asked for name-of-node1, has no IPv4 address of the first node."),
        ([FIRST], {"FOUND": "127.0.1.1"}, "asked for name-of-node1, gives 127.0.1.1 for the first node, node1."),
        ([FIRST], {"RAY_HEAD_IP": "127.0.0.1"}, "RAY_HEAD_IP gives 127.0.0.1 for the first node, node1."),
    ],
)
def test_what_cannot_work_is_named_before_ray_starts(job, words, variables, message):
    code, said, log = job(*words, **variables)
    assert code == 1 and message in said and not any(line.startswith("ray") or "check= " in line for line in log)


def test_address_of_one_run_on_one_node_and_of_the_users(job):
    one_node = {"NODES": "node1", "SLURM_JOB_NUM_NODES": "1", "FREE": "8"}
    assert job(FIRST, CKPTS_DIR="/x", FOUND="127.0.1.1", **one_node)[0] == 0
    code, _, log = job(FIRST, RAY_HEAD_IP="10.1.1.1", FOUND="")
    assert code == 0 and log[-1] == f"{FIRST} check= ray=10.1.1.1:6379 "


def test_a_ray_that_ends_or_lacks_gpus_ends_the_job(job):
    code, said, _ = job(FIRST, FREE="8", RAY_START_SECONDS="0")
    assert code == 1 and "Ray at 10.0.0.1:6379 does not have the GPUs of all 2 nodes" in said
    code, said, _ = job(FIRST, FREE="8", RAY_LASTS="0")
    assert code == 1 and "Ray ended on a node, see above." in said
