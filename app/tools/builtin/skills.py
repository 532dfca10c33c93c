"""The server of the tool that reads skills: folders with a SKILL.md that tell a model how to do a kind of task, as
agentskills.io has them, and the AGENTS.md of the folder in which localllm was started.

Owns where skills are (the person's beside the settings file, and `.agents/skills` of a folder that the person trusts),
which of them can be used, and how they are listed: by name and description alone, in the description of the tool, so
that they cost little, and nothing where the tool is off. Reading one is reading files, with the rules of `files`.
Nothing in a skill runs by itself: what it tells a model to do, the other tools ask the person about.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

from app.common.terminal import counted, printable_line, quoted_name
from app.protocol.chat import Tool
from app.tools.builtin.edits import NotTextError, read_text
from app.tools.builtin.files import read_lines
from app.tools.builtin.walk import walk
from app.tools.file_access import open_folder
from app.tools.tool import CallContext, Effect, Preview, ServerStatus, ServerTool, ToolOutput, cleaned
from app.tools.trust import TrustedFolders
from quantizer.system.errors import StorageError, UsageError, UserError

SKILLS = "skills"
AGENTS_FILE = "AGENTS.md"
PROJECT_SKILLS = Path(".agents", "skills")
_SKILL_FILE = "SKILL.md"
_MOST_SKILLS, _MOST_FOLDERS = 50, 200  # that are listed; that are looked at, in each place
_MAX_SKILL_BYTES = 256 << 10  # of SKILL.md and AGENTS.md: some 60,000 tokens
_MAX_HEAD_CHARACTERS = 16_384  # of the front matter
_LISTED_CHARACTERS, _LEAST_LISTED = 4_000, 80  # of all descriptions, about 1,000 tokens; of one
_INSTRUCTIONS_CHARACTERS = 4_000  # of AGENTS.md, which are in every prompt
_MOST_FILES = 60  # beside SKILL.md that are named when it is read
_MOST_ENTRIES = 2_000  # of its folder that are looked at for them
_MOST_DEEP = 5
_HEAD_SHARE = 4  # of a result, at most a quarter names files
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_-]{0,62}[A-Za-z0-9])?")  # more than the specification allows
_HEAD = re.compile(r"---[ \t]*\n(.*?\n)---[ \t]*(?:\n|\Z)", re.DOTALL)
_COMMENT = re.compile(r"[ \t]#[^\n]*")


@dataclass(frozen=True, slots=True)
class Skill:
    """A skill that can be used: its folder, resolved, and what its SKILL.md says of it. `is_own` is one of the
    person's, not of a project's."""

    name: str
    description: str
    folder: Path
    is_own: bool


@dataclass(frozen=True, slots=True)
class FoundSkills:
    """What may be used here: skills, at most 50, and the `instructions` of AGENTS.md in `project`, "" for none; and a
    sentence about each thing that cannot be."""

    skills: tuple[Skill, ...] = ()
    instructions: str = ""
    project: Path = Path()
    problems: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        return [*(skill.name for skill in self.skills), *([AGENTS_FILE] if self.instructions else [])]

    @property
    def notes(self) -> tuple[str, ...]:
        """What /tools lists: each skill and where it is from, the instructions, and the problems."""
        listed = [
            f"{skill.name} ({'yours' if skill.is_own else 'of this folder'}): {skill.description}"
            for skill in self.skills
        ]
        if self.instructions:
            listed.append(f"{AGENTS_FILE} ({counted(len(self.instructions), 'character')}) of {self.project}")
        return (*listed, *(f"! {problem}" for problem in self.problems))


def find_skills(own: Path, project: Path, trusted: TrustedFolders) -> FoundSkills:
    """Return the skills in the folder `own`, then those of the folder `project` and its AGENTS.md if it is trusted; of
    two with one name the person's own counts."""
    skills: dict[str, Skill] = {}
    problems: list[str] = []
    project = Path(os.path.realpath(project))
    has_instructions, has_skills = (project / AGENTS_FILE).exists(), (project / PROJECT_SKILLS).is_dir()
    is_trusted = False
    if has_instructions or has_skills:
        try:
            is_trusted = trusted.has(project)
        except UserError as error:
            problems.append(str(error))
    roots = [(own, True), *([(project / PROJECT_SKILLS, False)] if is_trusted and has_skills else [])]
    for root, is_own in roots:
        for found in _skills_in(root, is_own=is_own):
            if isinstance(found, str):
                problems.append(found)
            elif found.name in skills:
                problems.append(f"{found.folder} is left out: {skills[found.name].folder} is called {found.name} too.")
            else:
                skills[found.name] = found
    instructions = ""
    if is_trusted and has_instructions:
        instructions, problem = _instructions_of(project)
        problems += [problem] if problem else []
    elif has_instructions or has_skills:
        what = " and ".join([AGENTS_FILE] * has_instructions + ["skills"] * has_skills)
        shown = quoted_name(str(project))
        problems.append(f"{what} not used, which may be somebody else's words. To use them: /tools trust {shown}")
    kept = sorted(skills.values(), key=lambda skill: (not skill.is_own, skill.name))
    if len(kept) > _MOST_SKILLS:
        problems.append(f"{len(kept):,} skills are too many: only the first {_MOST_SKILLS} are listed.")
    return FoundSkills(tuple(kept[:_MOST_SKILLS]), instructions, project, tuple(map(printable_line, problems)))


def _instructions_of(project: Path) -> tuple[str, str]:
    """Return the text of a folder's AGENTS.md, and a sentence where it cannot be used."""
    try:
        return _text_of(project, AGENTS_FILE).strip(), ""
    except (OSError, UserError, NotTextError) as error:
        return "", f"{project / AGENTS_FILE} is left out: {_reason(error)}"


def _skills_in(root: Path, *, is_own: bool) -> Iterator[Skill | str]:
    """Yield each skill in a folder, or a sentence why it is none that can be used."""
    try:
        # The way to the person's own may have links, such as of a folder for settings kept elsewhere.
        root = Path(os.path.realpath(root)) if is_own else root
        with open_folder(root) as folder:
            names = [entry.name for entry in folder.entries() if not entry.name.startswith(".") and not _is_file(entry)]
    except FileNotFoundError:
        return
    except (OSError, UserError) as error:
        yield f"{root} cannot be read: {_reason(error)}"
        return
    if len(names) > _MOST_FOLDERS:
        yield f"{root} has {len(names):,} folders: only the first {_MOST_FOLDERS} are looked at."
    for name in names[:_MOST_FOLDERS]:
        try:
            yield Skill(*_declared(_text_of(root / name, _SKILL_FILE)), root / name, is_own)
        except FileNotFoundError:
            yield f"{root / name} is left out: it has no {_SKILL_FILE}."
        except (OSError, UserError, NotTextError) as error:
            yield f"{root / name} is left out: {_reason(error)}"


def _is_file(entry: os.DirEntry[str]) -> bool:
    return entry.is_file(follow_symlinks=False)


def _text_of(place: Path, name: str) -> str:
    """Return the text of a file in the folder `place`. Raises OSError, StorageError where a link is on the way or the
    file is too large, and NotTextError."""
    with open_folder(place) as folder:
        size = next((each.stat(follow_symlinks=False).st_size for each in folder.entries() if each.name == name), -1)
        if size > _MAX_SKILL_BYTES:
            raise StorageError(
                f"{name} has more than {_MAX_SKILL_BYTES >> 10} KiB.", "Move parts of it to files beside it."
            )
        content = folder.read(name, _MAX_SKILL_BYTES).content if size >= 0 else None
    if content is None:
        raise FileNotFoundError(name)
    return read_text(content)[0].replace("\r\n", "\n")


def _declared(text: str) -> tuple[str, str]:
    """Return the name and the description in the front matter of a SKILL.md. Raises UsageError."""
    match = _HEAD.match(text[:_MAX_HEAD_CHARACTERS])
    if match is None:
        cause = f"{_SKILL_FILE} does not begin with front matter."
        raise UsageError(cause, "Begin it with ---, name, description, ---.")
    name, description = (_field(match[1], key) for key in ("name", "description"))
    if not description:
        raise UsageError(f"The front matter of {_SKILL_FILE} has no description.", "Say there when it is to be used.")
    if not _NAME.fullmatch(name):
        raise UsageError(f"The front matter of {_SKILL_FILE} has no usable name.", "Use letters, digits and hyphens.")
    return name, description


def _field(head: str, key: str) -> str:
    """Return a text at the top level of front matter, in a line; "" where there is none.

    Only what YAML quotes or folds is read as YAML: many descriptions have a colon that is not quoted, which is none,
    and the whole of a hostile one takes seconds (pyyaml 6.0 needs 6 s for 5,000 brackets)."""
    lines = head.split("\n")
    start = next((number for number, line in enumerate(lines) if line.startswith(f"{key}:")), None)
    if start is None:
        return ""
    rest = takewhile(lambda line: not line or line[0] in " \t", lines[start + 1 :])
    value = "\n".join((lines[start][len(key) + 1 :], *rest)).strip("\n")
    if value.lstrip()[:1] in ('"', "'", ">", "|"):
        import yaml  # a chat without skills needs none

        with suppress(yaml.YAMLError, ValueError):
            value = yaml.load(f"{key}:{value}", Loader=yaml.BaseLoader)[key]  # noqa: S506 - it makes texts alone
    return " ".join(cleaned(_COMMENT.sub("", value)).split())


def _reason(error: Exception) -> str:
    if isinstance(error, NotTextError):
        return "it is not text."
    return str(error) if isinstance(error, UserError) else f"{getattr(error, 'strerror', None) or error}."


def skill_tool(found: FoundSkills) -> ServerTool:
    """Return the tool for `found`, with each skill by name and description, and AGENTS.md or its beginning."""
    parts = []
    if found.skills:
        most = max(_LEAST_LISTED, _LISTED_CHARACTERS // len(found.skills))
        listed = "\n".join(f"- {_cut(f'{skill.name}: {skill.description}', most)}" for skill in found.skills)
        parts.append(
            "Read the instructions of a skill before you do what it is for, then follow them with your other tools.\n"
            f"Skills:\n{listed}"
        )
    if found.instructions:
        text = found.instructions
        more = "" if len(text) <= _INSTRUCTIONS_CHARACTERS else f"\n[the rest: read_skill {AGENTS_FILE}]"
        parts.append(
            f"Instructions for work in {printable_line(str(found.project))} ({AGENTS_FILE}):\n"
            f"{cleaned(text[:_INSTRUCTIONS_CHARACTERS])}{more}"
        )
    parameters = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "enum": found.names},
            "file": {"type": "string", "description": "A file of the skill that its instructions name."},
            "first_line": {"type": "integer", "minimum": 1, "description": "Where a long text goes on."},
        },
        "required": ["name"],
        "additionalProperties": False,
    }
    return replace(READ_SKILL, definition=Tool("read_skill", "\n\n".join(parts), parameters))


READ_SKILL = ServerTool(SKILLS, "read_skill", Tool("read_skill"), Effect.READ, "Read a skill")


class SkillServer:
    """A `ToolServer` for the skills in the folder `own` and those of the folder `project`, as they are on the disk at
    each use. There is no tool where there is nothing."""

    name = SKILLS

    def __init__(self, own: Path, project: Path, trusted: TrustedFolders) -> None:
        self._own = own
        self._project = project
        self._trusted = trusted

    def status(self) -> ServerStatus:
        found = self._found()
        tools = (skill_tool(found),) if found.names else ()
        return ServerStatus(SKILLS, "built in", "ready" if found.notes else "absent", tools, notes=found.notes)

    async def tools(self) -> tuple[ServerTool, ...]:
        return (await asyncio.to_thread(self.status)).tools

    async def preview(self, tool: ServerTool, arguments: Mapping[str, Any], context: CallContext) -> Preview:
        del tool, context
        file = f", {arguments['file']}" if arguments.get("file") else ""
        text = json.dumps(dict(arguments), ensure_ascii=False, indent=2)
        return Preview("arguments", f"read skill {arguments['name']}{file}", text)

    async def call(self, tool: ServerTool, arguments: Mapping[str, Any], context: CallContext) -> ToolOutput:
        """Return the instructions of a skill with the names of its files, or one of these. Raises UserError."""
        del tool
        found = await asyncio.to_thread(self._found)
        name, file = arguments["name"], arguments.get("file", "")
        lines = {"first_line": int(arguments.get("first_line", 1))}
        if name == AGENTS_FILE and found.instructions:
            inside = replace(context, folders=(found.project,))
            return await asyncio.to_thread(read_lines, {"path": AGENTS_FILE, **lines}, inside, None)
        skill = next((each for each in found.skills if each.name == name), None)
        if skill is None:
            raise UsageError(f"There is no skill {name}.", f"Skills: {', '.join(found.names) or 'none'}.")
        head = "" if file else await asyncio.to_thread(_head_of, skill)
        head = f"[{_cut(head, context.max_characters // _HEAD_SHARE)}]\n" if head else ""
        inside = replace(context, folders=(skill.folder,), max_characters=context.max_characters - len(head))
        read = await asyncio.to_thread(read_lines, {"path": file or _SKILL_FILE, **lines}, inside, None)
        return replace(read, text=f"{head}{read.text}", n_bytes=None)

    async def close(self) -> None:
        """Nothing runs between calls."""

    def _found(self) -> FoundSkills:
        return find_skills(self._own, self._project, self._trusted)


def _head_of(skill: Skill) -> str:
    """Return where a skill is, for commands that run a script of it, and which files are beside its SKILL.md, those of
    outer folders first."""
    names: list[str] = []
    with suppress(OSError, UserError):  # its instructions can be read all the same
        for entry in islice(walk(skill.folder, skill.folder, max_depth=_MOST_DEEP, has_ignored=True), _MOST_ENTRIES):
            is_hidden = any(part.startswith(".") or part == "__pycache__" for part in entry.path.split("/"))
            if entry.kind == "file" and not is_hidden and entry.path.rpartition("/")[2] != _SKILL_FILE:
                names.append(entry.path)
    names.sort(key=lambda path: path.count("/"))
    more = f" and more than {_MOST_FILES - 1} others" if len(names) > _MOST_FILES else ""
    files = f"; {counted(len(names), 'file')}: {', '.join(names[:_MOST_FILES])}{more}" if names else ""
    return printable_line(f"skill {skill.name}, in {skill.folder}{files}")


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
