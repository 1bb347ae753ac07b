class DemoError(Exception):
    """Ends the demo with its message: what is wrong, where, and what to do about it."""
