# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""`make demo-vision`: one of timm's networks on a CPU, without and with ERA, on small images."""
