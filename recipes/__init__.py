# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The paper's runs: their settings, data, evaluation and start."""

from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent


class UserError(Exception):
    """What a user is told instead of a traceback: what is wrong, where, and what to do."""
