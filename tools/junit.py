# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Runs pytest in another Python, and reads the outcomes from its JUnit file."""

import os
import subprocess
from pathlib import Path
from xml.etree import ElementTree

KINDS = ("failure", "error", "skipped")


def outcomes(python: str | Path, arguments: list, folder: Path, **variables: str) -> dict[str, tuple[str, str]]:
    """Of each test, by class and name: "passed" or one of KINDS, and the reason. Empty if pytest could not run.

    Args:
        folder: in which pytest is started, on a CPU and without the network; it gets junit.xml, with what tests print.
        variables: of the environment, beside this process's.
    """
    report = folder / "junit.xml"
    flags = ["-q", "--tb=short", "--disable-warnings", "-p", "no:cacheprovider", f"--junitxml={report}"]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", **variables}
    subprocess.run([python, "-m", "pytest", *flags, *arguments], env=environment, cwd=folder, stdout=subprocess.DEVNULL)
    found = {}
    for case in ElementTree.parse(report).iter("testcase") if report.exists() else ():
        elements = [(kind, case.find(kind)) for kind in KINDS if case.find(kind) is not None]
        outcome = [(kind, element.get("message", "")) for kind, element in elements] or [("passed", "")]
        found[f"{case.get('classname')}::{case.get('name')}"] = outcome[0]
    return found
