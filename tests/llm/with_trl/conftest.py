# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))  # `import era`, as its users do
