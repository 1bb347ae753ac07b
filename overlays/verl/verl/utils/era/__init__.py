# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Entropy Regularizing Activation (ERA): the files of the package `era` for language models."""
