"""`localllm run` with files: what the engine gets, and what is said where that cannot be."""

from __future__ import annotations

import base64
import io
import json
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from app.cli.main import main
from tests.app.chat.attachments.files import pdf_of, picture_of, wav_of
from tests.app.running import RunningService
from tests.quantizer.gguf_projectors import tiny_projector
from tests.tui.far_engine import FarEngine

N_PICTURE = 6  # tokens of the tiny projector, with the marks around them


@dataclass(frozen=True)
class Asked:
    """What a command did: its exit status and output, and the last message that the engine got (None: none)."""

    status: int | str | None
    stdout: str
    stderr: str
    message: dict[str, Any] | None


Run = Callable[..., Asked]


@pytest.fixture
def far() -> Iterator[FarEngine]:
    with FarEngine.serving() as engine:
        yield engine


@pytest.fixture
def run(
    environment: Mapping[str, str],
    far: FarEngine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Run:
    """`localllm run` with an engine elsewhere, in a folder with some files."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    files = {"photo.png": picture_of(), "talk.wav": wav_of(1), "paper.pdf": pdf_of(["Soup", "Salt"]), "n.md": b"Boil."}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)

    def run(*arguments: str, stdin: bytes = b"") -> Asked:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        far.send("Yes.")
        far.end()
        with pytest.raises(SystemExit) as leaving:
            main(["run", *arguments, "--connect", far.url])
        message = far.requests[-1]["messages"][-1] if far.requests else None
        return Asked(leaving.value.code, *capsys.readouterr(), message)

    return run


def _text_of(asked: Asked) -> str:
    assert asked.message is not None, asked.stderr
    content = asked.message["content"]
    return content if isinstance(content, str) else content[-1]["text"]


@pytest.mark.slow
def test_pictures_and_sounds_go_before_the_question(run: Run) -> None:
    asked = run("far", "What is this?", "photo.png", "talk.wav")
    assert (asked.status, asked.stdout, asked.stderr) == (0, "Yes.\n", "")
    assert asked.message is not None
    picture, sound, text = asked.message["content"]
    assert picture["image_url"]["url"] == f"data:image/png;base64,{base64.b64encode(picture_of()).decode()}"
    assert sound["input_audio"] == {"data": base64.b64encode(wav_of(1)).decode(), "format": "wav"}
    assert "photo.png, 64 × 48" in text["text"]
    assert text["text"].endswith("talk.wav, 0:01: sound 1\n\nWhat is this?")


def test_documents_are_texts_before_the_question(run: Run) -> None:
    text = _text_of(run("far", "Sum up.", "paper.pdf", "n.md"))
    assert text == ("paper.pdf:\n```\n[Page 1]\n\nSoup\n\n[Page 2]\n\nSalt\n```\n\nn.md:\n```\nBoil.\n```\n\nSum up.")


@pytest.mark.slow
def test_pages_can_be_chosen_and_seen(run: Run) -> None:
    assert "Soup" not in _text_of(run("far", "Sum up.", "paper.pdf#2"))
    asked = run("far", "Sum up.", "paper.pdf#pictures")
    assert asked.message is not None
    assert [part["type"] for part in asked.message["content"]] == ["image_url", "image_url", "text"]
    assert _text_of(asked) == "paper.pdf, 2 pages: pictures 1 to 2\n\nSum up."


def test_of_texts_that_are_searched_passages_are_sent_and_named(run: Run) -> None:
    asked = run("far", "Where is salt?", "paper.pdf", "photo.png", "--search-files")
    text = _text_of(asked)
    assert text.startswith("paper.pdf, 2 pages, searched: too long")
    assert "[1] paper.pdf, page 2\n```\nSalt\n```\n\nWhere is salt?" in text
    assert "Soup" not in text
    assert asked.stderr == "Sources:\n[1] paper.pdf, page 2\n"
    answer = json.loads(run("far", "Where is salt?", "paper.pdf", "--search-files", "--json").stdout)
    assert [source["page"] for source in answer["sources"]] == [2]


def test_with_a_prompt_option_what_follows_the_model_are_files(run: Run) -> None:
    assert _text_of(run("far", "n.md", "paper.pdf#1", "-p", "Sum up.")).startswith(
        "n.md:\n```\nBoil.\n```\n\npaper.pdf:"
    )


def test_a_piped_picture_is_attached_and_a_piped_text_follows_the_prompt(run: Run) -> None:
    asked = run("far", "What is this?", stdin=picture_of())
    assert asked.message is not None
    assert [part["type"] for part in asked.message["content"]] == ["image_url", "text"]
    assert _text_of(run("far", "Sum up.", "n.md", stdin=b"GIF89a is a format.\n")).endswith(
        "Sum up.\n\nGIF89a is a format."
    )


@pytest.mark.slow
def test_the_json_says_what_was_attached(run: Run) -> None:
    answer = json.loads(run("far", "What?", "photo.png", "paper.pdf", "--json").stdout)
    picture, paper = answer["attachments"]
    assert (picture["name"], picture["media_type"], picture["characters"]) == ("photo.png", "image/png", 0)
    assert picture["media"][0]["bytes"] == len(picture_of())
    assert (paper["detail"], paper["media"]) == ("2 pages", [])


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (("far", "What?", "gone.png"), 1, "gone.png cannot be read: No such file or directory. Check its name"),
        (("far", "photo.png"), 2, "photo.png is a file, not a prompt. Give a question before it"),
        (("far", "What?", "paper.pdf#7"), 2, "paper.pdf has 2 pages, not 7"),
        (("far", "What?", "n.md#2"), 2, "has no pages to choose"),
        (("far", "What?", "."), 2, "is a folder"),
        (("far", "", "n.md"), 2, "There is no question about the files."),
    ],
)
def test_what_cannot_be_attached_is_a_sentence_and_no_request(
    run: Run, far: FarEngine, arguments: tuple[str, ...], status: int, words: str
) -> None:
    asked = run(*arguments)
    assert (asked.status, asked.stdout, far.requests) == (status, "", [])
    assert words in asked.stderr


@pytest.mark.slow
def test_a_model_that_sees_takes_a_picture_and_pages_of_a_document(
    tiny_model: Path,
    environment: Mapping[str, str],
    start_service: Callable[..., RunningService],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    tiny_projector(tmp_path / "mmproj-tiny.gguf")
    service = start_service(model=str(shutil.copy(tiny_model, tmp_path / "tiny.gguf")))
    for name, value in {**environment, "LOCALLLM_PORT": service.url.rpartition(":")[2]}.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "photo.png").write_bytes(picture_of())
    (tmp_path / "paper.pdf").write_bytes(pdf_of(["Soup"]))

    def n_prompt_tokens(question: str, *files: str) -> int:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
        names = [str(tmp_path / name) for name in files]
        with pytest.raises(SystemExit) as leaving:
            main(["run", "tiny", question, *names, "--max-tokens", "1", "--json"])
        output, errors = capsys.readouterr()
        assert (leaving.value.code, errors) == (0, "")
        return int(json.loads(output)["usage"]["prompt_tokens"])

    alone = n_prompt_tokens("What is this?")
    assert n_prompt_tokens("What is this?", "photo.png") == alone + N_PICTURE
    heading = len("paper.pdf, 1 page: picture 1\n\n")
    assert n_prompt_tokens("What is this?", "paper.pdf#pictures") == alone + heading + N_PICTURE
