"""The child of `app.chat.attachments.parser_process` (this module as `__main__`): an untrusted file → what it says, and
where that is wanted one more of its kind.

Owns the order of work: the parser's library is loaded, memory is limited, and only then a file is read. It ends with
the process that started it. The parsers are in `pdf`, `documents` and `media`.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from importlib import import_module
from queue import SimpleQueue
from typing import Any, BinaryIO, TypeAlias

from app.chat.attachments import documents, media, pdf
from app.chat.attachments.parser_process import MAX_GROWTH_BYTES
from app.chat.attachments.parsing import MAX_CHARACTERS, PageChoice, ParsedFile, RefusedFileError
from app.common.extras import AUDIO
from app.common.terminal import printable_line
from quantizer.system.child_request import exit_with_parent
from quantizer.system.memory_limit import limit_growth

Parser: TypeAlias = Callable[[bytes, PageChoice, Callable[[], None]], ParsedFile]
# By the parser of a `FileKind`: the libraries to load while memory is not limited yet, and the function that reads.
_PARSERS: Mapping[str, tuple[tuple[str, ...], Parser]] = {
    "pdf": (("pypdfium2", "PIL.PngImagePlugin"), pdf.parse_pdf),  # Pillow writes the pages
    "docx": (("mammoth", "bs4", "markdownify"), documents.parse_docx),
    "html": (("bs4", "markdownify"), documents.parse_html),
    "web page": (("bs4", "markdownify", "trafilatura"), documents.parse_web_page),
    "notebook": ((), documents.parse_notebook),
    "table": ((), documents.parse_table),
    "picture": (tuple(f"PIL.{name}ImagePlugin" for name in media.PILLOW_PLUGINS), media.parse_picture),
    "sound": ((AUDIO.module,) if AUDIO.is_installed else (), media.parse_sound),
}
_RECURSION_LIMIT = 2_000  # documents nest deeper than programs call; a stack of 8 MiB has room for it
_CONTROLS = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\ufffe\uffff]")
_TOO_LONG = (f"has more than {MAX_CHARACTERS:,} characters.", "Attach a part of it, of a PDF with #1-50.")
_TOO_LARGE = ("needs too much memory to read.", "Attach a smaller part of it.")
_TOO_DEEP = ("is nested too deep to be read.", "Save it as PDF or as text.")


def load_parser(name: str) -> Parser:
    """Import the libraries of a parser, and return it."""
    libraries, parse = _PARSERS[name]
    for library in libraries:
        import_module(library)
    return parse


def read_document(parse: Parser, data: bytes, pages: PageChoice, progress: Callable[[], None]) -> ParsedFile:
    """Return what a file says, without control characters. Raises RefusedFileError for whatever is wrong with it."""
    try:
        parsed = parse(data, pages, progress)
    except RefusedFileError:
        raise
    except MemoryError as error:
        raise RefusedFileError(*_TOO_LARGE) from error
    except RecursionError as error:
        raise RefusedFileError(*_TOO_DEEP) from error
    except Exception as error:  # libraries raise anything for a damaged file
        words = printable_line(str(error))[:120].strip() or type(error).__name__
        cause = f"is damaged: {words.rstrip('.')}."
        raise RefusedFileError(cause, "Write it anew with a program that can open it.") from error
    text = _CONTROLS.sub("", parsed.text.replace("\r\n", "\n").replace("\r", "\n"))
    if parsed.text and not text and not parsed.pictures:
        raise RefusedFileError("has no text.", "Attach another file.")
    if len(text) > MAX_CHARACTERS:
        raise RefusedFileError(*_TOO_LONG)
    return replace(parsed, text=text)


def main() -> None:
    """Read jobs of one parser from stdin, each a line of JSON and the file, and write the replies to stdout."""
    source, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output of native code must not come between the replies

    def send(message: dict[str, Any], *blobs: bytes) -> None:
        replies.write(json.dumps(message).encode() + b"\n")
        for blob in blobs:
            replies.write(blob)
        replies.flush()

    first = json.loads(source.readline())
    parse = load_parser(first["parser"])
    sys.setrecursionlimit(_RECURSION_LIMIT)
    limit_growth(MAX_GROWTH_BYTES)
    send({"progress": "ready"})
    jobs: SimpleQueue[dict[str, Any]] = SimpleQueue()
    exit_with_parent(jobs.put, _jobs(source, first))
    while True:
        job = jobs.get()
        try:
            parsed = read_document(parse, job["data"], PageChoice(**job["pages"]), lambda: send({"progress": "page"}))
        except RefusedFileError as error:
            send({"cause": error.cause, "remedy": error.remedy})
            continue
        text = parsed.text.encode("utf-8", "replace")
        sizes = [len(picture) for picture in parsed.pictures]
        send({"n_text_bytes": len(text), "detail": parsed.detail, "pictures": sizes}, text, *parsed.pictures)


def _jobs(source: BinaryIO, first: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield each job with its file as `data`, until the parent ends."""
    yield {**first, "data": source.read(first["n_bytes"])}
    while line := source.readline():
        job = json.loads(line)
        yield {**job, "data": source.read(job["n_bytes"])}


if __name__ == "__main__":
    main()
