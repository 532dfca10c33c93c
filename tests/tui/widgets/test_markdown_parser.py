"""Markdown brings about no character that a terminal would obey, live or folded."""

from __future__ import annotations

import pytest
from hostile import HOSTILE, controls_in, sequences

from app.client_fake import ScriptedClient, ScriptedReply
from tui.widgets.folded_markdown import _drawn
from tui.widgets.markdown_parser import markdown_parser

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


@pytest.mark.parametrize("source", REFERENCES)
def test_a_folded_document_is_letters(source):
    drawn = _drawn(source, 80, is_dark=True).plain
    assert not sequences(drawn)
    assert not controls_in(drawn)


def test_folded_html_is_shown_as_text():
    assert "<script>go</script>" in _drawn("<script>go</script>", 80, is_dark=True).plain


async def test_pasted_text_loses_what_a_terminal_would_obey_and_keeps_its_lines(sitting):
    async with sitting(ScriptedClient(ScriptedReply(deltas=("Yes.",)))) as person:
        await person.sees("ready")
        await person.pastes("one\x1b]52;c;AAAA\x07\rtwo\u202e")
        await person.sees("one]52;c;AAAA", "two")
        assert not controls_in(person.screen_text)
