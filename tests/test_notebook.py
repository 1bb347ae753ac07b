# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""docs/notebook.ipynb: what it shows is what its cells print, and what it says holds.

The cells run one after the other in a plain Python, which needs no Jupyter: none of them has a magic.
"""

import json
import os
import re
import subprocess
import sys

import pytest


@pytest.fixture
def file(project_root):
    return project_root / "docs/notebook.ipynb"


@pytest.fixture
def cells(file):
    return [cell for cell in json.loads(file.read_text())["cells"] if cell["cell_type"] == "code"]


def source(cell):
    return "".join(cell["source"])


def printed(cell):
    return "".join("".join(output["text"]) for output in cell["outputs"] if output["output_type"] == "stream")


def test_the_notebook_was_run_from_the_first_cell_to_the_last(file, cells):
    """GitHub shows what is in the file. A warning, an error or the value of an expression is a surprise there."""
    assert [cell["execution_count"] for cell in cells] == [*range(1, len(cells) + 1)]
    for cell in cells:
        pictures = [output["data"] for output in cell["outputs"] if output["output_type"] == "display_data"]
        texts = [output for output in cell["outputs"] if output.get("name") == "stdout"]
        assert len(pictures) + len(texts) == len(cell["outputs"]), source(cell)
        assert bool(texts) == ("print(" in source(cell)), source(cell)
        assert len(pictures) == source(cell).count("plt.show()"), source(cell)
        assert all("image/png" in data for data in pictures)
    assert file.stat().st_size < 600_000


@pytest.mark.slow
def test_its_assertions_hold_and_it_prints_what_it_shows(file, cells, tmp_path):
    """All but the numbers, which differ between releases of torch and MuJoCo, is as in the file."""
    script = tmp_path / "cells.py"
    script.write_text("\n".join(map(source, cells)))
    env = {**os.environ, "MPLBACKEND": "Agg", "OMP_NUM_THREADS": "1", "PYTHONPATH": ""}
    command = [sys.executable, "-W", "ignore:FigureCanvasAgg", script]
    done = subprocess.run(command, cwd=file.parent, env=env, capture_output=True, text=True, timeout=1800)
    said = [line for line in done.stderr.splitlines() if not line.startswith("ERA is on: ")]
    assert (done.returncode, said) == (0, []), done.stdout + done.stderr
    text, shown = (re.sub(r"-?\d+\.\d+", "x", t) for t in (done.stdout, "".join(map(printed, cells))))
    assert text.split() == shown.split()
