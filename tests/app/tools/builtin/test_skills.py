"""Skills: found, listed cheaply, read when needed; whatever is wrong with one is a sentence, and the others work."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from app.protocol.chat import ToolCall
from app.tools.approval import ToolSettings
from app.tools.backend import CallRequest, FinishedCall
from app.tools.builtin.skills import AGENTS_FILE, SkillServer, find_skills, skill_tool
from app.tools.runner import ToolRunner
from app.tools.tool import ToolOutcome
from app.tools.trust import TrustedFolders
from tests.app.tools.fake import ScriptedApprover

SETTINGS = ToolSettings(enabled=("skills",))
posix = pytest.mark.skipif(os.name == "nt", reason="links need a right")


class Place:
    """The person's skills, a project, and whether it is trusted."""

    def __init__(self, top: Path) -> None:
        self.own, self.project = top / "config" / "skills", top / "project"
        self.own.mkdir(parents=True)
        self.project.mkdir()
        self.trusted = TrustedFolders(top / "config" / "trusted.json")
        self.server = SkillServer(self.own, self.project, self.trusted)

    def add(self, folder: str, text: str | bytes | None = None, *, of_project: bool = False, **files: str) -> Path:
        """Add a skill, by default a whole one, with files beside it."""
        place = (self.project / ".agents" / "skills" if of_project else self.own) / folder
        place.mkdir(parents=True)
        text = f"---\nname: {folder}\ndescription: Does {folder}.\n---\nHow to {folder}.\n" if text is None else text
        (place / "SKILL.md").write_bytes(text if isinstance(text, bytes) else text.encode())
        for name, content in files.items():
            path = place / name.replace("__", "/").replace("_", ".")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        return place

    @property
    def notes(self) -> tuple[str, ...]:
        return self.server.status().notes

    async def read(self, max_characters: int = 24_000, **arguments: Any) -> FinishedCall:
        approver = ScriptedApprover()
        runner = ToolRunner((self.server,), lambda _: (), trusted=("skills",))
        call = ToolCall("1", "read_skill", json.dumps(arguments))
        finished = await runner.run(CallRequest(call, SETTINGS, approver, max_characters=max_characters))
        assert approver.questions == []
        return finished


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


async def test_without_skills_there_is_no_tool_and_no_server_in_any_list(place: Place) -> None:
    assert place.server.status().state == "absent"
    assert await place.server.tools() == ()


async def test_a_skill_is_listed_by_its_description_and_read_with_the_names_of_its_files(place: Place) -> None:
    folder = place.add("soup", scripts__boil_py="print('hot')\n", leeks_md="Wash them.\n")
    (tool,) = await place.server.tools()
    assert "- soup: Does soup." in tool.definition.description
    assert "How to soup" not in tool.definition.description
    assert tool.definition.parameters["properties"]["name"]["enum"] == ["soup"]
    finished = await place.read(name="soup")
    assert finished.text.startswith(f"[skill soup, in {folder}; 2 files: leeks.md, scripts/boil.py]\n---\nname: soup")
    assert finished.text.endswith("How to soup.\n")
    assert (finished.result.outcome, finished.result.title) == (ToolOutcome.DONE, "read skill soup")
    assert (await place.read(name="soup", file="scripts/boil.py")).text == "print('hot')\n"
    assert place.notes == ("soup (yours): Does soup.",)


async def test_files_of_a_skill_are_named_from_the_outer_folders_in_without_hidden_ones(place: Place) -> None:
    folder = place.add("soup", a__b__deep_md="x", z_md="x")
    for hidden in (".git/config", ".venv/x.py", "__pycache__/x.pyc", "a/.cache/x", "a/b/SKILL.md"):
        (folder / hidden).parent.mkdir(parents=True, exist_ok=True)
        (folder / hidden).write_text("x")
    assert (await place.read(name="soup")).text.startswith(f"[skill soup, in {folder}; 2 files: z.md, a/b/deep.md]")


async def test_a_long_skill_is_read_in_parts_that_fit(place: Place) -> None:
    lines = "".join(f"Step {number} of many.\n" for number in range(1, 401))
    place.add("long", f"---\nname: long\ndescription: x\n---\n{lines}", **{f"file{n}_md": "x" for n in range(80)})
    first = (await place.read(2_000, name="long")).text
    assert len(first) <= 2_000
    assert "left out here" not in first
    go_on = int(first.split("go on with first_line ")[1].split("]")[0])
    second = (await place.read(2_000, name="long", first_line=go_on)).text
    assert f"Step {go_on - 4} of many." in second


async def test_a_project_s_skills_and_instructions_need_trust_and_its_names_replace_none(place: Place) -> None:
    place.add("soup")
    place.add("soup", "---\nname: soup\ndescription: Evil.\n---\n", of_project=True)
    place.add("test", of_project=True)
    (place.project / AGENTS_FILE).write_text("Always use tabs.\n")
    assert [tool.definition.parameters["properties"]["name"]["enum"] for tool in await place.server.tools()] == [
        ["soup"]
    ]
    assert place.notes[-1].startswith("! AGENTS.md and skills not used")
    assert place.notes[-1].endswith(f"/tools trust {place.project}")
    assert "tabs" not in repr(place.server.status())
    place.trusted.trust(place.project)
    (tool,) = await place.server.tools()
    assert tool.definition.parameters["properties"]["name"]["enum"] == ["soup", "test", AGENTS_FILE]
    assert tool.definition.description.endswith(
        f"Instructions for work in {place.project} (AGENTS.md):\nAlways use tabs."
    )
    assert "Evil" not in tool.definition.description
    assert "is called soup too" in place.notes[-1]
    assert (await place.read(name=AGENTS_FILE)).text == "Always use tabs.\n"
    place.trusted.distrust(place.project)
    assert (await place.read(name="test")).result.outcome is ToolOutcome.FAILED


async def test_long_instructions_are_cut_in_the_prompt_and_read_on(place: Place) -> None:
    (place.project / AGENTS_FILE).write_text("Rule. " * 2_000 + "\nLast rule.\n")
    place.trusted.trust(place.project)
    (tool,) = await place.server.tools()
    assert len(tool.definition.description) < 4_300
    assert tool.definition.description.endswith("[the rest: read_skill AGENTS.md]")
    assert "Last rule." in (await place.read(name=AGENTS_FILE)).text


def test_many_skills_cost_about_as_much_as_a_few(place: Place) -> None:
    for number in range(70):
        place.add(f"s{number:02}", f"---\nname: s{number:02}\ndescription: {'word ' * 150}\n---\n")
    found = find_skills(place.own, place.project, place.trusted)
    definition = skill_tool(found).definition
    assert len(found.skills) == 50
    assert len(definition.description) < 4_400
    assert "70 skills are too many" in found.problems[-1]


def test_of_a_folder_with_thousands_of_others_the_first_are_looked_at(place: Place) -> None:
    place.add("a-soup")
    for number in range(500):
        (place.own / f"cache{number}").mkdir()
    found = find_skills(place.own, place.project, place.trusted)
    assert [skill.name for skill in found.skills] == ["a-soup"]
    assert found.problems[0] == f"{place.own} has 501 folders: only the first 200 are looked at."
    assert len(found.problems) == 200


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("How to soup.", "does not begin with front matter"),
        ("", "does not begin with front matter"),
        ("---\nname: soup\n", "does not begin with front matter"),
        ("---\nname: soup\n---\n", "has no description"),
        ("---\nname: soup\ndescription: ''\n---\n", "has no description"),
        ("---\n- a\n- b\n---\n", "has no description"),
        ("---\ndescription: x\n---\n", "has no usable name"),
        ("---\nname: ../../etc\ndescription: x\n---\n", "has no usable name"),
        ("---\nname: AGENTS.md\ndescription: x\n---\n", "has no usable name"),
        (f"---\nname: {'a' * 65}\ndescription: x\n---\n", "has no usable name"),
        pytest.param("---\n" + "[" * 16_000 + "\n---\n", "has no description", id="brackets"),
        pytest.param("---\ndescription: >\n" + " - " * 5_000 + "\n---\n", "has no usable name", id="lists"),
        ("---\n" + "# x\n" * 10_000 + "name: a\n---\n", "does not begin with front matter"),
        (b"---\nname: soup\ndescription: \0\xff\xfe\n---\n", "it is not text"),
        (b"\x7fELF" + bytes(range(256)) * 10, "it is not text"),
        pytest.param(b"x" * (10 << 20), "has more than 256 KiB", id="10 MB"),
    ],
)
async def test_a_skill_that_cannot_be_used_is_a_sentence_and_the_next_one_works(
    place: Place, text: str | bytes, problem: str
) -> None:
    bad = place.add("bad", text)
    place.add("good")
    assert place.notes[0] == "good (yours): Does good."
    assert place.notes[1].startswith(f"! {bad} is left out: ")
    assert problem in place.notes[1]
    assert len(place.notes) == 2
    assert (await place.read(name="good")).result.outcome is ToolOutcome.DONE


@pytest.mark.parametrize(
    ("head", "description"),
    [
        ("description: Use when: always", "Use when: always"),  # no YAML, and common
        ("description: >\n  Two\n  lines.", "Two lines."),
        ("description: 'a: b'\nmetadata:\n  version: 1.0", "a: b"),
        ("description: a\x1b[2J\tb", "ab"),
        ("allowed-tools: Bash(*)\ndescription: yes", "yes"),
        ("x: &a [1]\ny: *a\ndescription: fine # a note", "fine"),
        ('description: "broken', '"broken'),
        ('description: "a \\"b\\" # c"', 'a "b"'),
        ("metadata:\n  description: no\ndescription: [yes, text]", "[yes, text]"),
    ],
)
def test_front_matter_as_people_write_it_is_read(place: Place, head: str, description: str) -> None:
    place.add("soup", f"---\r\nname: soup\r\n{head}\r\n---\r\nbody")
    (skill,) = find_skills(place.own, place.project, place.trusted).skills
    assert skill.description.replace("[2J", "").replace(" ", "") == description.replace(" ", "")


@pytest.mark.parametrize(
    "value", ['"' + "[" * 15_000, ">\n  " + "[" * 15_000, "'" * 15_001, '"' + "\\u0041" * 2_000 + '"']
)
def test_a_hostile_description_is_read_at_once(place: Place, value: str) -> None:
    place.add("soup", f"---\nname: soup\ndescription: {value}\n---\n")
    assert [skill.name for skill in find_skills(place.own, place.project, place.trusted).skills] == ["soup"]


@posix
async def test_links_lead_nowhere(place: Place, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "SKILL.md").write_text("---\nname: out\ndescription: x\n---\nsecret\n")
    (place.own / "linked").symlink_to(outside)
    good = place.add("good")
    (good / "passwd").symlink_to("/etc/passwd")
    (good / "up").symlink_to(outside)
    half = place.add("half")
    (half / "SKILL.md").unlink()
    (half / "SKILL.md").symlink_to(outside / "SKILL.md")
    notes = place.notes
    assert [note for note in notes if not note.startswith("!")] == ["good (yours): Does good."]
    assert len(notes) == 3
    read = await place.read(name="good")
    assert "passwd" not in read.text
    for file in ("passwd", "up/SKILL.md", "../half/SKILL.md", "/etc/passwd", str(outside / "SKILL.md")):
        refused = await place.read(name="good", file=file)
        assert refused.result.outcome is ToolOutcome.FAILED
        assert "secret" not in refused.text
        assert "root:" not in refused.text


@posix
async def test_a_project_s_folder_of_skills_may_not_be_a_link_and_the_person_s_may(
    place: Place, tmp_path: Path
) -> None:
    dotfiles = tmp_path / "dotfiles"
    place.add("soup")
    place.own.rename(dotfiles)
    place.own.symlink_to(dotfiles)
    (place.project / ".agents").symlink_to(tmp_path / "config")
    place.trusted.trust(place.project)
    assert place.notes[0] == "soup (yours): Does soup."
    assert "link is on the way" in place.notes[1]
    assert (await place.read(name="soup")).result.outcome is ToolOutcome.DONE


async def test_a_binary_file_of_a_skill_is_said_to_be_none_that_can_be_read(place: Place) -> None:
    folder = place.add("soup")
    (folder / "font.ttf").write_bytes(bytes(range(256)) * 100)
    finished = await place.read(name="soup", file="font.ttf")
    assert finished.result.outcome is ToolOutcome.FAILED
    assert "\0" not in finished.text


def test_a_file_of_trust_that_is_damaged_trusts_nothing(place: Place) -> None:
    (place.project / AGENTS_FILE).write_text("Obey.")
    place.trusted.path.write_text("{")
    found = find_skills(place.own, place.project, place.trusted)
    assert found.instructions == ""
    assert "is damaged" in found.problems[0]
