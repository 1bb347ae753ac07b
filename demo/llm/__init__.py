# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""`make demo`: verl's own trainer on a CPU, once as GRPO and once with ERA, from the same seed."""
