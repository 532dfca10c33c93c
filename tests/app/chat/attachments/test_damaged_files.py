"""Damaged files, made from seeds: each is read or refused with a sentence, and whoever attaches it goes on."""

from __future__ import annotations

import random

import pytest

from app.chat.attachments.parsing import ALL_PAGES, PageChoice
from app.chat.attachments.reader import read_data
from quantizer.system.errors import EngineError, UserError
from tests.app.chat.attachments.files import docx_of, notebook_of, paragraph, pdf_of, picture_of, wav_of

_CELL = {"cell_type": "code", "source": "1", "outputs": [{"data": {"text/plain": ["2"]}}]}
_WHOLE = (
    ("a.pdf", pdf_of(["Soup", "Salt", "Water"])),
    ("a.docx", docx_of("".join(paragraph(f"Paragraph {number}") for number in range(30)))),
    ("a.html", b"<html><head><title>Soup</title></head><body><table><tr><td>1</td></tr></table><p>x</p></body></html>"),
    ("a.ipynb", notebook_of(*[_CELL] * 5)),
    ("a.csv", b'a;b\n1;"x;y"\n' * 20),
    ("a.png", picture_of((64, 48))),
    ("a.wav", wav_of(1)),
)
N_DAMAGED = 150


def damaged(number: int) -> tuple[str, bytes, PageChoice]:
    """Return the name and the bytes of a damaged file, and the pages to read of it."""
    rng = random.Random(number)
    name, whole = _WHOLE[number % len(_WHOLE)]
    data = bytearray(whole)
    for _ in range(rng.choice((1, 1, 2, 8, 64))):
        place = rng.randrange(len(data))
        damage = rng.choice(("flip", "flip", "set", "cut", "drop", "repeat", "digits"))
        if damage == "flip":
            data[place] ^= 1 << rng.randrange(8)
        elif damage == "set":
            data[place] = rng.randrange(256)
        elif damage == "cut" and place > 8:
            del data[place:]
        elif damage == "drop":
            del data[place : place + rng.randrange(1, 40)]
        elif damage == "repeat":
            data[place:place] = data[place : place + rng.randrange(1, 200)] * rng.randrange(1, 5)
        else:
            data[place:place] = b"9" * rng.randrange(1, 12)
        data = data or bytearray(b"x")
    pages = PageChoice(as_pictures=True) if name == "a.pdf" and rng.random() < 0.5 else ALL_PAGES
    return name, bytes(data), pages


def refusal_of(number: int) -> UserError | None:
    """Return why a damaged file was refused, None for one that was read."""
    name, data, pages = damaged(number)
    try:
        read_data(data, name, pages)
    except UserError as error:
        return error
    return None


def assert_is_sentence(refusal: UserError | None) -> None:
    assert not isinstance(refusal, EngineError), refusal
    assert refusal is None or refusal.cause.startswith("a."), refusal
    assert refusal is None or "object at 0x" not in refusal.cause, refusal


@pytest.mark.parametrize("number", range(2 * len(_WHOLE)))
def test_a_damaged_file_is_read_or_refused(number: int) -> None:
    assert_is_sentence(refusal_of(number))


@pytest.mark.slow
def test_so_are_many() -> None:
    refusals = [refusal_of(number) for number in range(N_DAMAGED)]
    for refusal in refusals:
        assert_is_sentence(refusal)
    assert 0 < sum(refusal is None for refusal in refusals) < N_DAMAGED
