"""`localllm transcribe`: its formats, files and failures, with the fake engine."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.app.cli.in_process import json_of, run_localllm
from tests.app.engine.media.files import sound_file
from tests.app.running import RunningService
from tests.app.service_process import start_command
from tests.patience import PATIENCE_S
from tests.quantizer.gguf_projectors import hearing_header

pytestmark = pytest.mark.slow  # each sound has a process that decodes it

SAID = "Hello there."
SAYS = ("--prompt", f"<say>{SAID}</say>")


@pytest.fixture(scope="module")
def hearing(
    tiny_model: Path, tmp_path_factory: pytest.TempPathFactory, start_service: Callable[..., RunningService]
) -> RunningService:
    folder = tmp_path_factory.mktemp("hearing")
    hearing_header(folder / "mmproj-hearing.gguf")
    return start_service(model=str(shutil.copy(tiny_model, folder / "hearing.gguf")))


@pytest.fixture
def at_service(hearing: RunningService, environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a command that finds the service with a model that hears."""
    return {**environment, "LOCALLLM_PORT": hearing.url.rpartition(":")[2]}


@pytest.fixture
def talk(tmp_path: Path) -> Path:
    path = tmp_path / "talk.wav"
    path.write_bytes(sound_file(2.0))
    return path


def test_text_is_printed(at_service: dict[str, str], talk: Path) -> None:
    done = run_localllm(at_service, "transcribe", talk, *SAYS)
    assert (done.returncode, done.stdout) == (0, f"{SAID}\n"), done.stderr


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("a.txt", f"{SAID}\n"),
        ("a.srt", f"1\n00:00:00,000 --> 00:00:02,000\n{SAID}\n"),
        ("a.VTT", f"WEBVTT\n\n00:00:00.000 --> 00:00:02.000\n{SAID}\n"),
    ],
)
def test_the_ending_of_the_output_is_its_format(
    at_service: dict[str, str], talk: Path, name: str, written: str
) -> None:
    output = talk.with_name(name)
    output.write_text("older")
    done = run_localllm(at_service, "transcribe", talk, "-o", output, *SAYS)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert output.read_text() == written


def test_json_has_the_segments(at_service: dict[str, str], talk: Path) -> None:
    found = json_of(run_localllm(at_service, "transcribe", talk, "--json", "--language", "en", *SAYS))
    segment = {"begin_s": 0.0, "end_s": 2.0, "text": SAID}
    assert found == {"file": str(talk), "language": "en", "length_s": 2.0, "text": SAID, "segments": [segment]}


def test_several_sounds_go_into_a_folder(at_service: dict[str, str], talk: Path) -> None:
    other, folder = talk.with_name("other.flac"), talk.with_name("out")
    shutil.copy(talk, other)
    folder.mkdir()
    done = run_localllm(at_service, "transcribe", talk, other, "-o", folder, "--format", "srt", "--translate", *SAYS)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in folder.iterdir()) == ["other.srt", "talk.srt"]


@pytest.mark.parametrize(
    ("arguments", "said", "status"),
    [
        (("missing.wav",), "cannot be read", 2),
        (("talk.wav", "-o", "talk.doc"), "no format of transcripts", 2),
        (("talk.wav", "talk.wav", "-o", "a.srt"), "is not a folder", 2),
        (("talk.wav", "-o", "missing/a.srt"), "cannot be written", 1),
        (("note.md",), "note.md: A file is neither a picture nor a sound", 1),
        ((), "Missing argument", 2),
    ],
)
def test_a_wrong_file_is_named(
    at_service: dict[str, str], talk: Path, arguments: tuple[str, ...], said: str, status: int
) -> None:
    talk.with_name("note.md").write_text("Boil.")
    done = run_localllm(at_service, "transcribe", *arguments, cwd=talk.parent)
    assert said in done.stderr
    assert done.returncode == status
    assert done.stdout == ""


@pytest.mark.skipif(os.name == "nt", reason="a signal of POSIX")
def test_ctrl_c_ends_it_and_writes_no_file(hearing: RunningService, at_service: dict[str, str], talk: Path) -> None:
    n_before, n_tokens = hearing.n_output_tokens(), 900
    prompt = ("--prompt", f"<noise>{n_tokens}</noise>")
    output = talk.with_name("a.srt")
    process = start_command(at_service, "transcribe", str(talk), "-o", str(output), *prompt)
    while not hearing.model()["n_running"]:
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    written, _ = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, written) == (130, b"")
    assert not output.exists()
    hearing.wait_until_cut(n_before, n_tokens)
