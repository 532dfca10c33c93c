"""Markers of pictures and sounds, and the checks of what clients send as one."""

from __future__ import annotations

import re
from base64 import b64encode

import pytest

from app.common.media_formats import MediaKind
from app.engine.request import MAX_MEDIA, Request
from app.protocol.chat import Message
from app.protocol.errors import RequestError
from app.service.generation.media import (
    MAX_MEDIA_BYTES,
    NO_MEDIA,
    ContentText,
    Medium,
    PromptMedia,
    UnreadableError,
    joined_parts,
    notice_of_notes,
)
from app.service.models.model_file import Senses
from tests.app.engine.media.files import picture_file, sound_file

BOTH = Senses(sees=True, hears=True)
FILE = b64encode(picture_file()).decode()
PICTURE = Medium(MediaKind.PICTURE, FILE)
SOUND = Medium(MediaKind.SOUND, b64encode(sound_file()).decode())


class Web:
    """Has every address, as a file that holds it."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def fetch(self, address: str) -> bytes:
        self.asked.append(address)
        return address.encode()


def _numbered(count: int) -> list[Medium]:
    return [Medium(MediaKind.PICTURE, b64encode(b"%d" % index).decode()) for index in range(count)]


async def test_a_picture_has_one_marker_and_each_picture_its_own() -> None:
    media = PromptMedia(BOTH)
    first, again, other = (media.part_of(medium) for medium in (PICTURE, Medium(MediaKind.PICTURE, FILE), SOUND))
    assert first == again
    assert first.is_marker
    assert first.text not in other.text
    assert media.markers == (first.text, other.text)
    inputs = await media.inputs(f"a{first.text}b{other.text}{first.text}")
    assert [item.marker for item in inputs] == [first.text, other.text]
    assert inputs[0].data == picture_file()


def test_markers_of_another_turn_are_others() -> None:
    assert PromptMedia(BOTH).part_of(PICTURE) != PromptMedia(BOTH).part_of(PICTURE)
    assert re.fullmatch(r"__media_[0-9a-f]{32}_0__", PromptMedia(BOTH).part_of(PICTURE).text)


async def test_what_the_template_leaves_out_is_not_sent() -> None:
    media = PromptMedia(BOTH)
    media.part_of(PICTURE)
    later = media.part_of(SOUND).text
    assert [item.marker for item in await media.inputs(f"x{later}")] == [later]
    request = Request(request_id="1", prompt="without any")
    assert await media.in_request(request) is request


@pytest.mark.parametrize(
    ("source", "data"),
    [
        (FILE, picture_file()),
        (f"data:image/png;base64,{FILE}", picture_file()),
        (f"DATA:image/png;name=a.png;BASE64,{FILE}", picture_file()),
        (f"data:application/octet-stream;base64,{FILE}", picture_file()),
        ("data:image/png;base64,YWI%3D", b"ab"),
        ("YWJj\r\nZGVm\n", b"abcdef"),
    ],
)
async def test_the_forms_of_a_picture_are_one_file(source: str, data: bytes) -> None:
    media = PromptMedia(BOTH)
    marker = media.part_of(Medium(MediaKind.PICTURE, source)).text
    (item,) = await media.inputs(marker)
    assert item.data == data


@pytest.mark.parametrize(
    ("source", "cause"),
    [
        ("x", "not valid Base64"),
        ("YWJ\u00e9", "not valid Base64"),
        ("", "no content"),
        ("data:image/png;base64,", "no content"),
        ("data:image/svg+xml,<svg/>", "no Base64"),
        ("data:image/png;base64", "no Base64"),
        (f"data:text/html;base64,{FILE}", "'text/html' is no picture"),
        ("file:///etc/passwd", "begins with file://"),
        ("ftp://example.com/a.png", "begins with ftp://"),
        ("http://example.com/a.png", "fetches none"),
        ("HTTPS://example.com/a.png", "fetches none"),
    ],
)
async def test_anything_else_is_a_fault_and_in_older_turns_a_note(source: str, cause: str) -> None:
    media, medium = PromptMedia(BOTH), Medium(MediaKind.PICTURE, source)
    fault = media.fault(medium)
    assert fault is not None
    assert cause in fault.cause
    assert fault.remedy
    note = media.part_of(medium)
    assert not note.is_marker
    assert note.text == "[image: left out, it could not be read]"
    assert await media.inputs(note.text) == ()
    assert "which reads text, pictures and sounds" in notice_of_notes([Message("user", note.text)], BOTH)


def test_a_model_reads_only_what_its_projector_is_for() -> None:
    seeing = PromptMedia(Senses(sees=True))
    assert seeing.fault(PICTURE) is None
    fault = seeing.fault(SOUND)
    assert isinstance(fault, UnreadableError)
    assert fault.kind == "audio"
    assert fault.cause == "The question has a sound, but this model reads text and pictures."
    assert "reads text and pictures]" in seeing.part_of(SOUND).text
    assert not NO_MEDIA.part_of(PICTURE).is_marker
    assert NO_MEDIA.markers == ()


def test_what_a_client_does_not_name_is_told_by_its_first_bytes() -> None:
    assert Medium.of(SOUND.source).kind is MediaKind.SOUND
    assert Medium.of(FILE).kind is MediaKind.PICTURE
    assert Medium.of(f"data:image/png;base64,{FILE}").kind is MediaKind.PICTURE
    assert Medium.of("\u00e9?").kind is MediaKind.PICTURE


async def test_addresses_are_fetched_where_that_is_allowed_and_only_those_in_the_prompt() -> None:
    web = Web()
    media = PromptMedia(BOTH, web)
    used, unused = (Medium(MediaKind.PICTURE, f"https://example.com/{name}") for name in "ab")
    marker = media.part_of(used).text
    media.part_of(unused)
    (item,) = await media.inputs(marker)
    assert item.data == b"https://example.com/a"
    await media.inputs(marker)
    assert web.asked == ["https://example.com/a"]


@pytest.mark.slow
async def test_too_many_and_too_large_pictures_are_refused() -> None:
    media = PromptMedia(BOTH)
    markers = [media.part_of(medium).text for medium in _numbered(MAX_MEDIA + 1)]
    assert len(await media.inputs("".join(markers[1:]))) == MAX_MEDIA
    with pytest.raises(RequestError, match="65 pictures and sounds"):
        await media.inputs("".join(markers))
    large = PromptMedia(BOTH)
    halves = [Medium(MediaKind.PICTURE, letter * (MAX_MEDIA_BYTES // 2 + 4)) for letter in "AB"]
    with pytest.raises(RequestError, match="96 MiB in Base64"):
        await large.inputs("".join(large.part_of(half).text for half in halves))


def test_a_text_that_looks_like_a_marker_is_none() -> None:
    media = PromptMedia(BOTH)
    marker = media.part_of(PICTURE).text
    forged = re.sub("[0-9a-f]{32}", "0" * 32, marker)
    assert forged != marker
    assert media.with_public_markers(f"{marker} {forged}", "<public>") == f"<public> {forged}"


def test_markers_have_no_separator_around_them() -> None:
    text, marker = ContentText("a"), ContentText("M", is_marker=True)
    assert joined_parts([text, marker, text], "\n") == ("aMa", (1, 2))
    assert joined_parts([marker, marker, text, text], "\n") == ("MMa\na", (1, 2, 4))
    assert joined_parts([text, ContentText(""), text, marker], "\n") == ("a\naM", (2, 3))
    assert joined_parts([text, ContentText("b", continues=True), marker], "\n") == ("abM", (1, 2))
    assert joined_parts([], "\n") == ("", ())
