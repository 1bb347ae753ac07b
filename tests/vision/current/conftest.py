"""era.timm with an installed timm: `make test-timm`, or PYTHONPATH=the folder of an unpacked source package."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))  # `import era`, as its users do
