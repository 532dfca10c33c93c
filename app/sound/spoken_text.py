"""What is read aloud of a message."""

from __future__ import annotations


def spoken_text(text: str) -> str:
    """Return what is read aloud of a Markdown text: its words without marks and addresses, a paragraph for each block.
    Code is left out: nobody follows it by ear."""
    from markdown_it import MarkdownIt

    blocks = []
    for token in MarkdownIt("commonmark", {"html": False}).enable("table").parse(text):
        if token.type == "inline":
            breaks = ("softbreak", "hardbreak")
            blocks.append("".join(" " if part.type in breaks else part.content for part in token.children or ()))
    return "\n\n".join(filter(None, map(str.strip, blocks)))
