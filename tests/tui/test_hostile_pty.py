"""Hostile text in the real command: only the renderer's escape sequences reach the terminal.

A pseudo-terminal records the bytes.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress

import pytest

from tests.tui.hostile import BENIGN, HOSTILE, controls_in, heads, letters, sequence_kinds, sequences

if sys.platform == "win32":
    pytest.skip("pseudo-terminals are POSIX", allow_module_level=True)


from tests.quantizer.gguf_files import tiny_llama
from tests.tui.hostile_engine import REFUSED, hostile_engine
from tests.tui.pseudo_terminal import PseudoTerminal
from tests.tui.test_hostile_text import SIZE, keep_chats

pytestmark = pytest.mark.slow

ESC, DOWN, F5, F6, F8, END = "\x1b", "\x1b[B", "\x1b[15~", "\x1b[17~", "\x1b[19~", "\x1b[F"
ENDED = {"done", "FAILED", "failed"}
SOME_MODELS = slice(0, 120, 10)


def at_home(folder, texts):
    """Lay a disk out whose chats, files and log are named and written with the texts; return the environment."""
    folder.mkdir()
    keep_chats(texts, folder / "data")
    (folder / "cache").mkdir()
    (folder / "cache" / "service.log").write_bytes("\n".join(texts).encode("utf-8", "surrogatepass"))
    (folder / "here").mkdir()
    for text in texts:
        with suppress(OSError, ValueError):  # NUL and slashes are in no name
            (folder / "here" / text).write_text("short", encoding="utf-8")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("LOCALLLM_", "HF_", "NO_COLOR"))}
    settings = {"DATA_DIR": folder / "data", "CACHE_DIR": folder / "cache", "CONFIG": folder / "config.toml"}
    kept |= {f"LOCALLLM_{name}": str(value) for name, value in settings.items()}
    return kept | {"HOME": str(folder), "HF_ENDPOINT": "http://127.0.0.1:9", "LOCALLLM_PORT": "0"}


def keep_models(folder, texts):
    """Put models into the library whose metadata, and where a disk takes them whose names, are the texts."""
    for number, text in enumerate(texts[SOME_MODELS]):
        publisher = folder / "data" / "models" / "local" / f"m{number:02}"
        publisher.mkdir(parents=True)

        def describe(writer, text=text, number=number):
            name = text.encode("utf-8", "replace").decode()
            writer.add_name(name)
            writer.add_author(name)
            writer.add_license(name)
            writer.add_description("\n".join(each.encode("utf-8", "replace").decode() for each in texts[number::12]))

        with suppress(OSError, ValueError):
            tiny_llama(publisher / f"{text}.gguf", describe)


def goes_to(terminal, keys, *texts):
    since = len(terminal.written)
    terminal.types(keys)
    terminal.sees(*texts, since=since)
    return since


def chat_with_a_hostile_engine(folder, texts):
    """Talk with it, have it refuse, look at the chats, the files and the log; return all that was written."""
    environment = at_home(folder, texts)
    with (
        hostile_engine(texts) as url,
        PseudoTerminal.app(environment, folder / "here", "--connect", url, size=SIZE) as terminal,
    ):
        terminal.sees("● ready")
        goes_to(terminal, "go\r", "h119", " token")
        goes_to(terminal, F5, "h119", "chats")
        since = goes_to(terminal, ESC, "h119", " token")
        unseen = [head for head in heads() if head not in letters(terminal.written[since:])]
        goes_to(terminal, "/log\r", "h119")
        goes_to(terminal, F5, "chats")
        goes_to(terminal, ESC, " token")
        goes_to(terminal, REFUSED + "\r", "No answer", "h011")
        goes_to(terminal, "@h0", "h01")
        goes_to(terminal, F5, "h119")
        goes_to(terminal, END, "t001")
        leaves(terminal)
    return terminal.written, unseen


def look_at_hostile_models(folder, texts):
    """Look at models, at the card of one, and at a job that is made of it; return all that was written."""
    environment = {**at_home(folder, texts), "LOCALLLM_ENGINE": "fake"}
    keep_models(folder, texts)
    with PseudoTerminal.app(environment, folder / "here", size=SIZE) as terminal:
        terminal.sees("● ready")
        goes_to(terminal, F6, "Recommended for this machine", "h100")
        goes_to(terminal, DOWN, "h10")
        goes_to(terminal, "c", "Esc closes")
        goes_to(terminal, ESC, "Recommended")
        goes_to(terminal, "q", "Q4_K_M")
        goes_to(terminal, f"{DOWN}\r", "started")
        since = goes_to(terminal, F8, "Quantize")
        terminal.until(lambda: ENDED & set(letters(terminal.written[since:]).split()), "the job never ended")
        leaves(terminal)
    return terminal.written, []


def leaves(terminal):
    terminal.types("\x11")
    terminal.until(lambda: terminal.process.poll() is not None, "the app stays")


@pytest.mark.parametrize("visit", [chat_with_a_hostile_engine, look_at_hostile_models])
def test_only_what_the_renderer_made_comes_over_the_terminal(visit, tmp_path):
    plain, _ = visit(tmp_path / "plain", BENIGN)
    written, unseen = visit(tmp_path / "hostile", HOSTILE)
    assert sequence_kinds(written) - sequence_kinds(plain) == set()
    assert [each for each in sequences(written) if "1337" in each] == []
    assert controls_in(written.replace("\r\n", "\n")) == set()
    assert unseen == []
