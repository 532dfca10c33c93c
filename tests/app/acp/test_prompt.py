"""What an editor attaches to a prompt: mentioned files, embedded texts, pictures and sounds."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import pytest
from acp import (
    audio_block,
    embedded_blob_resource,
    embedded_text_resource,
    image_block,
    resource_block,
    resource_link_block,
    text_block,
)
from acp.schema import ClientCapabilities, FileSystemCapabilities
from PIL import Image

from app.acp.editor import Editor, EditorBuffers
from app.acp.prompt import read_prompt
from quantizer.system.errors import StorageError, UsageError


class _Buffers(EditorBuffers):
    def __init__(self, files: dict[str, str]) -> None:
        super().__init__(Editor(), "s")
        self._files = files

    async def read(self, path: Path) -> str | None:
        return self._files.get(str(path))


async def _read(*blocks: Any, buffers: dict[str, str] | None = None) -> Any:
    return await read_prompt(blocks, _Buffers(buffers or {}))


def _picture() -> str:
    data = io.BytesIO()
    Image.new("RGB", (4, 3)).save(data, "PNG")
    return base64.b64encode(data.getvalue()).decode()


async def test_a_mentioned_file_is_attached_once_and_named_in_the_text(tmp_path):
    path = tmp_path / "my notes.md"
    path.write_text("# Notes\n", encoding="utf-8")
    link = resource_link_block("notes", path.as_uri())
    question, contents = await _read(text_block("Sum up "), link, text_block(" and again "), link)
    assert question.content == "Sum up @my notes.md and again @my notes.md"
    assert [(each.name, each.content) for each in question.attachments] == [("my notes.md", "# Notes\n")]
    assert contents == {}


async def test_a_mentioned_file_is_read_as_the_editor_has_it(tmp_path):
    path = tmp_path / "main.py"
    path.write_text("old", encoding="utf-8")
    question, _ = await _read(resource_link_block("main.py", path.as_uri()), buffers={str(path): "unsaved"})
    assert question.attachments[0].content == "unsaved"


async def test_selected_lines_that_are_embedded_have_their_place_in_the_name():
    block = resource_block(embedded_text_resource("file:///project/main.py#L5:10", "def f(): ..."))
    question, _ = await _read(text_block("What is "), block)
    assert question.content == "What is @main.py#L5:10"
    assert question.attachments[0].content == "def f(): ..."


@pytest.mark.parametrize("uri", ["https://example.org/page", "zed:///agent/thread/7", "file://other-machine/x"])
async def test_what_is_no_file_of_this_machine_is_named_and_never_fetched(uri):
    question, _ = await _read(text_block("See "), resource_link_block("there", uri))
    assert (question.content, question.attachments) == (f"See {uri}", ())


async def test_a_folder_is_named_by_its_path(tmp_path):
    question, _ = await _read(text_block("Look into "), resource_link_block("x", tmp_path.as_uri()))
    assert (question.content, question.attachments) == (f"Look into {tmp_path}", ())


@pytest.mark.slow
async def test_pictures_and_sounds_are_attached_with_their_contents():
    sound = base64.b64encode(_wave()).decode()
    blob = resource_block(embedded_blob_resource("file:///project/logo.png", _picture()))
    question, contents = await _read(
        text_block("What is this?"), image_block(_picture(), "image/png"), audio_block(sound, "audio/wav"), blob
    )
    assert [each.name for each in question.attachments] == ["picture 1", "sound 1", "logo.png"]
    assert len(contents) == 2  # equal pictures are one content
    assert question.attachments[1].media[0].is_sound


REFUSED = [
    ((), UsageError, "The prompt is empty"),
    ((text_block("  "),), UsageError, "The prompt is empty"),
    ((text_block("x" * (5 << 20)),), UsageError, "The prompt is a text of more than 4 MiB"),
    ((image_block("no base64!", "image/png"),), UsageError, "is not valid base64"),
    ((resource_link_block("x", "file:///nowhere/at/all.txt"),), StorageError, "all.txt cannot be read"),
    (
        (resource_block(embedded_text_resource("file:///x.txt", "x" * (5 << 20))),),
        UsageError,
        "is a text of more than 4 MiB",
    ),
    ((resource_block(embedded_blob_resource("file:///x.gz", "H4sIAAAAAAAA")),), UsageError, "a compressed file"),
]


@pytest.mark.parametrize(("blocks", "error", "text"), REFUSED, ids=range(len(REFUSED)))
async def test_what_cannot_be_attached_is_refused_with_its_name(blocks, error, text):
    with pytest.raises(error, match=text):
        await _read(*blocks)


async def test_control_sequences_of_an_editor_do_not_reach_a_terminal():
    question, _ = await _read(text_block("a\x1b[31mb\r\nc"))
    assert question.content == "ab\nc"


def test_an_editor_without_files_has_no_buffers():
    editor = Editor()
    assert not editor.files.read_text_file
    editor.capabilities = ClientCapabilities(fs=FileSystemCapabilities(read_text_file=True))
    assert editor.files.read_text_file


def _wave() -> bytes:
    import wave

    data = io.BytesIO()
    with wave.open(data, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16000)
        file.writeframes(b"\0\0" * 1600)
    return data.getvalue()
