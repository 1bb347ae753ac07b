"""The recipes' run scripts on a CPU, a few steps each, with tiny models."""
