"""python -m demo.control.child FOLDER SCRIPT [ARGUMENTS]: a script that runs in the folder and ends when stdin closes.

train.py leaves models/ and logs/ where it runs. FastTD3's scripts and this repository must be on PYTHONPATH.
"""

import os
import runpy
import sys

from demo.llm.cpu_trainer import end_with_parent

if __name__ == "__main__":
    end_with_parent()
    os.chdir(sys.argv[1])
    sys.argv = sys.argv[2:]
    runpy.run_path(sys.argv[0], run_name="__main__")
