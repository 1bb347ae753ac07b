# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""List, run and check the paper's experiments: what reproduce.py does.

    paper       experiments.toml: the paper's tables and figures, numbers and claims
    run         the commands of entries, and starts them
    results     reads folders of results, and leaves out what does not count
    verdicts    what counts as reproduced
    figures     the paper's figures from our results
    report      the pages; report.md.j2 and page.html.j2 are their templates
    words       names and numbers as a reader sees them
    cli         the command line

`list` and `run` need the standard library alone.
"""
