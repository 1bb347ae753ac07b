# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""A grid whose runs count to 40 and can go on from where they were: for tests of the grid alone.

`python counting.py counts|forgets`: with a checkpoint, and without one. The agent `fails` does not come to its end.
"""

import os
import sys
from pathlib import Path

from recipes import grid
from recipes.launch_options import CONTROL

COUNT = """
import json, os, subprocess, sys, time
from pathlib import Path
agent, path = sys.argv[1], Path("count")
subprocess.Popen(["sleep", "900"])  # as FastTD3's environments, which may outlive it
count = int(path.read_text()) if path.exists() else 0
print("from", count, flush=True)
steps = Path("steps.csv").open("a")
print("" if steps.tell() else "step\\n", end="", file=steps)
while count < 40:
    time.sleep(0.05)
    count += 1
    print(count, file=steps, flush=True)
    Path("new").write_text(str(count))
    os.replace("new", path)
    if agent == "fails":
        sys.exit("no such thing")
Path("run.json").write_text(json.dumps({"finished": True, "total_steps": 40}))
"""


class Counting(grid.TrainingScript):
    launcher = CONTROL
    root, file, own_flags = grid.PROJECT, "tests/counting.py", ("--agent",)

    def __init__(self, name, added=()):
        super().__init__(name, added)
        agents = self.options.agents or ("one", "two")
        output = self.options.output or Path.cwd()
        self.runs = [grid.Run(output / f"x-{agent}-seed1", "x", agent, 1, ("count", agent, *added)) for agent in agents]

    def argv(self, run):
        return [self.python, "-c", COUNT, run.agent]

    def variables(self, run):
        return {"PYTHONPATH": os.environ["PYTHONPATH"]}

    def checkpoint(self, run):
        return run.folder / "count" if self.name == "counts" and (run.folder / "count").exists() else None


if __name__ == "__main__":
    sys.exit(grid.main(CONTROL, __doc__, ("counts", "forgets"), lambda name, added: grid.launch(Counting(name, added))))
