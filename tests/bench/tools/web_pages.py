"""How well pages of documentation are read: the share of their words that is kept, what else comes with them, and
whether blocks of code and rows of tables are as they were.

    for package in git-doc nodejs-doc …; do apt-get download $package && dpkg-deb -x $package*.deb FOLDER; done
    python -m tests.bench.tools.web_pages FOLDER

The pages are those of Debian 12's packages; what a person reads of each is named by a selector. With --articles the
folder is test/test-pages of mozilla/readability, whose articles are known.
"""

from __future__ import annotations

import argparse
import re
import textwrap
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bs4 import BeautifulSoup, Tag

from app.chat.attachments.documents import parse_web_page
from app.chat.attachments.parsing import ALL_PAGES

_DOC = Path("usr/share/doc")
_SPHINX = "div.body"
# By what wrote it: the page, below the documentation of all packages, and the element that a person reads.
_PAGES = {
    "Sphinx, Python": ("python3.11/html/library/asyncio-task.html", _SPHINX),
    "Sphinx, a table": ("python3.11/html/library/json.html", _SPHINX),
    "Sphinx, a tutorial": ("python3.11/html/tutorial/inputoutput.html", _SPHINX),
    "Sphinx, alabaster": ("python-requests-doc/html/user/quickstart.html", _SPHINX),
    "Sphinx, Django": ("python-django-doc/html/topics/db/queries.html", "div.yui-g"),
    "Sphinx, CMake": ("cmake-data/html/command/add_executable.html", _SPHINX),
    "rustdoc, a type": ("rust-doc/html/std/collections/hash_map/struct.HashMap.html", "#main-content"),
    "rustdoc, a module": ("rust-doc/html/std/fs/index.html", "#main-content"),
    "mdBook": ("rust-doc/html/book/ch04-01-what-is-ownership.html", "main"),
    "AsciiDoc, a man page": ("git-doc/git-rebase.html", "#content"),
    "Node": ("nodejs/api/path.html", "#apicontent"),
    "DocBook, tables": ("postgresql-doc-15/html/datatype-datetime.html", "div.sect1"),
    "DocBook, a reference": ("postgresql-doc-15/html/sql-createtable.html", "div.refentry"),
    "SQLite": ("sqlite3/wal.html", "body"),
}
_WORD, _ADDRESS = re.compile(r"\w+"), re.compile(r"\]\([^)]*\)")
_FENCED = re.compile(r"^[ \t]*```[^\n]*\n(.*?)^[ \t]*```[ \t]*$", re.MULTILINE | re.DOTALL)
_LEAST_WORDS = 100  # of an article that is measured


@dataclass(frozen=True, slots=True)
class Reading:
    """Shares of a page's words that are kept and of the result that is something else, and counts (kept, of all) of
    blocks of code and rows of tables."""

    kept: float
    other: float
    code: tuple[int, int] = (0, 0)
    rows: tuple[int, int] = (0, 0)

    def __str__(self) -> str:
        counts = f"  code {self.code[0]} of {self.code[1]}  rows {self.rows[0]} of {self.rows[1]}"
        return f"{self.kept:6.1%} kept {self.other:6.1%} other{counts if self.code[1] or self.rows[1] else ''}"


def words(text: str) -> Counter[str]:
    return Counter(word.lower() for word in _WORD.findall(_ADDRESS.sub("] ", text)))


def compared(read: Tag, text: str) -> Reading:
    """Return how well `text` has what a person reads of a page."""
    wanted, found = words(read.get_text(" ")), words(text)
    kept = (wanted & found).total() / max(1, wanted.total())
    blocks = [_lines(block.get_text()) for block in read.find_all("pre") if block.get_text().strip()]
    codes = {_lines(code) for code in _FENCED.findall(text)}
    table = {_letters(_ADDRESS.sub("]", line)) for line in text.splitlines() if line.count("|") > 1}
    rows = list(map(_letters, _rows(read)))
    return Reading(
        kept,
        (found - wanted).total() / max(1, found.total()),
        (sum(block in codes for block in blocks), len(blocks)),
        (sum(row in table for row in rows), len(rows)),
    )


def _rows(element: Tag) -> Iterator[str]:
    for row in element.select("table tr"):
        cells = [cell.get_text(" ") for cell in row.find_all(["td", "th"])]
        if len(cells) > 1 and any(map(str.strip, cells)):
            yield "".join(cells)


def _lines(code: str) -> str:
    """Return code without what its place in a page adds: an indentation of all lines, blanks at their ends."""
    return "\n".join(map(str.rstrip, textwrap.dedent(code.strip("\n")).split("\n"))).strip()


def _letters(text: str) -> str:
    return "".join(_WORD.findall(text)).lower()


def read_page(data: bytes) -> str:
    return parse_web_page(data, ALL_PAGES, lambda: None).text


def documentation(folder: Path) -> Iterator[tuple[str, Reading]]:
    for name, (path, selector) in _PAGES.items():
        data = (folder / _DOC / path).read_bytes()
        soup = BeautifulSoup(data, "html.parser")
        for element in soup.find_all(["script", "style", "template", "svg"]):
            element.decompose()
        element = soup.select_one(selector)
        assert element is not None, f"{name} has no {selector}"
        yield name, compared(element, read_page(data))


def articles(folder: Path) -> Iterator[tuple[str, Reading]]:
    for place in sorted(folder.iterdir()):
        article = BeautifulSoup((place / "expected.html").read_bytes(), "html.parser")
        if words(article.get_text(" ")).total() >= _LEAST_WORDS:
            yield place.name, compared(article, read_page((place / "source.html").read_bytes()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--articles", action="store_true", help="test/test-pages of mozilla/readability")
    arguments = parser.parse_args()
    readings = list((articles if arguments.articles else documentation)(arguments.folder))
    for name, reading in readings:
        print(f"{name:40}{reading}")
    n_kept, n_other = (sum(getattr(each, name) for _, each in readings) / len(readings) for name in ("kept", "other"))
    code, rows = (
        (sum(getattr(each, name)[0] for _, each in readings), sum(getattr(each, name)[1] for _, each in readings))
        for name in ("code", "rows")
    )
    print(f"{f'{len(readings)} pages':40}{Reading(n_kept, n_other, code, rows)}")


if __name__ == "__main__":
    main()
