#!/usr/bin/env python3
"""Put the ERA overlays onto pinned upstream sources, and take them off again.

Needs Python 3.10 or newer and git 2.30 or newer, nothing else. The work is done in engine/; see docs/engine/usage.md.
"""

import sys

if sys.version_info < (3, 10):  # noqa: UP036  before anything is imported that an older Python cannot read
    sys.stderr.write(
        "error: apply.py needs Python 3.10 or newer, this is Python {}.{}.{}\n".format(*sys.version_info[:3])
    )
    sys.exit(2)

import _signal  # noqa: E402  the C part of signal, which itself would first load other modules: Ctrl-C could land there
import os  # noqa: E402

if not hasattr(_signal, "pthread_sigmask"):
    sys.stderr.write("error: apply.py needs a POSIX system: Linux, macOS, or WSL on Windows\n")
    sys.exit(2)
_signal.pthread_sigmask(_signal.SIG_BLOCK, {_signal.SIGINT})  # Ctrl-C waits until the engine looks at it

if sys.getfilesystemencoding() != "utf-8":  # file names are bytes for git; they must read the same in every locale
    os.execv(sys.executable, [sys.executable, "-X", "utf8"] + sys.orig_argv[1:])

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))

from engine.cli import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
