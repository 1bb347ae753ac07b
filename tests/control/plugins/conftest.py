"""Tests of era.stable_baselines3, era.sbx and era.rsl_rl, in an environment of their own: make test-control."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))  # `import era`, as its users do
