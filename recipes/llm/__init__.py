# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The paper's language models, in verl."""
