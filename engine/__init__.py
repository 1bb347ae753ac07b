"""The engine behind apply.py, one room per file; docs/engine/usage.md says what each is for.

Imports go one way, from the right to the left:

    common < git < patches < project < sources < index < checkout < switch < apply, verbs, export, port < drift < cli
"""
