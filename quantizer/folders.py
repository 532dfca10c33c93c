"""What of a message tells of a machine's folders: absolute paths, cut to their last part.

Owns what such a path looks like, of either system. Knows nothing of who is told.
"""

from __future__ import annotations

import re

__all__ = ["without_folders"]

# Up to the last separator. A folder may have spaces within, but a colon ends the path: compilers write file.c:12.
_FOLDERS = re.compile(
    r"(?<![\w./:<\\])(?:[A-Za-z]:[\\/]|\\\\|~?/)"
    r"(?:[^\s'\"/\\:](?:[^'\"/\\:\n]*[^\s'\"/\\:])?[/\\])*(?=[^\s/\\])"
)


def without_folders(text: str) -> str:
    """Return `text` with absolute paths cut to their last part."""
    return _FOLDERS.sub("", text)
