# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""List, run and check the paper's experiments: what reproduce.py does.

    paper        experiments.toml: the paper's tables and figures, numbers and claims
    run          the commands of entries, as a script for bash
    results      reads folders of results, and leaves out what does not count
    verdicts     what counts as reproduced
    statistics   means and their intervals
    figures      the paper's figures from our results
    report       the pages; report.md.j2 and page.html.j2 are their templates

`list` and `run` need the standard library alone.
"""
