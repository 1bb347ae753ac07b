# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""A Slurm cluster on one machine: a login node with slurmctld, and two nodes of 32 CPUs and 8 GPUs that exist by name.

Each has a network namespace, and with it a host name, an address, an /etc/hosts and a /tmp/ray of its own. Everything
that runs in the cluster is found by its namespace. A node sees only its own processes: `ray start --head` asks whether
one of all that it sees has its address, which is a loopback address here.
"""

import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from grid_launch import SETTINGS

LOGIN, *NODES = NAMES = ("era-login", "era-node1", "era-node2")
ADDRESSES = dict(zip(NAMES, ("198.18.0.1", "198.18.0.2", "198.18.0.3")))  # a network for tests, by RFC 2544
CONFIGURATION = """
ClusterName=era
SlurmctldHost=era-login
SlurmUser=root
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ProctrackType=proctrack/linuxproc
GresTypes=gpu
SlurmdParameters=config_overrides
SlurmdTimeout=10
KillWait=5
NodeName=era-node[1-2] CPUs=32 Gres=gpu:8
PartitionName=main Nodes=ALL Default=YES
"""


class Cluster:
    def __init__(self, folder: Path):
        self.folder = folder
        stop()  # of what a killed test has left
        (self.folder / "state").mkdir()
        for number in range(8):
            (self.folder / f"gpu{number}").touch()  # Slurm looks only whether it is there
        (self.folder / "gres.conf").write_text(f"Name=gpu File={self.folder}/gpu[0-7]\n")
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")  # which is not used
        (self.folder / "slurm.conf").write_text(CONFIGURATION.format(folder=self.folder))
        (self.folder / "munge.key").write_bytes(os.urandom(128))
        self.connect()
        files = [f"--{name}-file={self.folder}/munge.{name}" for name in ("key", "log", "pid", "seed")]
        self.daemon(LOGIN, "munged", "--foreground", "--force", f"--socket={self.folder}/munge.socket", *files)
        self.daemon(LOGIN, "slurmctld", "-D", "-c")
        for name in NODES:
            self.daemon(name, "slurmd", "-D", "-N", name)
        self.wait_for(lambda: self.show("node").count("State=IDLE ") == len(NODES))

    def connect(self) -> None:
        """The login node has a bridge, and each node a cable to it."""
        Path("/tmp/ray").mkdir(exist_ok=True)
        for name in NAMES:
            run("ip", "netns", "add", name)
            hosts = Path("/etc/netns", name, "hosts")
            hosts.parent.mkdir(parents=True)
            # Debian's installer gives a machine's own name this loopback.
            lines = [f"{'127.0.1.1' if other == name else ADDRESSES[other]} {other}\n" for other in NAMES]
            hosts.write_text("127.0.0.1 localhost\n" + "".join(lines))
            run("ip", "-n", name, "link", "set", "lo", "up")
        run("ip", "-n", LOGIN, "link", "add", "bridge", "type", "bridge")
        run("ip", "-n", LOGIN, "address", "add", f"{ADDRESSES[LOGIN]}/24", "dev", "bridge")
        run("ip", "-n", LOGIN, "link", "set", "bridge", "up")
        for name in NODES:
            run(*("ip", "-n", name, "link", "add", "eth0", "type", "veth", "peer", name, "netns", LOGIN))
            run("ip", "-n", name, "address", "add", f"{ADDRESSES[name]}/24", "dev", "eth0")
            run("ip", "-n", name, "link", "set", "eth0", "up")
            run("ip", "-n", LOGIN, "link", "set", name, "master", "bridge", "up")

    def on(self, name: str, words: Sequence[str | Path]) -> list[str | Path]:
        """The command on a node, with its host name and its /tmp/ray."""
        own = self.folder / f"tmp-{name}"
        own.mkdir(exist_ok=True)
        script = 'mount --bind "$1" /tmp/ray && hostname "$2" && exec "${@:3}"'
        own_processes = ("unshare", "--uts", "--pid", "--fork", "--mount-proc")
        return ["ip", "netns", "exec", name, *own_processes, "bash", "-c", script, "bash", own, name, *words]

    def daemon(self, name: str, *words: str) -> None:
        with (self.folder / f"{name}.txt").open("a") as log:
            given = {"env": self.environment(), "cwd": self.folder, "start_new_session": True}
            subprocess.Popen(self.on(name, words), stdin=subprocess.DEVNULL, stdout=log, stderr=log, **given)

    def environment(self, **variables: str) -> dict[str, str]:
        """Without the user's settings."""
        hidden = (*SETTINGS, "RAY_", "SLURM", "SBATCH")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
        return {**kept, "SLURM_CONF": f"{self.folder}/slurm.conf", **variables}

    def run(self, *words, at: str = LOGIN, check: bool = True, cwd: Path | None = None, **variables):
        return run(*self.on(at, words), check=check, env=self.environment(**variables), cwd=cwd or self.folder)

    def show(self, *words: str) -> str:
        return self.run("scontrol", "--oneliner", "show", *words).stdout

    def state(self, job: str) -> str:
        return "".join(re.findall(r"JobState=(\w+)", self.show("job", job))[:1])

    def wait_until_empty(self) -> None:
        self.wait_for(lambda: not self.run("squeue", "--noheader").stdout)

    def wait_for(self, condition: Callable[[], bool]) -> None:
        until = time.monotonic() + 900
        while not condition():
            assert time.monotonic() < until, self.show("node") + self.show("job")
            time.sleep(0.2)


def run(*words, check: bool = True, **given) -> subprocess.CompletedProcess:
    result = subprocess.run(list(map(str, words)), capture_output=True, text=True, timeout=900, **given)
    assert not check or result.returncode == 0, f"{words}: {result.stdout}{result.stderr}"
    return result


def kill(name: str) -> None:
    """kill -9 of everything on a node."""
    while found := run("ip", "netns", "pids", name, check=False).stdout.split():
        run("kill", "-KILL", *found, check=False)
        time.sleep(0.1)


def stop() -> None:
    for name in NAMES:
        kill(name)
        run("ip", "netns", "delete", name, check=False)
        shutil.rmtree(f"/etc/netns/{name}", ignore_errors=True)
