# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The engine of apply.py. docs/engine/design.md says how it works; start reading in verbs.py."""
