from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import pytest

from app.chat.attachments import parser_process
from app.chat.attachments.reader import read_data
from app.common.extras import AUDIO, MCP, Extra
from app.engine.media import decoder_process
from app.engine.media.decoder_process import DecoderProcess
from app.protocol.errors import RequestError
from app.tools.mcp.config import ToolError
from app.tools.mcp.lifecycle import sdk_connect
from quantizer.system.errors import UsageError
from tests.app.chat.attachments.files import picture_of, wav_of

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("extra", [AUDIO, MCP], ids=lambda extra: extra.name)
def test_the_command_installs_what_the_extra_asks_for(extra: Extra) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["optional-dependencies"][extra.name] == [extra.requirement]
    assert extra.requirement in project["dependency-groups"]["dev"]
    assert extra.is_installed
    assert f"the extra `{extra.name}`" in extra.missing.cause
    assert extra.requirement in extra.missing.remedy.replace("'", "").replace('"', "")


def without_miniaudio(module: str) -> list[str]:
    """Return the command of a child in which the package cannot be imported."""
    program = f"import runpy, sys; sys.modules['miniaudio'] = None; runpy.run_module({module!r}, run_name='__main__')"
    return [sys.executable, "-c", program]


@pytest.mark.slow
def test_without_its_package_an_engine_refuses_sounds_and_still_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder_process, "python_command", without_miniaudio)
    decoder = DecoderProcess()
    try:
        with pytest.raises(RequestError, match=r"Sounds need the extra `audio`.*not installed\. Run: .*miniaudio>="):
            decoder.sound(wav_of(1.0), 16_000)
        assert decoder.picture(picture_of((6, 4))).width == 6
    finally:
        decoder.close()


@pytest.mark.slow
def test_without_its_package_a_sound_is_not_attached_and_a_picture_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parser_process, "python_command", without_miniaudio)
    with pytest.raises(
        UsageError, match=r"talk\.wav cannot be read: sounds need the extra `audio`.* Run: .*miniaudio>="
    ):
        read_data(wav_of(1.0), "talk.wav")
    assert read_data(picture_of((6, 4)), "p.png").attachment.media


async def test_without_its_package_no_server_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    assert not MCP.is_installed
    with pytest.raises(ToolError, match=r"not installed\. Run: .*mcp>="):
        await sdk_connect()


def test_a_package_that_is_there_is_found_without_its_import(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "miniaudio", raising=False)
    assert AUDIO.is_installed
    assert "miniaudio" not in sys.modules
