#!/usr/bin/env python3
"""List, run and check the paper's experiments (experiments.toml).

    python3 reproduce.py list [ROW] [--domain llm] [--place tab:main_results] [--state "not run"]
    python3 reproduce.py run ROW [--seeds 1 2 3] [--dry-run] [--slurm]
    python3 reproduce.py collect [FOLDER ...]
    python3 reproduce.py report [FOLDER ...]

Needs Python 3.11 or newer. collect and report also need the packages of .venv/cpu and switch to it if it is there
(`make report` sets it up). docs/reproduce.md explains the verbs; the code is in ledger/.
"""

import os
import signal
import sys

if sys.version_info < (3, 11):  # before anything is imported that an older Python cannot read
    sys.stderr.write(
        "error: reproduce.py needs Python 3.11 or newer, this is Python {}.{}.{}\n".format(*sys.version_info[:3])
    )
    sys.exit(2)

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))

from ledger.cli import main  # noqa: E402

if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends it without a word
    sys.stdout.reconfigure(errors="backslashreplace")  # for a terminal that is not UTF-8
    sys.exit(main(sys.argv[1:]))
