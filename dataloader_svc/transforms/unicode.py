"""Whether a string of Python's is Unicode: JSON, and names of files, may hold half of a surrogate pair."""

from __future__ import annotations


def is_unicode(text: str) -> bool:
    """Whether UTF-8 can say it, which is what tokenizers take."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
