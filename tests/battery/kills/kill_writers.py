"""Kills whatever writes a file of the user's at random moments, and lets its disk end at random offsets.

    uv run python tests/battery/kills/kill_writers.py MODEL [--attempts 200] [--only NAME] [--seed 1]

The writers: import and export of chats, settings, stored responses, saved prefixes, texts for drafts, importance
matrices and downloads.
After each attempt the files must be whole or not there, what was acknowledged must be in them, a full disk must be told
in one sentence, and the same command must then come to its end. Attempts go round the writers; every second one is a
full disk (RLIMIT_FSIZE), where the writer reports it: saved prefixes and texts for drafts are only caches. Not on
Windows.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from app.chat.conversation import MessageContent
from app.chat.files import EXPORTS, export_to
from app.chat.store.chat_store import FILE_NAME, ChatStore
from app.engine.cache.state_store import read_state, states_in
from app.engine.project_texts import read_texts
from app.service.api.responses.store import FILE_NAME as RESPONSES
from app.service.api.responses.store import Kind, ResponseStore, StoreLimits
from app.settings.settings import load_settings
from quantizer.system.process import python_command
from tests.app.library.hub_repos import HubRepo
from tests.app.library.hub_server import HubServer
from tests.battery.tally import finish
from tests.quantizer.gguf_files import tiny_llama

__all__ = ["Writer"]

_N_CHATS, _N_MESSAGES, _N_SETTINGS, _N_STATES, _N_RESPONSES, _N_TEXTS = 60, 6, 40, 60, 60, 60
_BOUND_S = 120.0
_NAME = "m-Q4_0.gguf"

_WRITE_SETTINGS = f"""
import sys
from pathlib import Path
from app.settings.settings import write_setting
from quantizer.system.errors import UserError
try:
    for number in range({_N_SETTINGS}):
        write_setting(Path(sys.argv[1]), "system", "x" * 20 * number + str(number))
        print(number, flush=True)
except UserError as error:
    sys.exit(f"Error: {{error}}")
"""
_WRITE_RESPONSES = f"""
import asyncio, sys
from pathlib import Path
from app.service.api.responses.store import Kind, ResponseStore, StoreLimits
from quantizer.system.errors import UserError
async def main():
    store = ResponseStore(Path(sys.argv[1]), StoreLimits(1 << 30, 0))
    for number in range({_N_RESPONSES}):
        item = {{"id": f"msg_{{number}}", "text": str(number) * 10_000}}
        await store.add(Kind.RESPONSE, {{"id": f"resp_{{number}}", "number": number}}, [item])
        print(number, flush=True)
    await store.close()
try:
    asyncio.run(main())
except UserError as error:
    sys.exit(f"Error: {{error}}")
"""
_WRITE_STATES = f"""
import sys
from pathlib import Path
import numpy as np
from app.engine.cache.state_store import StateKey, write_state
for number in range({_N_STATES}):
    key = StateKey("n", np.arange(number + 1, dtype=np.int32))
    if write_state(Path(sys.argv[1]), f"s{{number}}", key, bytes([number]) * 50_000, 10**9):
        print(number, flush=True)
"""

_WRITE_TEXTS = f"""
import sys
from pathlib import Path
from app.engine.project_texts import keep_texts
for number in range({_N_TEXTS}):
    if keep_texts(Path(sys.argv[1]), "project", "chat", [f"{{number}} " * 4_000]):
        print(number, flush=True)
"""


@dataclass(frozen=True, slots=True)
class Writer:
    """A command that writes into a folder; `largest_bytes` its largest file takes.

    `fault` says what is wrong in the folder, given what the command acknowledged as lines of its output and whether it
    came to its end.
    """

    command: Callable[[Path], Sequence[str]]
    fault: Callable[[Path, Sequence[str], bool], str]
    largest_bytes: int
    tells_of_full_disk: bool = True


def _environment(folder: Path) -> dict[str, str]:
    own = {"DATA_DIR": "data", "CACHE_DIR": "cache", "CONFIG": "config.toml"}
    clean = {name: value for name, value in os.environ.items() if not name.startswith("LOCALLLM_")}
    return clean | {f"LOCALLLM_{name}": str(folder / place) for name, place in own.items()}


def _run(command: Sequence[str], folder: Path, most_bytes: int = 0, after_s: float = 0.0) -> tuple[int, list[str], str]:
    """Run a command; files may grow to `most_bytes`, and it is killed `after_s`. Return status, lines and errors."""
    if most_bytes:
        limit = f"import os, resource as r, sys; r.setrlimit(r.RLIMIT_FSIZE, ({most_bytes}, {most_bytes}))"
        command = [sys.executable, "-c", f"{limit}; os.execv(sys.argv[1], sys.argv[1:])", *command]
    with subprocess.Popen(
        command, env=_environment(folder), cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        timer = threading.Timer(after_s or _BOUND_S, process.kill)
        timer.start()
        output, errors = process.communicate()
        timer.cancel()
    return process.returncode, [line for line in output.splitlines(keepends=True) if line.endswith("\n")], errors


def attempt(writer: Writer, folder: Path, chance: random.Random, longest_s: float, *, is_disk_full: bool) -> str:
    """Disturb a writer, then let it come to its end; what is wrong then, or nothing."""
    command = writer.command(folder)
    most_bytes = chance.randrange(1, writer.largest_bytes) if is_disk_full else 0
    status, lines, errors = _run(command, folder, most_bytes, 0.0 if is_disk_full else chance.uniform(0, longest_s))
    if "Traceback" in errors:
        return f"a traceback with {most_bytes} bytes: {errors[-300:]}"
    if is_disk_full and writer.tells_of_full_disk:
        last = errors.splitlines()[-1:]
        if status not in (0, 1) or (status == 1 and not (last and last[0].startswith("Error: "))):
            return f"a disk of {most_bytes} bytes ended it with {status}: {errors[-300:]}"
    if fault := writer.fault(folder, lines, status == 0):
        return f"{f'a disk of {most_bytes} bytes' if is_disk_full else 'a kill'}: {fault}"
    status, lines, errors = _run(writer.command(folder), folder)
    if status:
        return f"the next run ended with {status}: {errors[-300:]}"
    if left := [str(path.relative_to(folder)) for path in folder.rglob(".*.tmp")]:
        return f"the next run leaves {left}"
    return writer.fault(folder, lines, True)


# What is wrong in a folder


def _chats_fault(folder: Path, lines: Sequence[str], is_done: bool) -> str:
    path = folder / "data" / FILE_NAME
    if not path.exists():
        return "there is no database" if is_done else ""
    with closing(sqlite3.connect(path)) as connection:
        if (health := connection.execute("PRAGMA integrity_check").fetchone()[0]) != "ok":
            return f"integrity_check: {health}"
    with ChatStore(folder / "data") as store:
        n_chats, page = 0, ()
        while page := store.chats.page(after=page[-1] if n_chats else None):
            n_chats += len(page)
            for chat in page:
                if len(store.messages.of(chat.id)) != _N_MESSAGES:
                    return f"the chat {chat.title} is not whole"
    return f"{n_chats} chats are there" if is_done and n_chats < _N_CHATS else ""


def _settings_fault(folder: Path, lines: Sequence[str], is_done: bool) -> str:
    path = folder / "config.toml"
    if not path.exists():
        return "the settings are gone" if lines else ""
    system = load_settings({}, {"LOCALLLM_CONFIG": str(path)}).system
    number = int(system.lstrip("x"))
    if lines and number < int(lines[-1]):
        return f"the settings are those of write {number}, and {int(lines[-1])} was acknowledged"
    return "" if not is_done or number == _N_SETTINGS - 1 else f"the last write is {number}"


def _responses_fault(folder: Path, lines: Sequence[str], is_done: bool) -> str:
    place = folder / "data"
    if not (place / RESPONSES).exists():
        return "there is no database" if lines or is_done else ""
    with closing(sqlite3.connect(place / RESPONSES)) as connection:
        if (health := connection.execute("PRAGMA integrity_check").fetchone()[0]) != "ok":
            return f"integrity_check: {health}"
    wanted = range(_N_RESPONSES) if is_done else map(int, lines)
    missing = [number for number in wanted if not asyncio.run(_is_stored(place, number))]
    return f"the responses {missing} are gone or damaged" if missing else ""


async def _is_stored(place: Path, number: int) -> bool:
    store = ResponseStore(place, StoreLimits(1 << 30, 0))
    items = await store.items(Kind.RESPONSE, f"resp_{number}")
    await store.close()
    return bool(items and items[0]["text"] == str(number) * 10_000)


def _states_fault(folder: Path, lines: Sequence[str], is_done: bool) -> str:
    place = folder / "prefix"
    found = {name: (read_state(place / name, key), key) for name, key, _ in states_in(place)}
    for name, (state, key) in found.items():
        if state is None or bytes(state) != bytes([len(key.tokens) - 1]) * 50_000:
            return f"the state {name} is damaged"
    if missing := {f"s{int(line)}" for line in lines} - found.keys():
        return f"the states {sorted(missing)} are gone"
    others = [path.name for path in place.glob("*") if path.name not in found] if place.exists() else []
    return f"{others} are left" if others else ""


def _texts_fault(folder: Path, lines: Sequence[str], is_done: bool) -> str:
    found = read_texts(folder / "corpus", "project")
    if found.n_damaged:
        return f"{found.n_damaged} texts are damaged"
    kept = {text.partition(" ")[0] for text in found.texts.values()}
    missing = {line.strip() for line in lines} - kept
    return f"the texts {sorted(missing)} are gone" if missing else ""


def _same_file(path: str, expected: bytes) -> Callable[[Path, Sequence[str], bool], str]:
    def fault(folder: Path, _lines: Sequence[str], is_done: bool) -> str:
        place = folder / path
        if not place.exists():
            return "there is no file" if is_done else ""
        return "" if place.read_bytes() == expected else "the file is not whole"

    return fault


def _exported(folder: Path, _lines: Sequence[str], is_done: bool) -> str:
    path = folder / "out.json"
    if not path.exists():
        return "there is no export" if is_done else ""
    try:
        json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        return f"the export is not whole: {error}"
    return ""


def _writers(model: Path, made: Path, hub: HubServer) -> Mapping[str, Writer]:
    """Return the writers; their sources lie in `made`."""
    with ChatStore(made / "source") as store:
        for number in range(_N_CHATS):
            chat = store.chats.create(title=f"chat {number}")
            parent = None
            for index in range(_N_MESSAGES):
                content = MessageContent(role=("user", "assistant")[index % 2], content=f"{number} {index} " * 200)
                parent = store.messages.add(chat.id, parent, content).id
        source = made / "chats.json"
        export_to(
            source,
            EXPORTS["json"]((store.transcripts.read(number + 1) for number in range(_N_CHATS)), store.files.read),
        )
    matrix = ("imatrix", str(model), "-o", "out.gguf", "--chunks", "2", "--threads", "1")
    _run(python_command("app.cli.main", *matrix), made)
    expected = (made / "out.gguf").read_bytes()
    content = hub.repos["org/repo"].files[_NAME].data
    pulled = f"data/models/org/repo/{_NAME}"
    database = (made / "source" / FILE_NAME).stat().st_size

    def verb(*words: str) -> Callable[[Path], Sequence[str]]:
        def command(folder: Path) -> Sequence[str]:
            (folder / "out.gguf").unlink(missing_ok=True)
            return python_command("app.cli.main", *words)

        return command

    def script(text: str, name: str) -> Callable[[Path], Sequence[str]]:
        return lambda folder: [sys.executable, "-P", "-c", text, str(folder / name)]

    def export(folder: Path) -> Sequence[str]:
        if not (folder / "data").exists():
            _run(python_command("app.cli.main", "chats", "import", str(source)), folder)
        (folder / "out.json").unlink(missing_ok=True)
        return python_command("app.cli.main", "chats", "export", "--all", "--format", "json", "-o", "out.json")

    return {
        "import of chats": Writer(verb("chats", "import", str(source)), _chats_fault, database),
        "export of chats": Writer(export, _exported, source.stat().st_size),
        "settings": Writer(script(_WRITE_SETTINGS, "config.toml"), _settings_fault, 20 * _N_SETTINGS),
        "stored responses": Writer(script(_WRITE_RESPONSES, "data"), _responses_fault, 2 << 20),
        "saved prefixes": Writer(script(_WRITE_STATES, "prefix"), _states_fault, 50_000, tells_of_full_disk=False),
        "texts for drafts": Writer(script(_WRITE_TEXTS, "corpus"), _texts_fault, 12_000, tells_of_full_disk=False),
        "importance matrix": Writer(verb(*matrix), _same_file("out.gguf", expected), len(expected)),
        "download": Writer(verb("pull", "org/repo:Q4_0"), _same_file(pulled, content), len(content)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--attempts", type=int, default=200)
    parser.add_argument("--only", default="", help="part of the names of the writers")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    chance, n_failed, tried = random.Random(options.seed), 0, Counter[str]()
    with tempfile.TemporaryDirectory() as name:
        made = Path(name)
        content = tiny_llama(made / "tiny.gguf").read_bytes() + chance.randbytes(8 << 20)
        with HubServer(HubRepo.of("org/repo", {_NAME: content})) as hub:
            os.environ |= {"HF_ENDPOINT": hub.url, "HF_HOME": str(made / "hf")}
            found = _writers(options.model.absolute(), made, hub)
            writers = {key: writer for key, writer in found.items() if options.only in key}
            longest_s = {key: _duration_s(writer, made / f"undisturbed {key}") for key, writer in writers.items()}
            for number in range(options.attempts):
                key = tuple(writers)[number % len(writers)]
                folder = made / str(number)
                folder.mkdir()
                is_full = number // len(writers) % 2 == 1
                tried[f"{key}, {'full disk' if is_full else 'kill'}"] += 1
                if fault := attempt(writers[key], folder, chance, longest_s[key], is_disk_full=is_full):
                    n_failed += 1
                    print(f"{number}, {key}: {fault}", flush=True)
    print(", ".join(f"{key} {count}" for key, count in sorted(tried.items())))
    finish(options.attempts, n_failed, options.seed)


def _duration_s(writer: Writer, folder: Path) -> float:
    """Return how long a writer takes that nothing disturbs; ends the program where it fails."""
    folder.mkdir()
    command = writer.command(folder)
    begun_s = time.monotonic()
    status, lines, errors = _run(command, folder)
    if status or writer.fault(folder, lines, True):
        sys.exit(f"Undisturbed, {command} ended with {status}: {errors} {writer.fault(folder, lines, True)}")
    return time.monotonic() - begun_s


if __name__ == "__main__":
    main()
