"""python -m demo.runner.child SCRIPT [ARGUMENTS]: runs a script that ends, with its process group, when stdin closes.

So however the parent dies, nothing is left running.
"""

import os
import runpy
import signal
import sys
import threading


def end_with_parent() -> None:
    """From now on this process kills its process group as soon as its stdin, a pipe from its parent, is closed."""

    def wait() -> None:
        os.read(0, 1)  # not sys.stdin: its lock, held by this thread, would abort the interpreter's exit
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()


if __name__ == "__main__":
    end_with_parent()
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
