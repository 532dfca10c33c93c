from __future__ import annotations

from app.chat.attachments.prompt import compose_prompt, media_of
from app.chat.conversation import Attachment, MediaFile

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
