class DemoError(Exception):
    """Ends the command with its message, which says what is wrong, where, and what to do about it."""
