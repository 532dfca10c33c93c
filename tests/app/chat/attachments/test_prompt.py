from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.chat.attachments.prompt import compose_prompt, media_of, part_of, split_text
from app.chat.conversation import Attachment, MediaFile
from app.protocol.chat import Source

_PNG = MediaFile("a" * 64, "image/png", 5)
_WAV = MediaFile("b" * 64, "audio/wav", 5)
_PHOTO = Attachment("photo.png", "", "image/png", "6 × 4, 5 B", (_PNG,))
_TALK = Attachment("talk.wav", "", "audio/wav", "0:42", (_WAV,))


def test_a_single_picture_needs_no_words() -> None:
    assert compose_prompt("What is this?", [_PHOTO]) == "What is this?"


def test_several_pictures_and_sounds_are_numbered_by_kind() -> None:
    attachments = [_PHOTO, _TALK, Attachment("b.png", "", "image/png", "", (_PNG,))]
    assert compose_prompt("Compare.", attachments) == (
        "photo.png, 6 × 4, 5 B: picture 1\n\ntalk.wav, 0:42: sound 1\n\nb.png, 0 characters: picture 2\n\nCompare."
    )
    assert media_of(attachments) == (_PNG, _WAV, _PNG)


def test_pages_say_which_they_are() -> None:
    pages = Attachment("paper.pdf", "", "application/pdf", "pages 3–5 of 12", (_PNG, _PNG, _PNG))
    assert compose_prompt("Sum up.", [pages]) == "paper.pdf, pages 3–5 of 12: pictures 1 to 3\n\nSum up."
    page = Attachment("paper.pdf", "", "application/pdf", "page 3 of 12", (_PNG,))
    assert compose_prompt("", [page]) == "paper.pdf, page 3 of 12: picture 1"


def test_texts_stand_beside_pictures_as_ever() -> None:
    assert compose_prompt("q", [Attachment("n.md", "Soup."), _PHOTO]) == "n.md:\n```\nSoup.\n```\n\nq"


def test_of_a_text_that_is_searched_a_line_stands_in_its_place() -> None:
    searched = Attachment("book.md", "Soup.", detail="900 pages", is_searched=True)
    source = Source("book.md", "Soup.", 0, 5)
    place = "book.md, 900 pages, searched: too long to be read whole; passages of it that may answer"
    assert compose_prompt("q", [searched], [source]).startswith(place)
    assert compose_prompt("q", [searched], [source]).endswith("[1] book.md\n```\nSoup.\n```\n\nq")


_PAGES = "\n\n".join(f"[Page {number}]\n\n{'word ' * 20}".rstrip() for number in range(1, 13))


def test_a_text_that_fits_is_one_part() -> None:
    (part,) = split_text("Soup", 10)
    assert (part.text, part.label) == ("Soup", "part 1 of 1")


def test_a_document_is_cut_where_pages_begin() -> None:
    parts = split_text(_PAGES, 400)
    assert [part.label for part in parts][:2] == ["part 1 of 4, pages 1–3", "part 2 of 4, pages 4–6"]
    assert all(part.text.startswith("[Page ") for part in parts)


def test_a_page_longer_than_a_part_is_cut_within_and_named_in_both() -> None:
    first, second = split_text(f"[Page 7]\n\n{'word ' * 30}", 100)
    assert (first.label, second.label) == ("part 1 of 2, page 7", "part 2 of 2, page 7")
    assert first.text.endswith("word ")


def test_sections_come_before_paragraphs_and_paragraphs_before_lines() -> None:
    assert split_text("a\n\nbbbbbb\n\n# C\nccccc\n\ndd\n\neeee", 20)[1].text.startswith("# C")
    assert split_text("aaaa\nbbbbb\n\ncc\ndd\nee", 17)[1].text == "cc\ndd\nee"


def test_what_has_no_border_is_cut_at_the_limit() -> None:
    assert [part.text for part in split_text("x" * 25, 10)] == ["x" * 10, "x" * 10, "x" * 5]


def test_pictures_go_with_the_first_part() -> None:
    attachment = Attachment("a.pdf", _PAGES, "application/pdf", "12 pages", (MediaFile("a" * 64, "image/png", 1),))
    first, second, *_ = (part_of(attachment, part) for part in split_text(_PAGES, 400))
    assert (first.label, len(first.media)) == ("a.pdf, part 1 of 4, pages 1–3", 1)
    assert (second.label, second.media) == ("a.pdf, part 2 of 4, pages 4–6", ())


@given(st.text(alphabet="ab \n#[Page 1]", max_size=400), st.integers(1, 60))
def test_no_character_is_lost_and_every_part_fits(text: str, max_characters: int) -> None:
    parts = split_text(text, max_characters)
    assert "".join(part.text for part in parts) == text
    assert all(0 < len(part.text) <= max_characters for part in parts) or not text
    assert [part.number for part in parts] == list(range(1, len(parts) + 1))
    assert {part.n_parts for part in parts} == {len(parts)}
