"""The verbs of apply.py, a file each."""
