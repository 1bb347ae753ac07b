"""What a user is told in place of a traceback."""


class LedgerError(Exception):
    """A mistake of the user's or of a file, in words: what, where, what was expected, what to do."""
