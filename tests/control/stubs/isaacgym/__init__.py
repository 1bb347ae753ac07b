"""Replaces Isaac Gym, which FastTD3 imports before torch."""
