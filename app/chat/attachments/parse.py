"""The child of `app.chat.attachments.parser_process` (this module as `__main__`): one untrusted file → what it says.

Owns the order of work: the parser's library is loaded, memory is limited, and only then the file is read. Parsers are
in `app.chat.attachments.parsers`, a module each.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

from app.chat.attachments.parser_process import MAX_GROWTH_BYTES
from app.chat.attachments.parsing import MAX_CHARACTERS, PageChoice, ParsedFile, RefusedFileError
from quantizer.system.memory_limit import limit_growth

_RECURSION_LIMIT = 2_000  # documents nest deeper than programs call; a stack of 8 MiB has room for it
_TOO_LONG = (f"has more than {MAX_CHARACTERS:,} characters.", "Attach a part of it, of a PDF with #1-50.")
_TOO_LARGE = ("needs too much memory to read.", "Attach a smaller part of it.")
_TOO_DEEP = ("is nested too deep to be read.", "Save it as PDF or as text.")


def main() -> None:
    """Read a job from stdin, a line of JSON and the file, and write the reply to stdout."""
    source, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output of native code must not come between the replies

    def send(message: dict[str, Any], *blobs: bytes) -> None:
        replies.write(json.dumps(message).encode() + b"\n")
        for blob in blobs:
            replies.write(blob)
        replies.flush()

    job = json.loads(source.readline())
    parser = import_module(f"app.chat.attachments.parsers.{job['parser']}")
    parser.prepare()
    sys.setrecursionlimit(_RECURSION_LIMIT)
    limit_growth(MAX_GROWTH_BYTES)
    send({"progress": "ready"})
    data = source.read(job["n_bytes"])
    try:
        parsed = _checked(parser.parse(data, PageChoice(**job["pages"]), _progress(send)))
    except RefusedFileError as error:
        cause, remedy = error.cause, error.remedy
    except MemoryError:
        cause, remedy = _TOO_LARGE
    except RecursionError:
        cause, remedy = _TOO_DEEP
    except Exception as error:  # libraries raise anything for a damaged file
        words = " ".join(str(error).split())[:120] or type(error).__name__
        cause, remedy = f"is damaged: {words.rstrip('.')}.", "Write it anew with a program that can open it."
    else:
        text = parsed.text.encode("utf-8", "replace")
        sizes = [len(picture) for picture in parsed.pictures]
        send({"n_text_bytes": len(text), "detail": parsed.detail, "pictures": sizes}, text, *parsed.pictures)
        return
    send({"cause": cause, "remedy": remedy})


def _progress(send: Callable[[dict[str, Any]], None]) -> Callable[[], None]:
    return lambda: send({"progress": "page"})


def _checked(parsed: ParsedFile) -> ParsedFile:
    if len(parsed.text) > MAX_CHARACTERS:
        raise RefusedFileError(*_TOO_LONG)
    return parsed


if __name__ == "__main__":
    main()
