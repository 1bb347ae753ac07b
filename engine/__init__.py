"""The engine behind apply.py. docs/engine/design.md says what each file is for."""
