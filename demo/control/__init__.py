# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""`make demo-control`: FastTD3's own train.py on a CPU, as FastTD3 and as FastSAC-ERA, on a Gymnasium task."""
