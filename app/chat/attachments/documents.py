"""Documents without pages → Markdown: Word by mammoth, HTML by Beautiful Soup and markdownify, the article of a page of
the web by trafilatura, notebooks, CSV and TSV.

Pictures, scripts and styles are left out. Nothing is fetched, and nothing outside the file is opened.
"""

from __future__ import annotations

import csv
import io
import json
import re
import zipfile
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from app.chat.attachments.parsing import MAX_CHARACTERS, PageChoice, ParsedFile, RefusedFileError, fenced
from app.common.terminal import counted

if TYPE_CHECKING:
    from bs4 import BeautifulSoup, Tag

MAX_PART_BYTES = 32 << 20  # of XML
_MAX_PARTS = 20_000
_MAX_RATIO = 200  # of an XML part and its packed form; real ones have 5 to 30
_SMALL_BYTES = 1 << 20  # may be packed better
_XML = (".xml", ".rels")
_IS_ENCRYPTED = 1
_BODY = "word/document.xml"


def parse_docx(data: bytes, _pages: PageChoice, _progress: Callable[[], None]) -> ParsedFile:
    """Return the text of a document. Raises RefusedFileError for one that is protected, or would unpack to too much."""
    import mammoth

    _check_archive(data)
    page = mammoth.convert_to_html(io.BytesIO(data), convert_image=lambda _picture: []).value
    text = _markdown_of(page)
    if not text:
        raise RefusedFileError("has no text.", "Save it as PDF to attach its pages as pictures.")
    return ParsedFile(text, f"{len(text):,} characters")


def _check_archive(data: bytes) -> None:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        parts = archive.infolist()
    if any(part.flag_bits & _IS_ENCRYPTED for part in parts):
        raise RefusedFileError("is protected by a password.", "Save it without one, and attach that.")
    if not any(part.filename == _BODY for part in parts):
        raise RefusedFileError("is a ZIP archive without a Word document.", "Attach another file.")
    texts = [part for part in parts if part.filename.lower().endswith(_XML)]
    is_bomb = any(part.file_size > max(_SMALL_BYTES, _MAX_RATIO * part.compress_size) for part in texts)
    if len(parts) > _MAX_PARTS or is_bomb or sum(part.file_size for part in texts) > MAX_PART_BYTES:
        raise RefusedFileError(
            f"would unpack to more than {MAX_PART_BYTES >> 20} MiB of text.", "Attach a smaller document."
        )


_HIDDEN = "title script style noscript template svg iframe object head canvas audio video".split()  # noqa: SIM905
_BLANK_LINES = re.compile(r"\n[ \t]*\n(?:[ \t]*\n)+")
_FENCE = re.compile(r"^[ \t]*```[^\n]*$", re.M)


def parse_html(data: bytes, _pages: PageChoice, _progress: Callable[[], None]) -> ParsedFile:
    """Return the text of a page, all of it, in the encoding that it declares. Raises RefusedFileError for one without
    any."""
    return _parsed_page(_markdown_of(data))


# Beside what is read: menus, lists of other pages, banners, forms.
_BESIDE = ("nav", "aside", "footer", "form", "button")
_BESIDE_BY_ROLE = "[role=navigation], [role=search], [role=contentinfo]"
_LEAST_MAIN = 0.2  # of a page: less is one of many, or an advertisement
_CODE = ["pre", "code", "dl"]
_LEAST_CODE = 0.1  # of a page's main text: more is documentation
# Programs that write documentation, as their pages name them: lists of names are text there, and no menus.
_DOCUMENTATION = re.compile(
    "rustdoc|docutils|sphinx|mkdocs|docusaurus|vitepress|asciidoc|docbook|doxygen|javadoc|typedoc|gitbook|pdoc", re.I
)
_MAX_ADDRESS = 200  # characters of a link's; those of playgrounds have a whole program
_LEAST_ARTICLE = 0.1  # of its main text: less is no article
_LEAST_CHARACTERS = 500  # of a page: of a shorter one trafilatura gives words without their marks


def parse_web_page(data: bytes, _pages: PageChoice, _progress: Callable[[], None]) -> ParsedFile:
    """Return the article of a page of the web, without what is on every page of its site. Raises as `parse_html`.

    Of 91 pages whose article is known (the tests of mozilla/readability), trafilatura keeps 93 %, and 6 % of what it
    returns is something else; of a whole page that is 39 %. Documentation loses a tenth there, of an API a fifth, so
    that its main element is taken whole: 99 % and 2 %. So is that of a page whose code the article has not as it was,
    and of one that is hardly in its article, such as a list of links."""
    import trafilatura
    from bs4 import BeautifulSoup

    soup = BeautifulSoup(data, "html.parser")
    page = data.decode(soup.original_encoding or "utf-8", "replace")
    # Palettes and dialogs of a site, which trafilatura takes for text.
    if hidden := soup.select("[hidden]:not([hidden=until-found])"):
        for element in hidden:
            element.decompose()
        page = str(soup)
    title = soup.title.get_text(" ", strip=True) if soup.title else ""
    generator = soup.find("meta", attrs={"name": "generator"})
    is_documentation = generator is not None and _DOCUMENTATION.search(str(generator.get("content", ""))) is not None
    main = _main_element(soup)
    n_main, n_code = (_n_characters(main), sum(map(_n_characters, _outermost(main, _CODE))))
    article = ""
    if not is_documentation and n_code < _LEAST_CODE * n_main and n_main > _LEAST_CHARACTERS:
        article = trafilatura.extract(
            page, output_format="markdown", favor_recall=True, include_links=True, include_comments=False
        )
        article = _outside_code(article or "", lambda text: text.replace("\\_", "_"))  # names, as elsewhere
    if not article or len(article) < _LEAST_ARTICLE * n_main or _loses_code(main, article):
        article = _converted(main)
    return _parsed_page(_titled(title, article) if article else _markdown_of(data))


def _main_element(soup: BeautifulSoup) -> Tag:
    """Return the largest main element of a page, the page where none has most of it; what is not read is removed."""
    for element in (*soup.find_all([*_HIDDEN, *_BESIDE]), *soup.select(_BESIDE_BY_ROLE)):
        element.decompose()
    found = max(soup.select("main, article, [role=main]"), key=_n_characters, default=soup)
    return found if _n_characters(found) > _LEAST_MAIN * _n_characters(soup) else soup


def _loses_code(main: Tag, article: str) -> bool:
    """Return whether most blocks of code that have several lines are not in the article as they were."""
    blocks = [text for block in main.find_all("pre") if "\n" in (text := block.get_text().strip())]
    return sum(block not in article for block in blocks) > len(blocks) / 2


def _outermost(element: Tag, names: list[str]) -> Iterator[Tag]:
    return (each for each in element.find_all(names) if each.find_parent(names) is None)


def _n_characters(element: Tag) -> int:
    return len(element.get_text(strip=True))


def _parsed_page(text: str) -> ParsedFile:
    if not text:
        raise RefusedFileError("has no text.", "Save the page with its content, or as PDF.")
    return ParsedFile(text, f"{len(text):,} characters")


def _markdown_of(page: bytes | str) -> str:
    """Return a page as Markdown, its title first."""
    from bs4 import BeautifulSoup

    soup = BeautifulSoup(page, "html.parser")
    title = soup.title.get_text(" ", strip=True) if soup.title else ""
    for element in soup.find_all(_HIDDEN):
        element.decompose()
    return _titled(title, _converted(soup))


def _converted(element: Tag) -> str:
    from markdownify import MarkdownConverter

    for picture in element.find_all("img"):
        picture.replace_with(str(picture.get("alt") or ""))
    for link in element.find_all("a"):
        address, words = str(link.get("href", "")), link.get_text()
        del link["title"]
        if address.startswith("#") and not any(map(str.isalnum, words)):  # the sign beside a heading
            link.decompose()
        elif address.startswith("#") or len(address) > _MAX_ADDRESS:  # a place that the text has, or no address to read
            link.unwrap()
    for block in element.find_all("pre"):
        if block.find("pre") is not None:  # mdBook's playgrounds, which would have two fences
            block.unwrap()
    for quote in element.find_all("blockquote"):
        code = "".join(block.get_text(strip=True) for block in quote.find_all("pre"))
        if code and code == quote.get_text(strip=True):  # which only indents the code
            quote.unwrap()
    converter = MarkdownConverter(heading_style="ATX", bullets="-", escape_asterisks=False, escape_underscores=False)
    return _outside_code(str(converter.convert_soup(element)), lambda text: _BLANK_LINES.sub("\n\n", text)).strip()


def _outside_code(text: str, change: Callable[[str], str]) -> str:
    """Return Markdown with a change of all that is in no fenced block: code stays as it is, a block without an end is
    none. In linear time: a page may begin thousands of blocks and end none."""
    parts, n_done, begin = list[str](), 0, -1
    for fence in _FENCE.finditer(text):
        if begin < 0:
            begin = fence.start()
        elif fence[0].strip(" \t") == "```":
            parts += (change(text[n_done:begin]), text[begin : fence.end()])
            n_done, begin = fence.end(), -1
    return "".join((*parts, change(text[n_done:])))


def _titled(title: str, body: str) -> str:
    return f"# {title}\n\n{body}" if title and not body.startswith(f"# {title}") else body


_COLORS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_MAX_OUTPUT_CHARACTERS = 4_000  # of one cell
_DAMAGED = ("is no notebook.", "Save it anew with Jupyter, or give it another ending to attach it as text.")


def parse_notebook(data: bytes, _pages: PageChoice, _progress: Callable[[], None]) -> ParsedFile:
    """Return the cells of a notebook of format 3 or 4. Raises RefusedFileError for anything else."""
    try:
        notebook = json.loads(data.decode("utf-8-sig"))
    except ValueError as error:
        raise RefusedFileError(*_DAMAGED) from error
    holders = [notebook, *_objects(notebook.get("worksheets"))] if isinstance(notebook, dict) else []  # of format 3
    cells = [cell for holder in holders for cell in _objects(holder.get("cells"))]
    if not cells:
        raise RefusedFileError(*_DAMAGED)
    language = _language(notebook)
    text = "\n\n".join(filter(None, (part for cell in cells for part in _parts(cell, language))))
    if not text:
        raise RefusedFileError("has no text.", "Attach another file.")
    return ParsedFile(text, f"{len(cells):,} {'cell' if len(cells) == 1 else 'cells'}")


def _objects(listed: Any) -> list[dict[str, Any]]:
    """Return the objects in a list, none for anything else."""
    return [item for item in listed if isinstance(item, dict)] if isinstance(listed, list) else []


def _language(notebook: dict[str, Any]) -> str:
    metadata = notebook.get("metadata")
    for name, key in (("language_info", "name"), ("kernelspec", "language")):
        info = metadata.get(name) if isinstance(metadata, dict) else None
        language = info.get(key) if isinstance(info, dict) else None
        if isinstance(language, str) and language.isalnum():
            return language
    return "python"


def _parts(cell: dict[str, Any], language: str) -> Iterator[str]:
    source = _joined(cell.get("source", cell.get("input"))).strip()
    if cell.get("cell_type") != "code":
        yield source
        return
    if source:
        yield fenced(source, language)
    printed = _COLORS.sub("", "".join(map(_printed, _objects(cell.get("outputs"))))).strip()
    if len(printed) > _MAX_OUTPUT_CHARACTERS:
        n_left_out = len(printed) - _MAX_OUTPUT_CHARACTERS
        printed = f"{printed[:_MAX_OUTPUT_CHARACTERS]}\n[{n_left_out:,} more characters of output left out]"
    if printed:
        yield f"Output:\n\n{fenced(printed)}"


def _printed(output: dict[str, Any]) -> str:
    """Return what one output says as text."""
    if "ename" in output:
        return f"{_joined(output['ename'])}: {_joined(output.get('evalue'))}\n"
    data = output.get("data")
    text = _joined(data.get("text/plain") if isinstance(data, dict) else output.get("text"))
    return text if text.endswith("\n") or not text else f"{text}\n"


def _joined(lines: Any) -> str:
    """Return a text of nbformat: a string, or a list of lines."""
    if isinstance(lines, str):
        return lines
    return "".join(line for line in lines if isinstance(line, str)) if isinstance(lines, list) else ""


_DELIMITERS = ",;\t|"  # a comma where there is none
_MAX_COLUMNS = 1_000
_BOMS = ((b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"))


def parse_table(data: bytes, _pages: PageChoice, _progress: Callable[[], None]) -> ParsedFile:
    """Return a table. Raises RefusedFileError for one that is empty, no text, or has more than 1,000 columns."""
    text = _decoded(data)
    csv.field_size_limit(MAX_CHARACTERS)
    rows = [row for row in csv.reader(io.StringIO(text, newline=""), delimiter=_delimiter(text)) if any(row)]
    if not rows:
        raise RefusedFileError("is an empty table.", "Attach another file.")
    n_columns = max(map(len, rows))
    if n_columns > _MAX_COLUMNS:
        raise RefusedFileError(f"has {n_columns:,} columns.", f"Attach at most {_MAX_COLUMNS:,}.")
    lines = [_table_row(row, n_columns) for row in rows]
    lines.insert(1, _table_row(["---"] * n_columns, n_columns))
    return ParsedFile("\n".join(lines), f"{counted(len(rows) - 1, 'row')}, {counted(n_columns, 'column')}")


def _decoded(data: bytes) -> str:
    encoding = next((name for mark, name in _BOMS if data.startswith(mark)), "utf-8-sig")
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        raise RefusedFileError("is neither UTF-8 nor UTF-16.", "Save it as CSV in UTF-8.") from error
    if "\0" in text:
        raise RefusedFileError("is not text.", "Save it as CSV in UTF-8.")
    return text


def _delimiter(text: str) -> str:
    """Return the delimiter that the first line has most of, outside quotes."""
    outside = "".join(text.lstrip().partition("\n")[0].split('"')[::2])
    return max(_DELIMITERS, key=outside.count)


def _table_row(row: Sequence[str], n_columns: int) -> str:
    cells = (" ".join(cell.split()).replace("|", "\\|") for cell in (*row, *[""] * (n_columns - len(row))))
    return f"| {' | '.join(cells)} |"
