"""What a person does with localllm, from the first start to `doctor`: journeys that the fault sweep disturbs.

Owns their folder as it is before, what each does, and whether its answer came. Knows nothing of faults.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

import httpx

from app.chat.conversation import MessageContent
from app.chat.files import EXPORTS, export_to
from app.chat.store.chat_store import FILE_NAME, ChatStore
from app.knowledge import store as knowledge
from quantizer.system.process import python_command
from tests.battery.faults.forks import Forks
from tests.battery.faults.injector import STATE, arm
from tests.bench.served import free_port
from tests.quantizer.gguf_files import tiny_llama
from tests.tui.terminal import Terminal

__all__ = ["BOUND_S", "JOURNEYS", "Ended", "Journey", "World"]

BOUND_S = 180.0  # more is a hang, also on a busy machine
_GREETING = "I am the localllm guide"
_QUESTION = "Hello"
_ANSWER = "word " * 50  # of the chats that are there
_REPO, _FILE = "org/repo", "m-Q4_0.gguf"
_N_CHATS, _N_QUESTIONS = 3, 3
_N_PASSAGES = 4  # of a document
_FORMER, _CHANGED = ("same.txt", "changed.txt", "gone.txt"), ("changed.txt", "new.txt")
_POLL_S = 0.05
_LEAVES_WITHIN_S, _ANSWERS_WITHIN_S = 60.0, 90.0
_N_ERROR_ROWS = 4  # an error is wrapped
_APP_ERRORS = ("cannot", "could not", "The engine", "The service", "Ctrl+R retries", "not available")


@dataclass(frozen=True, slots=True)
class Ended:
    """How a journey ended: the status of its command, what it printed, and what is wrong with its answer, "" if it came
    as it should."""

    status: int
    output: str
    errors: str
    lacks: str


class World:
    """The folders of one user, made anew in the same place for each attempt, for caches know their places."""

    def __init__(self, folder: Path, guide: Path, hub_url: str, forks: Forks) -> None:
        self.root = folder / "world"
        self._forks = forks
        self.data, self.cache, self.out = (self.root / name for name in ("data", "cache", "out"))
        self.config = self.root / "config" / "config.toml"
        self._said = {_ANSWER, *(f"n{number}" for number in range(_N_CHATS))}
        self._used, self._new, self._hub_url = folder / "used", folder / "new", hub_url
        self.environment: dict[str, str] = {}
        self._make(guide)

    @property
    def clean_environment(self) -> dict[str, str]:
        names = {"LOCALLLM_", "HF_", "XDG_", "LD_PRELOAD", "FAULT_"}
        clean = {name: value for name, value in os.environ.items() if not any(map(name.startswith, names))}
        return clean | {
            "LOCALLLM_DATA_DIR": str(self.data),
            "LOCALLLM_CACHE_DIR": str(self.cache),
            "LOCALLLM_CONFIG": str(self.config),
            "LOCALLLM_PORT": str(free_port()),
            "LOCALLLM_KEEP_SERVICE": "0",
            "HF_ENDPOINT": self._hub_url,
            "HF_HOME": str(self.root / "hf"),
            "HOME": str(self.root),
            "TMPDIR": str(self.root / "tmp"),
        }

    def reset(self, *, is_new: bool) -> None:
        """Make the folders as they are at the first start, or after some use."""
        shutil.rmtree(self.root, ignore_errors=True)
        shutil.copytree(self._new if is_new else self._used, self.root, symlinks=True)

    def durable(self) -> dict[str, str]:
        """Return what must never be lost, by name: chats, settings, models, and what was written for the user."""
        kept = {}
        if (chats := self.data / FILE_NAME).exists():
            with closing(sqlite3.connect(chats)) as database:
                kept["health of chats"] = database.execute("PRAGMA integrity_check").fetchone()[0]
                rows = database.execute(
                    "SELECT DISTINCT chats.title, messages.content FROM chats"
                    " JOIN messages ON messages.chat_id = chats.id WHERE chats.deleted_ms IS NULL ORDER BY 1, 2"
                ).fetchall()
                kept["chats"] = str([(title, content) for title, content in rows if content in self._said])
        if (self.data / knowledge.FILE_NAME).exists():
            kept["knowledge"] = str(sorted(_passages(self.data).items()))
        for path in (self.config, *self.data.glob("models/**/*.gguf"), *self.out.glob("*.gguf")):
            kept[str(path.relative_to(self.root))] = _hash(path)
        return kept

    def run(self, *words: str, injected: Mapping[str, str] | None = None, piped: str = "") -> Ended:
        """Run the command `localllm` with `words`; calls count where it is `injected`."""
        status, output, errors = self._forks.run(
            words,
            self.clean_environment | dict(injected or {}),
            self.root,
            piped,
            BOUND_S,
            (injected or {}).get(STATE, ""),
        )
        if status is None:
            return Ended(-9, output, errors, f"no end within {BOUND_S:g} s")
        return Ended(status, output, errors, "")

    def _make(self, guide: Path) -> None:
        for folder in (self.data, self.cache, self.out, self.config.parent, self.root / "tmp"):
            folder.mkdir(parents=True)
        shutil.copytree(self.root, self._new)
        place = self.data / "models" / "org" / "small"
        place.mkdir(parents=True)
        shutil.copy(guide, place / "small.gguf")
        tiny_llama(self.root / "other.gguf")
        self.config.write_text("# mine\nthreads = 1\n", encoding="utf-8")
        lines = (
            {
                "custom_id": str(number),
                "method": "POST",
                "url": "/v1/chat/completions",
                "body": {"messages": [{"role": "user", "content": _QUESTION}], "max_tokens": 30, "temperature": 0},
            }
            for number in range(_N_QUESTIONS)
        )
        (self.root / "questions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
        with ChatStore(self.data) as store:
            for number in range(_N_CHATS):
                chat = store.chats.create(title=f"chat {number}")
                question = store.messages.add(chat.id, None, MessageContent(role="user", content=f"n{number}"))
                store.messages.add(chat.id, question.id, MessageContent(role="assistant", content=_ANSWER))
            transcripts = (store.transcripts.read(number + 1) for number in range(_N_CHATS))
            export_to(self.root / "chats.json", EXPORTS["json"](transcripts, store.files.read))
        self._add_documents()
        for _ in range(2):
            done = self.run("run", "small", _QUESTION)
            if done.status:
                raise SystemExit(f"Undisturbed, a first run ends with {done.status}: {done.errors}")
        shutil.copytree(self.root, self._used)

    def _add_documents(self) -> None:
        """Add a folder of documents to the knowledge, and change it after that."""
        documents = self.root / "documents"
        documents.mkdir()
        for version, names in enumerate((_FORMER, _CHANGED)):
            for name in names:
                parts = (f"{name} version {version} part {part} " + "word " * 150 for part in range(_N_PASSAGES))
                (documents / name).write_text("\n\n".join(parts), "utf-8")
                os.utime(documents / name, (1.7e9 + version, 1.7e9 + version))  # long enough ago to be taken as read
            if not version:
                added = self.run("knowledge", "add", str(documents), "--embedder", "none")
                if added.status:
                    raise SystemExit(f"Undisturbed, adding documents ends with {added.status}: {added.errors}")
        (documents / "gone.txt").unlink()


def _passages(data_dir: Path) -> dict[str, list[str]]:
    """Return the versions of each document's passages, "" for what was left out, and the health of the database."""
    with closing(sqlite3.connect(data_dir / knowledge.FILE_NAME)) as database:
        health = database.execute("PRAGMA integrity_check").fetchone()[0]
        database.execute("INSERT INTO passage_words (passage_words, rank) VALUES ('integrity-check', 1)")
        database.rollback()
        rows = database.execute(
            "SELECT files.path, text FROM files LEFT JOIN passages ON files.id = file_id ORDER BY passages.id"
        ).fetchall()
    found: dict[str, list[str]] = {"health": [health]}
    for path, text in rows:
        version = re.search(r"version (\d+)", text or "")
        found.setdefault(path.decode(), []).append(version[1] if version else "")
    return found


def _hash(path: Path) -> str:
    return sha256(path.read_bytes()).hexdigest()[:16] if path.exists() else "missing"


@dataclass(frozen=True, slots=True)
class Journey:
    """A way to use localllm: `do` uses the world with more variables of the environment. `is_new` is a first start,
    and what is `of_caches` may end with an error where they fail: it is about them."""

    name: str
    do: Callable[[World, Mapping[str, str]], Ended]
    is_new: bool = False
    of_caches: bool = False


def _verb(
    name: str,
    *words: str,
    gives: Callable[[World, Ended], str],
    is_new: bool = False,
    of_caches: bool = False,
    piped: str = "",
) -> Journey:
    def do(world: World, injected: Mapping[str, str]) -> Ended:
        ended = world.run(*(word.format(root=world.root) for word in words), injected=injected, piped=piped)
        lacks = ended.lacks or (gives(world, ended) if ended.status == 0 else "")
        return Ended(ended.status, ended.output, ended.errors, lacks)

    return Journey(name, do, is_new, of_caches)


def _says(*words: str) -> Callable[[World, Ended], str]:
    def gives(_: World, ended: Ended) -> str:
        return "".join(f"no {word!r} in the output. " for word in words if word not in ended.output + ended.errors)

    return gives


def _exported(world: World, _: Ended) -> str:
    try:
        n_chats = len(json.loads((world.out / "chats.json").read_text("utf-8")))
    except (OSError, ValueError) as error:
        return f"the export is not whole: {error!r}"
    return "" if n_chats == _N_CHATS else f"{n_chats} chats are exported"


def _n_chats(n_least: int, n_most: int = 1000) -> Callable[[World, Ended], str]:
    def gives(world: World, _: Ended) -> str:
        if not (path := world.data / FILE_NAME).exists():
            found = 0
        else:
            with closing(sqlite3.connect(path)) as database:
                found = database.execute("SELECT count(*) FROM chats WHERE deleted_ms IS NULL").fetchone()[0]
        return "" if n_least <= found <= n_most else f"{found} chats are there"

    return gives


def _is_file(path: str) -> Callable[[World, Ended], str]:
    return lambda world, _: "" if (world.root / path).is_file() else f"there is no {path}"


def _answered(world: World, _: Ended) -> str:
    path = world.out / "answers.jsonl"
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    n_good = sum(_GREETING in line for line in lines)
    return "" if n_good == len(lines) == _N_QUESTIONS else f"{n_good} good answers in {len(lines)} lines"


def _knowledge(name: str, *words: str, may_forget: bool = False) -> Journey:
    """Return a journey that changes the knowledge: whatever its end, each document is there as it was or as it is."""

    def do(world: World, injected: Mapping[str, str]) -> Ended:
        ended = world.run("knowledge", *(word.format(root=world.root) for word in words), injected=injected)
        found = _passages(world.data)
        wrong = [] if found.pop("health") == ["ok"] else ["the knowledge is damaged"]
        before, after = dict.fromkeys(_FORMER, "0"), dict.fromkeys((*_FORMER[:1], *_CHANGED), "1") | {"same.txt": "0"}
        for path in {*before, *after} if found or not may_forget else ():
            whole = [[version] * _N_PASSAGES for each in (before, after) if (version := each.get(path))]
            may_lack = path not in before or path not in after
            if found.get(path, [""]) not in [*whole, *([[""]] if may_lack else [])]:
                wrong.append(f"{path} is {found.get(path)}")
        return replace(ended, lacks=ended.lacks or ", ".join(wrong))

    return Journey(name, do)


def _serve(world: World, injected: Mapping[str, str]) -> Ended:
    """Serve, ask once, and end the service as Ctrl-C does."""
    environment = world.clean_environment | dict(injected)
    url = f"http://127.0.0.1:{environment['LOCALLLM_PORT']}"
    printed: dict[str, str] = {}
    if injected:
        arm(injected[STATE])
    with subprocess.Popen(
        python_command("app.cli.main", "serve", "--model", "small"),
        env=environment,
        cwd=world.root,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    ) as process:

        def read(name: str, stream: object) -> None:
            printed[name] = stream.read()  # type: ignore[attr-defined]

        readers = [
            threading.Thread(target=read, args=("output", process.stdout)),
            threading.Thread(target=read, args=("errors", process.stderr)),
        ]
        for reader in readers:
            reader.start()
        lacks = _ask(process, url)
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        try:
            status = process.wait(BOUND_S)
        except subprocess.TimeoutExpired:
            process.kill()
            status, lacks = process.wait(), f"{lacks} The service did not end".strip()
        for reader in readers:
            reader.join()
    if lacks.startswith("Error: "):  # an answer of HTTP
        return Ended(1, printed["output"], f"{lacks}\n{printed['errors']}", "")
    is_interrupted = not lacks and status in (0, 130)
    return Ended(0 if is_interrupted else status, printed["output"], printed["errors"], lacks if not status else "")


def _ask(process: subprocess.Popen[str], url: str) -> str:
    """Return what is wrong with the answer, from "Error: " on for an error in the form of the API, "" for none."""
    body = {"messages": [{"role": "user", "content": _QUESTION}], "max_tokens": 40, "temperature": 0}
    until_s = time.monotonic() + BOUND_S
    with httpx.Client(trust_env=False, timeout=BOUND_S) as http:
        while process.poll() is None and time.monotonic() < until_s:
            try:
                answer = http.post(f"{url}/v1/chat/completions", json=body)
            except (httpx.ConnectError, httpx.RemoteProtocolError, httpx.ReadError):
                time.sleep(_POLL_S)
                continue
            except httpx.TimeoutException:
                return f"no answer within {BOUND_S:g} s"
            if answer.status_code == 200:
                text = answer.json()["choices"][0]["message"]["content"]
                return "" if _GREETING in text else f"a wrong answer: {text}"
            try:
                return f"Error: {answer.json()['error']['message']}"
            except (ValueError, KeyError, TypeError):
                return f"{answer.status_code}: {answer.text}"
    return "" if process.poll() is not None else f"no answer within {BOUND_S:g} s"


def _app(world: World, injected: Mapping[str, str]) -> Ended:
    """Start the app in a terminal, ask, and leave it with Ctrl+Q. It may end with an error before, or show one."""
    settings = {**world.clean_environment, **injected, "LOCALLLM_SIDEBAR": "off", "LOCALLLM_MODEL": "small"}
    if injected:
        arm(injected[STATE])
    terminal = Terminal.start(python_command("tui"), world.root, settings)
    process, lacks, screen = terminal.process, "", ""
    for keys, awaited, within_s in (
        (b"", ("Enter sends",), BOUND_S),
        (_QUESTION.encode() + b"\r", (_GREETING, "Ctrl+R retries"), _ANSWERS_WITHIN_S),
    ):
        terminal.write(keys)
        until_s = time.monotonic() + within_s
        while process.poll() is None and not any(words in (screen := terminal.screen) for words in awaited):
            if time.monotonic() > until_s:
                lacks = f"{awaited[0]!r} never came"
                break
            time.sleep(_POLL_S)
    until_s = time.monotonic() + _LEAVES_WITHIN_S
    while process.poll() is None and time.monotonic() < until_s:
        terminal.write(b"\x11")
        time.sleep(_POLL_S * 10)
    if process.poll() is None:
        process.kill()
        lacks = f"{lacks} Ctrl+Q did not end the app".strip()
    status = process.wait()
    terminal.close()
    printed = "".join(text for _, text in terminal.seen)
    if status == 0 and _GREETING not in screen:
        rows = [row.strip(" ┃▌│╎") for row in screen.splitlines()]
        begin = next((n for n, row in enumerate(rows) if any(words in row for words in _APP_ERRORS)), len(rows))
        if shown := " ".join(rows[begin : begin + _N_ERROR_ROWS]):
            return Ended(1, printed, f"Error: {shown}", "")
    return Ended(status, printed, terminal.screen if status else "", lacks)


JOURNEYS = (
    _verb("first start", "run", "guide", _QUESTION, "--temp", "0", gives=_says(_GREETING), is_new=True),
    _verb("run", "run", "small", _QUESTION, "--temp", "0", gives=_says(_GREETING)),
    Journey("serve and ask", _serve),
    Journey("app and a chat", _app),
    _verb("chat, piped", "chat", "-m", "small", "--new", "--temp", "0", piped=_QUESTION, gives=_says(_GREETING)),
    _verb("pull", "pull", f"{_REPO}:Q4_0", gives=_is_file(f"data/models/{_REPO}/{_FILE}")),
    _verb(
        *("quantize", "quantize", "{root}/other.gguf", "Q4_0", "-o", "{root}/out/small.gguf"),
        gives=_is_file("out/small.gguf"),
    ),
    _verb(
        *("import", "import", "{root}/other.gguf", "--as", "org/other/other"),
        gives=_is_file("data/models/org/other/other.gguf"),
    ),
    _verb("chats, listed", "chats", "list", gives=_says("chat 0", "chat 1", "chat 2")),
    _verb(
        *("chats, exported", "chats", "export", "--all", "--format", "json", "-o", "{root}/out/chats.json"),
        gives=_exported,
    ),
    _verb("chats, imported", "chats", "import", "{root}/chats.json", gives=_n_chats(2 * _N_CHATS)),
    _verb("chats, deleted", "chats", "delete", "1", gives=_n_chats(_N_CHATS - 1, _N_CHATS - 1), of_caches=True),
    _knowledge("knowledge, updated", "update", "--embedder", "none"),
    _knowledge("knowledge, forgotten", "rm", "{root}/documents", may_forget=True),
    _verb("knowledge, searched", "knowledge", "search", "same version", gives=_says("same.txt")),
    _verb("batch", "batch", "{root}/questions.jsonl", "-o", "{root}/out/answers.jsonl", "-m", "small", gives=_answered),
    _verb("forget", "forget", "--yes", gives=_n_chats(0, 0), of_caches=True),
    _verb("prune", "prune", "--yes", "--keep-prefixes", "1MB", gives=_says(""), of_caches=True),
    _verb("doctor", "doctor", gives=_says("processor", "llama-cpp-python")),
    _verb("ls", "ls", gives=_says("small")),
)
