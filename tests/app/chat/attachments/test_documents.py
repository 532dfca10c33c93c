"""Pages of the web as a model reads them: text, code and tables as they are, without what is beside them.

The pages here have the parts of real ones that were read wrongly: of rustdoc, Sphinx, SQLite and GitHub.
"""

from __future__ import annotations

from app.chat.attachments.documents import parse_web_page
from app.chat.attachments.parsing import ALL_PAGES

PROSE = "".join(f"<p>This is sentence {number} of a long article about soup and leeks.</p>" for number in range(30))


def read(body: str, head: str = "") -> str:
    page = f"<html><head><title>Page</title>{head}</head><body>{body}</body></html>"
    return parse_web_page(page.encode(), ALL_PAGES, lambda: None).text


def test_lists_of_names_in_documentation_are_text() -> None:
    rows = "".join(
        f'<div class="item-row"><div><a href="struct.{name}.html">{name}</a></div><div><p>Does {name}.</p></div></div>'
        for name in ("DirBuilder", "FileType", "ReadDir")
    )
    main = f"<main>{PROSE}<h2>Structs</h2>{rows}</main>"
    text = read(main, '<meta name="generator" content="rustdoc">')
    assert all(f"[{name}](struct.{name}.html)" in text for name in ("DirBuilder", "FileType", "ReadDir"))


def test_code_keeps_its_lines_blank_ones_too_in_a_page_that_is_mostly_prose() -> None:
    code = "def soup():\n    return 1\n\n\nsoup()"
    for block in ("<pre>{}</pre>", "<blockquote><pre>{}</pre></blockquote>", "<pre><pre><code>{}</code></pre></pre>"):
        text = read(f"<main>{PROSE}{block.format(code)}</main>")
        assert text.endswith(f"\n\n```\n{code}\n```")
        assert text.count("```") == 2


def test_signs_beside_headings_and_addresses_of_playgrounds_are_left_out() -> None:
    program = "fn%20main%28%29%7B%7D" * 20
    text = read(
        f"<main><h2>Awaitables<a class='headerlink' href='#awaitables' title='Permalink'>¶</a></h2>{PROSE}"
        "<dl><dt>run</dt><dd>See <a href='#run' title='asyncio.run'>run()</a>, <a href='other.html'>other</a>, "
        f"<a href='https://play.example/?code={program}'>Run</a>.</dd></dl></main>",
        '<meta name="generator" content="Docutils 0.19">',
    )
    assert "## Awaitables\n" in text
    assert "See run(), [other](other.html), Run." in text


def test_what_a_page_hides_or_has_for_navigation_is_no_text() -> None:
    palette = "<command-palette hidden><p>Tip: type author:@me to search your content.</p></command-palette>"
    related = "<div role='navigation'><a href='next.html'>next</a> <a href='prev.html'>previous</a></div>"
    found = "<section hidden='until-found'><p>Answers that open when somebody looks for them.</p></section>"
    text = read(f"<main>{palette}{PROSE}{related}{found}</main>")
    assert "sentence 29" in text
    assert "Answers that open" in text
    assert "author:@me" not in text
    assert "previous" not in text


def test_names_with_underscores_are_as_they_are_written() -> None:
    assert "journal_mode" in read(f"<main>{PROSE}<p>The journal_mode pragma returns a string.</p></main>")


def test_a_table_is_one() -> None:
    table = "<table><tr><th>JSON</th><th>Python</th></tr><tr><td>object</td><td>dict</td></tr></table>"
    assert "| object | dict |" in read(f"<main>{PROSE}{table}</main>")
