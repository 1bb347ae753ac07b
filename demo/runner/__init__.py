# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""What the demos share: a command line, trainings in child processes, tables and pictures."""
