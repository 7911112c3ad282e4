"""The error for an attachment that is not read."""


class Unreadable(Exception):
    """Raised for an attachment without text that this program can read; its message holds nothing of the attachment."""
