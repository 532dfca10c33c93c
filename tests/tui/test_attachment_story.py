"""Pictures, sounds and documents in tmux: the installed command, its service, and a fake engine that sees and hears."""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path

import pytest

if shutil.which("tmux") is None:
    pytest.skip("The story is lived in a terminal of tmux's, and tmux is not installed.", allow_module_level=True)

from quantizer.system.process import python_command
from tests.app.chat.attachments.files import pdf_of, picture_of, wav_of
from tests.quantizer.gguf_files import tiny_llama
from tests.quantizer.gguf_projectors import tiny_projector
from tests.tui.tmux import Tmux

pytestmark = pytest.mark.slow

PAGES = ("Leeks and salt.", "Boil for an hour.", "Serve hot.")
CITING = "An hour, see [Page 2]."
SEEN = "A plain picture."
TEMPLATE = "{% for message in messages %}{{ message.content }}\n{% endfor %}"


@pytest.fixture
def terminal(tmp_path: Path):
    """A shell in a folder with files to attach: nobody's home but this test's, and no way out to a network."""
    home, models = tmp_path / "home", tmp_path / "models"
    home.mkdir()
    models.mkdir()
    (home / "paper.pdf").write_bytes(pdf_of(PAGES))
    (home / "photo.png").write_bytes(picture_of((320, 240)))
    (home / "song.wav").write_bytes(wav_of(12.0))
    tiny_llama(models / "tiny.gguf", lambda writer: writer.add_chat_template(TEMPLATE))
    tiny_projector(models / "mmproj-tiny.gguf")
    theirs = ("LOCALLLM_", "HF_", "XDG_", "TMUX", "NO_COLOR")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(theirs)}
    environment |= {
        "HOME": str(home),
        "TERM": "xterm-256color",
        "HF_ENDPOINT": "http://127.0.0.1:9",
        "LOCALLLM_CACHE_DIR": str(tmp_path / "cache"),
        "LOCALLLM_CONFIG": str(tmp_path / "config.toml"),
        "LOCALLLM_DATA_DIR": str(tmp_path / "data"),
        "LOCALLLM_ENGINE": "fake",
        "LOCALLLM_MODEL": str(models / "tiny.gguf"),
        "LOCALLLM_PORT": "0",
    }
    with Tmux.shell(environment, home) as terminal:
        yield terminal


def attaches(terminal: Tmux, name: str, chip: str) -> None:
    terminal.types(f"@{name[:4]}")
    terminal.sees(f" @{name}")
    terminal.presses("Tab")
    terminal.sees(chip)


def asks_about_a_document(terminal: Tmux) -> None:
    attaches(terminal, "paper.pdf", "[paper.pdf · 3 pages")
    terminal.sees("of the context ×]", " + ")
    terminal.asks(f"How long? <say>{CITING}</say>")
    terminal.sees("▌ [paper.pdf, 3 pages]", f"    {CITING}")


def asks_about_a_picture(terminal: Tmux) -> None:
    attaches(terminal, "photo.png", "[photo.png · 320 × 240")
    terminal.sees("6 tokens")  # as the fake encoder makes of any picture
    terminal.presses("C-l")
    terminal.sees("Ctrl+R removes it", "▀▀▀▀▀▀")
    terminal.presses("Escape")
    terminal.no_longer_sees("Ctrl+R removes it")
    terminal.asks(f"What is it? <say>{SEEN}</say>")
    terminal.sees("▌ [photo.png, 320 × 240", "▌ ▀▀▀▀▀▀", f"    {SEEN}")


def leaves(terminal: Tmux) -> None:
    terminal.presses("C-q")
    terminal.until(lambda: not terminal.processes("-m tui"), "the app stays")


def test_a_document_and_a_picture_are_asked_about_and_still_there_after_a_restart(terminal: Tmux) -> None:
    terminal.asks(shlex.join(python_command("tui")))
    terminal.sees("tiny  ● ready")
    asks_about_a_document(terminal)
    asks_about_a_picture(terminal)
    attaches(terminal, "song.wav", "[song.wav · 0:12")
    leaves(terminal)
    terminal.asks(shlex.join(python_command("tui")))
    terminal.sees("tiny  ● ready", "▌ ▀▀▀▀▀▀", "▌ [photo.png, 320 × 240", "[song.wav · 0:12")
    leaves(terminal)
