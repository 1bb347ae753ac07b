"""What tests in several folders use: `from helpers import processes_with`.

pytest puts this folder on sys.path, as it has a conftest.py. A helpers.py in another test folder would hide this one.
"""

import psutil


def processes_with(**variables: str) -> list[psutil.Process]:
    """The live processes, orphans included, whose environment has these variables with these values."""
    found = []
    for process in psutil.process_iter():
        try:
            if variables.items() <= process.environ().items() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:  # it ended meanwhile, or belongs to somebody else
            continue
    return found
