#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Put the ERA overlays onto pinned upstream sources, and take them off again.

Needs Python 3.10 or newer and git 2.30 or newer, nothing else. The work is done in engine/; see docs/engine/usage.md.
"""

import os
import sys

if sys.version_info < (3, 10):  # noqa: UP036  before anything is imported that an older Python cannot read
    sys.stderr.write(
        "error: apply.py needs Python 3.10 or newer, this is Python {}.{}.{}\n".format(*sys.version_info[:3])
    )
    sys.exit(2)
if os.name != "posix":
    sys.exit("error: apply.py needs a POSIX system: Linux, macOS, or WSL on Windows")
if sys.getfilesystemencoding() != "utf-8":  # file names are bytes for git; they must read the same in every locale
    os.execv(sys.executable, [sys.executable, "-X", "utf8"] + sys.orig_argv[1:])

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))

try:
    from engine.cli import main
except KeyboardInterrupt:
    sys.stderr.write("error: stopped; nothing was changed\n")
    sys.exit(130)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
