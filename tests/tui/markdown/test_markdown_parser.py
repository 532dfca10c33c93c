"""Markdown brings about no character that a terminal would obey."""

from __future__ import annotations

import pytest

from app.client.fake import ScriptedClient, ScriptedReply
from tests.tui.hostile import HOSTILE, controls_in, sequences
from tui.markdown.parser import markdown_parser

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
        await user.sees("one]52;c;AAAA", "two")
        assert not controls_in(user.screen_text)
