"""Means, intervals and aggregates over seeds. All intervals are of 95 %."""
