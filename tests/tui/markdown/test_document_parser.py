"""The Markdown parser: printable tokens, and code blocks."""

from __future__ import annotations

import pytest

from tests.app.client.scripted_client import ScriptedClient, ScriptedReply
from tests.tui.hostile import HOSTILE, controls_in, sequences
from tui.markdown.document import CodeBlock, code_blocks, markdown_parser

FENCED = """Before.

```python title="x"
def f():
\treturn  1   

# not the end: `` ` ``
```

Between `inline`.

~~~
```
~~~
"""  # noqa: W291 - spaces at the end of a line are part of a block


def test_blocks_are_found_to_the_letter():
    assert code_blocks(FENCED) == (
        CodeBlock("python", "def f():\n\treturn  1   \n\n# not the end: `` ` ``"),
        CodeBlock("", "```"),
    )


def test_a_block_in_a_list_or_a_quotation_is_without_their_marks():
    assert code_blocks("1. so\n\n   ```sh\n   ls\n     -l\n   ```\n\n> ```\n> a > b\n> ```\n") == (
        CodeBlock("sh", "ls\n  -l"),
        CodeBlock("", "a > b"),
    )


def test_indented_code_is_a_block_as_on_the_screen():
    assert code_blocks("So:\n\n    x = 1\n      y\n\nDone.") == (CodeBlock("", "x = 1\n  y"),)


def test_the_block_of_an_answer_that_was_stopped_ends_with_it():
    assert code_blocks("```\nhalf\n") == (CodeBlock("", "half"),)


def test_text_without_code_and_empty_blocks_give_none():
    assert code_blocks("Say `ls` and <pre>that</pre>.\n\n```\n\n```\n") == ()


def test_a_title_shows_language_length_and_beginning_in_one_line():
    assert CodeBlock("python", "\n  x\ny").title == "python, 3 lines: x"
    assert CodeBlock("", "x").title == "code, 1 line: x"


@pytest.mark.parametrize("source", HOSTILE)
def test_no_block_has_what_a_terminal_would_obey(source):
    for block in code_blocks(f"```{source}\n```\n~~~\nls {source}\n~~~\n"):
        assert not sequences(f"{block.title}{block.text}")
        assert not controls_in(f"{block.title}{block.text}")


REFERENCES = ("<http://x/%1b%5d52;c;AAAA%07>", "&#x202e;gpj", "http://x/%c2%9bm", "![&#x2028;](http://x/%1b)")


def _texts(tokens):
    for token in tokens:
        yield token.content
        yield from _texts(token.children or ())


@pytest.mark.parametrize("source", [*REFERENCES, *HOSTILE])
def test_what_the_parser_makes_of_a_text_is_letters(source):
    texts = "".join(_texts(markdown_parser().parse(source.encode("utf-8", "ignore").decode())))
    assert not sequences(texts)
    assert not controls_in(texts)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("[me](http://b.example/x)", "me (http://b.example/x)"),
        ("<http://b.example/x>", "http://b.example/x"),
        ("![](http://b.example/x.png)", "image (http://b.example/x.png)"),
        ("![a *cat*](x.png)", "image: a cat (x.png)"),
        ("[![cat](x.png)](y)", "image: cat (x.png)"),
        ("<script>go</script>", "<script>go</script>"),
    ],
)
def test_nothing_that_was_written_is_hidden(source, text):
    assert text in "".join(_texts(markdown_parser().parse(source)[1].children))


async def test_pasted_text_loses_control_sequences_and_keeps_its_lines(open_app):
    async with open_app(ScriptedClient(ScriptedReply(deltas=("Yes.",)))) as user:
        await user.sees("ready")
        await user.pastes("one\x1b]52;c;AAAA\x07\rtwo\u202e")
        await user.sees("│ one ", "│ two ")
        assert not controls_in(user.screen_text)


def _links(source: str) -> list[str]:
    children = (child for token in markdown_parser().parse(source) for child in token.children or ())
    return [str(child.attrs["href"]) for child in children if child.type == "link_open"]


FILES = (
    *(
        "a.py",
        "notes.md",
        "x.rs",
        "run.sh",
        "main.cc",
        "lib.so",
        "page.pl",
        "movie.mov",
        "old.zip",
        "index.md",
        "app.tf",
    ),
    *("src/app.py", "./run.sh", "../notes.md", "//server.py", "C:\\x.pl", "a.b.c.py", "readme.md:12", "~/x.sh"),
)
NAMES_IN_PROGRAMS = ("self.name", "os.path.is", "node.js", "System.in", "example.com", "www.example.com", "a.de/b")
ADDRESSES_OF_MAIL = ("git@github.com:o/r.git", "me@example.com", "user@host.py")


@pytest.mark.parametrize("name", [*FILES, *NAMES_IN_PROGRAMS, *ADDRESSES_OF_MAIL])
def test_what_has_no_scheme_is_text(name):
    for text in (name, f"Open {name}, then run it.", f"({name})", f"**{name}**", f"- {name}\n", f"| {name} |\n|---|\n"):
        assert _links(text) == []
        assert name in "".join(_texts(markdown_parser().parse(text)))


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("see https://example.com/a.py.", "https://example.com/a.py"),
        ("http://localhost:8080/x", "http://localhost:8080/x"),
        ("http://127.0.0.1:11434/api", "http://127.0.0.1:11434/api"),
        ("(HTTPS://Example.org)", "HTTPS://Example.org"),
        ("ftp://x.org/a", "ftp://x.org/a"),
        ("mailto:me@example.com", "mailto:me@example.com"),
        ("<me@example.com>", "mailto:me@example.com"),
        ("[docs](notes.md)", "notes.md"),
    ],
)
def test_an_address_with_a_scheme_or_marked_as_a_link_is_one(text, address):
    assert _links(text) == [address]
