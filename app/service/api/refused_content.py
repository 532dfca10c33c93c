"""Content that was refused lately, so that it is refused once.

Some clients leave a refused picture in the conversation and put the next question into the same message: to refuse it
again would end the conversation for good. Owns the memory of it, which is bounded.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict

MAX_REMEMBERED = 256


class RefusedContent:
    """The digests of content that was refused, the latest last."""

    def __init__(self) -> None:
        self._digests: OrderedDict[bytes, None] = OrderedDict()

    @property
    def is_empty(self) -> bool:
        return not self._digests

    def is_known(self, content: str) -> bool:
        """Return whether `content` was refused before."""
        return _digest(content) in self._digests

    def add(self, content: str) -> None:
        """Remember that `content` is refused."""
        digest = _digest(content)
        self._digests[digest] = None
        self._digests.move_to_end(digest)
        while len(self._digests) > MAX_REMEMBERED:
            self._digests.popitem(last=False)


def _digest(content: str) -> bytes:
    return hashlib.sha256(content.encode("utf-8", "surrogatepass")).digest()
