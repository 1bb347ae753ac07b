"""python -m demo.vision.child SCRIPT [ARGUMENTS]: a script that ends, with all that it started, when stdin closes.

So a parent that dies in whatever way leaves nothing behind. timm and this repository must be on PYTHONPATH.
"""

import runpy
import sys

from demo.llm.cpu_trainer import end_with_parent

if __name__ == "__main__":
    end_with_parent()
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
