"""What can be attached to a question: long pastes, files that completion offers, a paste or a mention names.

`app.chat.attachments` reads one file, and owns how a model receives it. No widgets: the chat in the scrollback has
attachments too.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import socket
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from app.chat.attachments.parsing import ALL_PAGES, PageChoice, split_page_choice
from app.chat.conversation import Attachment
from app.common.terminal import printable_paste
from quantizer.system.errors import UsageError, UserError

if TYPE_CHECKING:
    from app.chat.attachments.parser_process import ReadBudget
    from app.chat.attachments.reader import ReadAttachment
    from app.chat.state import ChatState


_LONG_CHARACTERS = 1000
_LONG_LINES = 12
MAX_FILES = 50_000
_N_FOLDERS_OFFERED = 200
_NOISE = frozenset({"node_modules", "__pycache__", "venv", "target", "build", "dist", "site-packages"})
_READER = "app.chat.attachments.reader"  # imported in the thread that reads: the screen must not wait for it
_N_REMEMBERED = 16
_MAX_PASTED_CHARACTERS, _MAX_PASTED_FILES = 16_384, 32
_MAX_RESOURCE_CHARACTERS = 4 << 20
_RESOURCE = re.compile(r"([A-Za-z0-9_-]{1,64}):([A-Za-z][A-Za-z0-9+.-]*://\S+)")
_BEGINS_A_PATH = re.compile(r"[/~'\"]|file:|[A-Za-z]:[\\/]")
_OF_A_SERVER = ("//", "\\\\")  # Windows would sign in there at the mere question whether it exists


def is_long(text: str) -> bool:
    """Return whether a pasted text is long enough to become an attachment."""
    return len(text) > _LONG_CHARACTERS or text.count("\n") >= _LONG_LINES


def unused_name(word: str, others: Sequence[Attachment]) -> str:
    """Return `word` with the first number that makes it a name of none of `others`."""
    names = {attachment.name for attachment in others}
    return next(name for number in range(1, len(names) + 2) if (name := f"{word} {number}") not in names)


def files_below(folder: Path, *, has_folders: bool = False) -> list[str]:
    """Return the paths of files below `folder`, relative and with slashes, the nearest first; at most 50,000. Skips
    hidden files, generated folders, links and unreadable entries. Folders, if asked for, have a slash at their end."""
    waiting, files = deque([""]), list[str]()
    while waiting and len(files) < MAX_FILES:
        relative = waiting.popleft()
        try:
            with os.scandir(folder / relative) as found:
                entries = sorted(found, key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in entries:
            if entry.name.startswith(".") or entry.is_symlink():
                continue
            if entry.is_dir(follow_symlinks=False):
                if entry.name not in _NOISE:
                    waiting.append(f"{relative}{entry.name}/")
                    if has_folders:
                        files.append(f"{relative}{entry.name}/")
            elif entry.is_file(follow_symlinks=False):
                files.append(f"{relative}{entry.name}")
    return files[:MAX_FILES]


def folders_below(folder: Path) -> list[str]:
    """Return the folders below `folder` that hold files, relative and with slashes, the nearest first, itself as a
    point; at most 200."""
    parents = (path.rpartition("/")[0] for path in files_below(folder))
    return [".", *dict.fromkeys(filter(None, parents))][:_N_FOLDERS_OFFERED]


def complete_path(typed: str, folder: Path) -> list[str]:
    """Return the regular files and the folders (with a trailing slash) whose name begins with `typed`: hidden ones only
    if a dot was typed, nothing from an unreadable folder."""
    relative, _, begun = typed.rpartition("/")
    above = f"{relative}/" if "/" in typed else ""
    try:
        with os.scandir(path_of(above, folder)) as found:
            entries = [(entry.name, entry.is_dir()) for entry in found if entry.is_dir() or entry.is_file()]
    except OSError:
        return []
    return sorted(
        f"{above}{name}{'/' if is_folder else ''}"
        for name, is_folder in entries
        if name.startswith(begun) and (begun.startswith(".") or not name.startswith("."))
    )


def leads_outside(typed: str) -> bool:
    """Return whether a typed name leaves the working folder: ~/, ../, / or a drive."""
    return typed.startswith(("~", "../", "/", "..\\")) or Path(typed).is_absolute()


def path_of(name: str, folder: Path) -> Path:
    """Return the path of the file `name`, relative to `folder`; ~ is the home folder."""
    try:
        return folder / Path(name).expanduser()
    except RuntimeError:  # ~user without a home folder
        return folder / name


class AttachmentReader:
    """Reads in a thread; `keep` stores the contents of pictures and sounds by their SHA-256. Remembers the latest
    files: the forecast of the context and the question read the same ones."""

    def __init__(self, keep: Callable[[Mapping[str, bytes]], Awaitable[None]]) -> None:
        self._keep = keep
        self._latest: dict[tuple[object, ...], Attachment] = {}  # by file, name, pages, time of change and size

    async def read_file(
        self, path: Path, name: str, pages: PageChoice = ALL_PAGES, *, is_resolved: bool = False
    ) -> Attachment:
        """Return the file at `path` as an attachment called `name`. Raises UserError; see
        `app.chat.attachments.reader.read_file`."""
        version: tuple[object, ...] | None = None
        with suppress(OSError, ValueError):  # reading it reports why it cannot be read
            stat = await asyncio.to_thread(path.stat)
            version = (path, name, pages, stat.st_mtime_ns, stat.st_size)
        found = self._latest.get(version) if version else None
        if found is None:
            found = await self._kept(
                lambda budget: import_module(_READER).read_file(path, name, pages, budget, is_resolved=is_resolved)
            )
            if version:
                self._latest[version] = found
                while len(self._latest) > _N_REMEMBERED:
                    del self._latest[next(iter(self._latest))]
        return found

    async def read_data(self, data: bytes, name: str) -> Attachment:
        """Return bytes that come from no file as an attachment called `name`. Raises UserError."""
        return await self._kept(lambda budget: import_module(_READER).read_data(data, name, ALL_PAGES, budget))

    async def _kept(self, read: Callable[[ReadBudget], ReadAttachment]) -> Attachment:
        from app.chat.attachments.parser_process import ReadBudget  # psutil: not before the first frame

        budget = ReadBudget()
        try:
            found = await asyncio.to_thread(read, budget)
        except asyncio.CancelledError:
            budget.stop()
            raise
        await self._keep(found.contents)
        return found.attachment


class ServerResources:
    """The resources of MCP servers that a question may mention, in the form `@server:scheme://…`. `current` returns the
    chat."""

    def __init__(self, current: Callable[[], ChatState], reader: AttachmentReader) -> None:
        self._current = current
        self._reader = reader

    async def names(self) -> list[str]:
        """Return the names of those of the chat's servers, as far as they are known; starts none."""
        chat = self._current()
        wanted = {enabled.partition("/")[0] for enabled in chat.conversation.settings.tools.enabled}
        if chat.tools is None or not wanted:
            return []
        servers = [each for each in await chat.tools.servers() if each.name in wanted]
        return [f"{server.name}:{uri}" for server in servers for uri in server.resources]

    async def attachment(self, name: str) -> Attachment:
        """Read one by its name from its server, which is started where needed. Raises UserError."""
        found, tools = _RESOURCE.fullmatch(name), self._current().tools
        if found is None or tools is None:
            raise UsageError(f"{name} is no resource of an MCP server.")
        content = await tools.resource(*found.groups())
        if isinstance(content, bytes):
            return await self._reader.read_data(content, name)
        return Attachment(name, printable_paste(content[:_MAX_RESOURCE_CHARACTERS]))

    async def read(self, question: str, attached: Collection[str]) -> Mentioned:
        """Read those that a question mentions, except those `attached` already; what is of no server is a word, as in
        @somebody:https://…"""
        tools = self._current().tools
        names = {each[-1]: each[-1].partition(":")[0] for each in _candidates(_without_code(question))}
        wanted = [name for name in names if _RESOURCE.fullmatch(name) and name not in attached]
        servers = {each.name for each in await tools.servers()} if tools is not None and wanted else set()
        attachments, faults = [], []
        for name in wanted:
            if names[name] in servers:
                try:
                    attachments.append(await self.attachment(name))
                except UserError as error:
                    faults.append(f"{name}: {error}")
        return Mentioned(tuple(attachments), tuple(faults))


def is_resource(name: str) -> bool:
    """Return whether a name has the form of a resource of an MCP server."""
    return _RESOURCE.fullmatch(name) is not None


def pasted_paths(text: str, platform: str = sys.platform) -> tuple[Path, ...]:
    """Return the files that `text` names; none if any part of it is something else than the full path of a file."""
    # Terminals write such texts when files are dropped on them, file managers when files are copied: a path in quotes
    # or with escaped blanks, a file URL, several of them in a row or one a line. A relative name is just a word.
    text = text.strip()
    if len(text) > _MAX_PASTED_CHARACTERS or not _BEGINS_A_PATH.match(text):
        return ()
    try:
        shell_words = [word.strip("'\"") for word in shlex.split(text, posix=platform != "win32")]
    except ValueError:  # a quotation mark that is not closed
        shell_words = []
    for words in ([text], text.splitlines(), shell_words):
        paths = [_file(word.strip(), platform) for word in words if word.strip()]
        if 0 < len(paths) <= _MAX_PASTED_FILES and None not in paths:
            return tuple(dict.fromkeys(path for path in paths if path is not None))
    return ()


def _file(word: str, platform: str) -> Path | None:
    """Return the file with this full path or URL, None if there is none."""
    try:
        if word.startswith("file:"):
            parts = urlsplit(word)
            if parts.netloc not in ("", "localhost", socket.gethostname()):
                return None
            word = unquote(parts.path)
            path = Path(word.lstrip("/") if platform == "win32" else word)
        else:
            path = Path(word).expanduser()
        is_local = path.is_absolute() and not str(path).startswith(_OF_A_SERVER)
        return path if is_local and path.is_file() else None
    except (OSError, RuntimeError, ValueError):  # too long, no home folder, or a character that no name has
        return None


_MENTION = re.compile(r"(?<!\S)@(?:\"([^\"\n]+)\"|(\S+))")
_AFTER_A_WORD = ".,;:!?)]}'\""
_LOOKS_LIKE_A_FILE = re.compile(r"[/\\]|\w\.\w{1,4}$")
_LONG_ENDING = re.compile(  # which tells a file from `@pytest.fixture`
    r"\w\.(cmake|conll|dockerfile|geojson|gradle|graphql|ipynb|json5|jsonl|markdown|ndjson|parquet|patch|plist|proto|"
    r"properties|safetensors|scala|sqlite|svelte|swift|xhtml)$",
    re.IGNORECASE,
)
_BARE_WORD = re.compile(r"[^\W\d][\w-]{0,63}$")
# What languages and their usual libraries write behind an at sign: nobody means a file by it. From the documentation of
# Python, Java, Kotlin, Swift, CSS and JSDoc; names that a file may well have, such as test, are left out.
_CODE_WORD = re.compile(
    r"(?:abstractmethod|autowired|cached_property|classmethod|contextmanager|dataclass|deprecated|"
    r"discardableresult|fixture|font-face|functionalinterface|import|inject|injectable|jit|keyframes|"
    r"lru_cache|mainactor|media|mixin|nonnull|notnull|nullable|objc|observable|overload|override|param|"
    r"property|readonly|returns|safevarargs|setter|singledispatch|staticmethod|supports|suppresswarnings|"
    r"throws|total_ordering|transactional|typedef|viewbuilder|wraps)$",
    re.IGNORECASE,
)
_FENCED = re.compile(r"```.*?(?:```|\Z)|`[^`\n]*`", re.DOTALL)
_CALLED = re.compile(r"@[\w.]+\(")
_DECORATED = re.compile(  # a line of its own above a definition, or above another such line
    r"^[ \t]*@[\w.]+(?:\([^\n]*\))?[ \t]*\n"
    r"(?=\s*(?:@|(?:async|class|const|data|def|enum|export|final|fn|fun|func|function|"
    r"interface|let|object|open|override|private|protected|pub|public|static|struct|val|var|void)\b))",
    re.MULTILINE,
)
_HELD_BACK = "Enter again sends it as text."  # short: a notice is one line


@dataclass(frozen=True, slots=True)
class Mentioned:
    """The files that a question mentions, and a sentence for each that cannot be attached."""

    attachments: tuple[Attachment, ...] = ()
    faults: tuple[str, ...] = ()


class MentionReader:
    """Reads the files, relative to `folder`, that questions mention. Holds a question with a fault back once: sent
    again unchanged, it goes without that file. A bare word that went so, such as @somebody, is no fault any more.

    What a name leads to is noted when it is first seen in a draft: one that leads elsewhere when the question is sent,
    since a link was put there meanwhile, is a fault."""

    def __init__(self, folder: Path, reader: AttachmentReader, resources: ServerResources | None = None) -> None:
        self._resources = resources
        self._folder = folder.resolve()
        self._named: dict[str, Path] = {}  # the files of the draft, without links
        self._reader = reader
        self._held_back = ""
        self._words: set[str] = set()  # which the person sent as text

    async def find(self, question: str, attached: Collection[str] = (), *, is_typed: bool = True) -> Mentioned:
        """Read the files that a question mentions, except those `attached` already. A name of no file is a fault,
        except in code and for what languages write so (@property). In a text that was possibly pasted, not `is_typed`,
        a missing file is a word too, and a file outside the folder is a fault."""
        if not has_mention(question):
            self._named = {}
            return Mentioned()
        attachments: dict[str, Attachment] = {}
        faults: dict[str, str] = {}
        named: dict[str, Path] = {}
        resolve = partial(_resolved, self._folder)
        in_prose = {name for names in _candidates(_without_code(question)) for name in names}
        for mention in await asyncio.to_thread(lambda: [*map(resolve, _candidates(question))]):
            if mention.name in attachments or any(name in attached for name in mention.names):
                continue
            first = self._named.get(mention.name, mention.path)
            if mention.path is not None and first is not None:
                named[mention.name] = first
                if mention.path != first:
                    faults[mention.name] = f"{mention.name} leads to another file than when it was typed."
                    continue
            is_word = mention.path is None and (
                mention.name in self._words or mention.name not in in_prose or is_resource(mention.name)
            )
            if fault := "" if is_word else mention.fault(is_typed=is_typed):
                faults[mention.name] = fault
            elif mention.path is not None and not mention.is_folder:
                try:
                    read = self._reader.read_file(mention.path, mention.name, mention.pages, is_resolved=True)
                    attachments[mention.name] = await read
                except UserError as error:
                    faults[mention.name] = error.cause
        self._named = named
        return Mentioned(tuple(attachments.values()), tuple(faults.values()))

    async def read(
        self, question: str, attached: Collection[str] = (), *, is_typed: bool = True
    ) -> tuple[Attachment, ...]:
        """Return the mentioned files; see `find`. Raises UsageError for a question that is held back."""
        found = await self.find(question, attached, is_typed=is_typed)
        if self._resources is not None and "://" in question:
            served = await self._resources.read(question, attached)
            found = Mentioned((*found.attachments, *served.attachments), (*found.faults, *served.faults))
        must_hold_back = bool(found.faults) and question != self._held_back
        self._held_back = question if must_hold_back else ""
        if must_hold_back:
            raise UsageError(" ".join(found.faults), _HELD_BACK)
        self._named = {}  # the next draft names its files anew
        if found.faults:
            self._words |= {name for name in names_in(question) if _BARE_WORD.match(name)}
        return found.attachments


def has_mention(question: str) -> bool:
    return _MENTION.search(question) is not None


def mention_of(name: str, *, is_finished: bool = True) -> str:
    """Return the mention of a file, in quotes if its name has spaces; of a folder it is not finished."""
    if not any(space in name for space in " \t"):
        return f"@{name} " if is_finished else f"@{name}"
    return f'@"{name}" ' if is_finished else f'@"{name}'


def names_in(question: str) -> set[str]:
    """Return all names that the question may mention: with and without the punctuation after a word."""
    return {name for names in _candidates(question) for name in names}


def without_mention(question: str, name: str) -> str:
    def replaced(found: re.Match[str]) -> str:
        quoted, word = found.groups()
        names = _names(quoted or "", word or "")
        return (word or "").removeprefix(name) if name in names else found[0]

    return _MENTION.sub(replaced, question)


@dataclass(frozen=True, slots=True)
class _Mention:
    """One mention: the names that it may mean, the one that it means, and its file or folder; None if there is none."""

    names: tuple[str, ...]
    name: str
    path: Path | None
    pages: PageChoice = ALL_PAGES
    is_folder: bool = False
    is_outside: bool = False

    def fault(self, *, is_typed: bool) -> str:
        """Return why nothing can be read; empty for a word that is no file."""
        if self.path is None or self.is_folder:
            if not (is_typed and _may_be_a_file(self.name, is_folder=self.is_folder)):
                return ""
            return f"{self.name} is a folder: mention one of its files." if self.path else f"No such file: {self.name}."
        return f"{self.name} is outside this folder." if self.is_outside and not is_typed else ""


def _may_be_a_file(name: str, *, is_folder: bool) -> bool:
    """Return whether somebody who types `name` behind an at sign may mean a file by it."""
    if "@" in name:  # @somebody@a.server, @@twice
        return False
    if _LOOKS_LIKE_A_FILE.search(name) or _LONG_ENDING.search(name):
        return True
    return not is_folder and _BARE_WORD.match(name) is not None and not _CODE_WORD.match(name)


def _without_code(question: str) -> str:
    """Return the question without code in backticks, decorators above what they decorate, and calls such as
    `@app.route("/")`."""
    text = question
    for code in (_FENCED, _DECORATED, _CALLED):
        text = code.sub(" ", text)
    return text


def _candidates(question: str) -> Iterator[tuple[str, ...]]:
    """Yield for each mention its names, the likeliest first."""
    return filter(None, (_names(quoted, word) for quoted, word in _MENTION.findall(question)))


def _names(quoted: str, word: str) -> tuple[str, ...]:
    names = (quoted,) if quoted else (word, word.rstrip(_AFTER_A_WORD))
    return tuple(filter(None, dict.fromkeys(names)))


def _resolved(folder: Path, names: tuple[str, ...]) -> _Mention:
    """Return the mention of the first of the names that exists, or of the last one; it may choose pages. `folder` is
    resolved."""
    for name in names:
        readings = [(name, ALL_PAGES)]
        with suppress(UsageError):  # pages that run backwards: then it is the name of no file
            readings.append(split_page_choice(name))
        for file_name, pages in readings:
            path, is_there = path_of(file_name, folder), False
            with suppress(OSError, ValueError):  # too long for a name, or a character that none has
                is_there = path.exists()
            if is_there:
                path = path.resolve()  # what is read is what was checked
                return _Mention(names, name, path, pages, path.is_dir(), not path.is_relative_to(folder))
    return _Mention(names, names[-1], None)
