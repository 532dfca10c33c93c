"""Pictures and sounds that tools return: read as attachments are, stored with the call, sent beside its result."""

from __future__ import annotations

import base64
import html
from pathlib import Path

import pytest

from app.chat.files import EXPORTS, import_file
from app.chat.store.chat_store import ChatStore
from app.protocol.chat import MediaPart
from app.tools.tool import MAX_MEDIA, ToolOutput
from quantizer.system.errors import StorageError
from tests.app.chat.attachments.files import picture_of, wav_of
from tests.app.chat.tool_chats import ask, backend_of, call, calling, opened_chat, said, unbatched
from tests.app.client.scripted_client import ScriptedClient
from tests.app.tools.fake import FakeToolBackend, ScriptedCall

__all__ = ["unbatched"]


def part(data: bytes, mime_type: str = "image/png") -> MediaPart:
    return MediaPart(mime_type, base64.b64encode(data).decode())


PICTURE = part(picture_of())
TEXT = "Here it is: [picture 1: image/png, 200 bytes]"


def returning(*media: MediaPart) -> FakeToolBackend:
    return backend_of(read=[ScriptedCall(ToolOutput(TEXT, media=media))])


@pytest.mark.slow
async def test_a_picture_goes_to_the_model_beside_the_result_that_names_it(tmp_path: Path) -> None:
    client = ScriptedClient(calling(call(1)), said("It is red."), said("Still red."))
    async with opened_chat(client, returning(PICTURE), tmp_path) as chat:
        result = (await ask(chat))[2]
        assert (result.content, [each.label for each in result.attachments]) == (TEXT, ["picture 1, 64 × 48, 141 B"])
        assert [(turn.role, turn.media) for turn in client.requests[1]][2:] == [("tool", (PICTURE,))]
        chat_id = chat.stored.id
    async with opened_chat(client, returning(PICTURE), tmp_path, chat_id=chat_id) as chat:
        await ask(chat, "And now?")
        assert client.requests[2][2].media == (PICTURE,), "it is there when the chat is opened again"


@pytest.mark.slow
async def test_what_cannot_be_read_is_a_sentence_and_the_rest_is_sent() -> None:
    client = ScriptedClient(calling(call(1)), said("Done."))
    script = b"<svg onload='alert(1)'/>"
    media = (part(picture_of()[:60]), part(wav_of(0.1)), part(script, "image/svg+xml"), MediaPart("image/png", "?"))
    async with opened_chat(client, returning(*media, part(wav_of(0.1), "audio/mpeg"))) as chat:
        result = (await ask(chat))[2]
    assert [each.name for each in result.attachments] == ["sound 1"]
    assert result.attachments[0].media[0].mime_type == "audio/wav", "its bytes say what it is"
    first, damaged, *others = result.content.splitlines()
    assert first == TEXT
    assert damaged.startswith("[picture 1 is damaged")
    assert others == ["[picture 2 is a WAV sound.]", "[picture 3 is a text.]", "[picture 4 is not Base64.]"]
    assert client.requests[1][2].content == result.content


@pytest.mark.slow
async def test_a_full_disk_loses_the_picture_and_not_the_call() -> None:
    client = ScriptedClient(calling(call(1)), said("Done."))
    async with opened_chat(client, returning(PICTURE)) as chat:

        async def fail(*_args: object) -> None:
            raise StorageError("The disk is full.", "Free some space.")

        chat.stored.keep_files = fail
        result = (await ask(chat))[2]
    assert (result.attachments, result.content) == ((), f"{TEXT}\n[The disk is full.]")


@pytest.mark.slow
async def test_a_picture_is_exported_with_its_call_and_goes_with_it(tmp_path: Path) -> None:
    client = ScriptedClient(calling(call(1)), said("Red."))
    async with opened_chat(client, returning(PICTURE), tmp_path) as chat:
        file = (await ask(chat))[2].attachments[0].media[0]
    with ChatStore(tmp_path) as store:
        transcript = store.transcripts.read(1)
        shown = {name: "".join(export([transcript], store.files.read)) for name, export in EXPORTS.items()}
        data = f"data:image/png;base64,{PICTURE.base64}"
        assert data in shown["markdown"]
        assert data in html.unescape(shown["html"])
        assert "picture 1, 64 × 48" in shown["html"]
        (tmp_path / "chat.json").write_text(shown["json"], encoding="utf-8")
        import_file(tmp_path / "chat.json", store)
        assert store.messages.of(2)[2].attachments == store.messages.of(1)[2].attachments
        for number in (1, 2):
            store.messages.remove(number, store.messages.of(number)[0].id)
        assert store.files.read(file), "for a day the removal can be undone"
        with store.files._database.writing() as connection:
            connection.execute("UPDATE media_files SET free_from_ms = 0")
        assert store.files.remove_unused() == 1


def test_no_result_has_more_pictures_than_a_prompt_takes() -> None:
    from app.chat.turns import MAX_RESULT_MEDIA
    from app.engine.request import MAX_MEDIA as MAX_OF_A_PROMPT

    assert MAX_MEDIA <= MAX_RESULT_MEDIA <= MAX_OF_A_PROMPT // 2
