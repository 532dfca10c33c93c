"""Models that speak, loaded as a worker loads them: tiny ones of seeded random weights, by the real engine."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from app.engine.load.projector_file import validate_projector
from app.library.local.model_task import task_of
from app.library.local.projectors import find_projector
from quantizer.gguf.gguf_reader import ModelFileError
from quantizer.gguf.header import read_header
from tests.app.engine.media.files import sound_file
from tests.patience import PATIENCE_S
from tests.quantizer.gguf_files import tiny_llama
from tests.quantizer.gguf_speakers import tiny_speaker

REAL_SPEECH = Path(__file__).with_name("real_speech.py")
KINDS = ("qwen3tts", "pockettts")


def spoken(model: Path, cache: Path) -> dict[str, Any]:
    voice = cache / "voice.wav"
    cache.mkdir(exist_ok=True)
    voice.write_bytes(sound_file(1.0))
    command = [sys.executable, str(REAL_SPEECH), str(cache), str(model), str(voice)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module", params=KINDS)
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("speaking")
    return {"kind": request.param} | spoken(tiny_speaker(folder / "model", request.param), folder / "cache")


@pytest.mark.slow
def test_it_speaks_and_does_nothing_else(found: dict[str, Any]) -> None:
    assert (found["speaks"], found["hears"], found["can_generate"], found["n_ctx"]) == (True, False, False, 2048)
    assert any(notice.endswith("says texts aloud; it cannot chat.") for notice in found["notices"])


@pytest.mark.slow
def test_a_seed_says_the_same_whatever_was_said_before(found: dict[str, Any]) -> None:
    (first,) = found["first"]
    assert found["again"] == [first]
    assert found["both"][0] == first
    assert len(set(found["both"])) == 2
    assert found["after an error"] == found["after an interruption"] == [first]


@pytest.mark.slow
def test_the_seed_the_voice_and_the_text_are_heard(found: dict[str, Any]) -> None:
    sounds = [found[name][0] for name in ("first", "reseeded", "with voice", "special tokens")]
    assert len(set(sounds)) == len(sounds)


@pytest.mark.slow
def test_the_language_counts_where_the_model_knows_several(found: dict[str, Any]) -> None:
    knows = found["kind"] == "qwen3tts"
    assert (found["in German"] != found["first"]) is knows
    (unknown,) = found["in an unknown language"]
    assert ("unknown language 'xx'" in unknown) is knows


@pytest.mark.slow
def test_a_voice_that_is_no_sound_is_refused(found: dict[str, Any]) -> None:
    assert found["with a picture as voice"] == ["The voice is not a sound."]


@pytest.mark.slow
def test_a_frame_is_interrupted(found: dict[str, Any]) -> None:
    assert found["is_interrupted"]


@pytest.mark.slow
def test_without_its_projector_it_loads_and_says_what_it_lacks(tmp_path: Path) -> None:
    model = tiny_speaker(tmp_path / "model", "pockettts")
    model.with_name("mmproj-pockettts.gguf").unlink()
    found = spoken(model, tmp_path / "cache")
    assert not found["speaks"]
    assert any("speaks with its mmproj file only" in notice for notice in found["notices"])


@pytest.mark.parametrize("kind", KINDS)
def test_the_files_are_known_for_what_they_are(tmp_path: Path, kind: Any) -> None:
    header = read_header(tiny_speaker(tmp_path, kind))
    assert task_of(header.architecture, header.metadata) == "speech"
    found = find_projector(header)
    assert found.projector is not None
    assert (found.speaks, found.hears, found.sees, found.projector.takes_voice) == (True, False, False, True)


def test_a_projector_that_speaks_is_of_one_width_and_of_a_known_kind(tmp_path: Path) -> None:
    model = tiny_speaker(tmp_path, "pockettts")
    projector = model.with_name("mmproj-pockettts.gguf")
    shutil.copy(projector, tmp_path / "mmproj-other.gguf")
    other = read_header(tiny_llama(tmp_path / "other.gguf"))
    assert validate_projector(projector, other).speaks, "of the same width; that it speaks is the model's to say"
    unknown = tiny_speaker(
        tmp_path / "unknown", "pockettts", lambda writer: writer.add_uint32("clip.gen.audio.block_count", 100_000)
    )
    with pytest.raises(ModelFileError, match="block_count"):
        validate_projector(unknown.with_name("mmproj-pockettts.gguf"), read_header(unknown))
