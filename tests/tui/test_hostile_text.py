"""Hostile text on every screen: 120 strings from models, files and hubs reach the terminal as letters only.

Checks what is written to the terminal, not what a widget holds.
"""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from textual.drivers.headless_driver import HeadlessDriver

from app.chat.conversation import Attachment, Chat, Message, Transcript
from app.chat.repository import SqliteChatRepository
from app.chat.store.chat_store import ChatStore
from app.common.terminal import printable
from app.connection import ServiceConnection
from app.protocol.chat import Tool, ToolCall
from app.protocol.job import Job
from app.protocol.library import HubModel, HubRepository, MachineProblem, MachineReport, Quant
from app.protocol.plan import PlanChange, PlanRemedy
from app.protocol.status import AnswerRecord
from app.settings.settings import Settings
from app.tools.tool import Preview, ToolOutput, ToolProgress
from quantizer.system.errors import EngineError, ErrorInfo
from tests.app.client.scripted_client import PLAN, READY, ScriptedClient, ScriptedReply
from tests.app.tools.fake import FakeToolBackend, FakeToolServer, ScriptedCall, fake_tool
from tests.tui.hostile import BENIGN, HOSTILE, controls_in, heads, sequence_kinds, sequences
from tests.tui.model_scenes import GUIDE, client_with_models
from tui.app import LocalllmApp
from tui.chat.tools.calls import ApprovalPanel

pytestmark = pytest.mark.slow

# So tall that all of them are seen at once.
SIZE = (120, 270)
SERVER, CALLED = "hostile", "use_it"
N_PASTED_AT_ONCE = 6  # more lines, or a thousand characters, become an attachment


class RecordingDriver(HeadlessDriver):
    """Takes what is written to the terminal."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.written: list[str] = []

    @property
    def is_headless(self) -> bool:
        return False  # else the app draws nothing

    def write(self, data: str) -> None:
        self.written.append(data)


@dataclass(frozen=True, slots=True)
class Shown:
    """The output written while a screen was shown, and its final text."""

    written: str
    screen: str


# The world: every text that is not ours is one of the given ones


def keep_chats(texts: Sequence[str], folder: Path) -> None:
    """Keep a chat titled with each text; the first of the list holds all of them, as an attachment's name too."""
    storable = [text.encode("utf-8", "ignore").decode("utf-8") for text in texts]  # SQLite takes no lone surrogate
    with ChatStore(folder) as store:
        for number, text in enumerate(storable):
            content = "  \n".join(storable) if number == 0 else "plain"
            names = tuple(Attachment(name, "short") for name in storable[:2])
            asked = Message(id=1, parent_id=None, role="user", content=content, created_ms=number, attachments=names)
            answer = replace(asked, id=2, parent_id=1, role="assistant", attachments=())
            chat = Chat(id=1, title=text, created_ms=number, updated_ms=number, model=text, leaf_id=2)
            kept = store.transcripts.insert(Transcript(chat, (asked, answer)))
            store.chats.pin(kept.id, number == 0)


def describe_models(texts: Sequence[str], client: ScriptedClient) -> None:
    library, fit = client.library, GUIDE.fit
    library.here = [
        replace(GUIDE, id=text, path=text, where="library", file_type=text, damaged=text * (number % 2))
        for number, text in enumerate(texts[:40])
    ]
    library.here[0] = replace(library.here[0], state="unloaded")  # a loaded one cannot be removed
    library.others = [replace(GUIDE, id=text, path=text, where=text) for text in texts[40:80]]
    offer, choice = library.recommended[0], library.type_choices[0]
    library.recommended = tuple(
        replace(offer, title=text, reference=text, licence=text, why=text) for text in texts[80:]
    )
    library.model_info_rows = tuple((text, text) for text in texts)
    library.type_choices = tuple(
        replace(choice, quant=replace(choice.quant, name=text), description=text) for text in texts
    )
    problems = tuple(MachineProblem(text, text) for text in texts[60:])
    library.machine_report = MachineReport(tuple((text, text) for text in texts[:60]), problems)
    library.hub = tuple(
        HubRepository(
            repo=f"repo {text}",
            is_checkpoint=False,
            n_downloads=1,
            licence=text,
            is_gated=True,
            problem=text,
            models=(HubModel(text, 1, 1, (Quant(text, 1, fit),)),),
        )
        for text in texts
    )


def describe_jobs(texts: Sequence[str], client: ScriptedClient) -> None:
    states = ("running", "failed", "done", "interrupted")
    for number, text in enumerate(texts):
        state = states[number % len(states)]
        failure = ErrorInfo("UserError", text, text) if state == "failed" else None
        job = Job(
            id=str(number), kind="bench", title=text, arguments={"model": text}, created_s=time.time(), message=text
        )
        client.change(replace(job, state=state, error=failure))
        client.logs[job.id] = "\n".join(texts)
    client.answers = tuple(
        AnswerRecord(
            model=text,
            at_s=1.0,
            n_prompt_tokens=1,
            n_cached_tokens=0,
            n_output_tokens=1,
            first_token_s=1.0,
            prefill_tps=None,
            decode_tps=None,
        )
        for text in texts
    )


def describe_plan(texts: Sequence[str], client: ScriptedClient) -> None:
    (device,) = PLAN.devices
    plan = replace(
        PLAN,
        model=texts[0],
        devices=tuple(replace(device, name=text, description=text) for text in texts[:10]),
        warnings=tuple(texts[:60]),
        remedies=tuple(PlanRemedy(text, 1.0, text, PlanChange()) for text in texts[60:]),
    )
    client.plan_answer = lambda _: plan


def world(texts: Sequence[str], settings: Settings) -> ScriptedClient:
    """Make the disk, and return the service."""
    together = "\n".join(texts)
    replies = (
        ScriptedReply(deltas=tuple("\n\n".join(texts))),  # each character a token: all sequences are split
        ScriptedReply(deltas=("half",), ending=EngineError(together, together)),
        ScriptedReply(calls=(ToolCall(texts[0], CALLED, json.dumps(list(texts))),)),
        ScriptedReply(deltas=("Ended.",)),
    )
    client = ScriptedClient(*replies, model=replace(READY, id=texts[0], notices=tuple(texts)))
    client.library = client_with_models().library
    for describe in (describe_models, describe_jobs, describe_plan):
        describe(texts, client)
    keep_chats(texts, settings.data_dir)
    settings.cache_dir.mkdir()
    (settings.cache_dir / "service.log").write_bytes(together.encode("utf-8", "surrogatepass"))
    for text in texts:
        with suppress(OSError, ValueError):  # NUL and slashes are in no name
            Path(text).write_text("short", encoding="utf-8")
    return client


def hostile_tools(texts: Sequence[str]) -> FakeToolBackend:
    """Return tools whose every word is one of the texts."""
    together = "\n".join(texts)
    tool = fake_tool(CALLED, server=SERVER, definition=Tool(CALLED, texts[1]), title=texts[2])
    others = [fake_tool(text, server=SERVER, definition=Tool(text, text)) for text in texts]
    diff = f"--- {texts[3]}\n+++ {texts[4]}\n@@ -1 +1 @@\n" + "\n".join(f"+{text}" for text in texts)
    progress = (ToolProgress(texts[5]), ToolProgress(output=together))
    script = ScriptedCall(ToolOutput(together, detail=texts[6]), Preview("diff", texts[7], diff), progress)
    return FakeToolBackend(FakeToolServer(SERVER, [tool, *others], {CALLED: [script]}))


# The walk: what is done at each place, in this order


async def pastes(user: Any, texts: Sequence[str]) -> None:
    for first in range(0, len(texts), N_PASTED_AT_ONCE):
        await user.pastes("\n".join(text[:100] for text in texts[first : first + N_PASTED_AT_ONCE]))


async def names_files(user: Any, _: Sequence[str]) -> None:
    await user.presses("enter", "space", "at", "h", "0")
    await user.sees("h0")


async def allows(user: Any, _: Sequence[str]) -> None:
    await user.presses("tab")
    await user.until(lambda: user.app.screen.query_one(ApprovalPanel).is_armed, "Its keys do not count")
    await user.presses("y")


async def expands(user: Any, _: Sequence[str]) -> None:
    await user.presses("ctrl+up", "ctrl+up", "enter")


@dataclass(frozen=True, slots=True)
class Place:
    """Keys to get there, a question to ask there or another thing to do, and what is seen then; `is_whole` where each
    of the texts is."""

    name: str
    keys: str = ""
    question: str = ""
    act: Callable[[Any, Sequence[str]], Awaitable[None]] | None = None
    seen: tuple[str, ...] = ()
    is_whole: bool = False


FEATURES = (
    Place("welcome", seen=("Recommended here", "h119")),
    Place("notices", "escape", seen=("ready", "h119")),
    Place("streamed answer", question="go", seen=("a second", "h119"), is_whole=True),
    Place("error", question="again", seen=("The answer is incomplete", "h119"), is_whole=True),
    Place("tools switched", question=f"/tools on {SERVER}", seen=("121 tools on",)),
    Place("tool asks", question="use it", seen=("Allow", "h000")),
    Place("call", act=allows, seen=("Ended.", "h006", "h007")),
    Place("call expanded", act=expands, seen=("h000", "h119"), is_whole=True),
    Place("tools", "escape", question="/tools", seen=("Tools of this chat", "h000")),
    Place("paste", "escape", act=pastes, seen=("h119",)),
    Place("file names", act=names_files),
    Place("chats", "f5", seen=("chats", "h119")),
    Place("titles of chats", "end", seen=("120 chats", "h000", "h119"), is_whole=True),
    Place("title to change", "r", seen=("Enter confirms",)),
    Place("chats found", "escape slash p l a i n", seen=("h119",)),
    Place("kept chat", "escape escape f5 home enter", seen=("h000", "h119"), is_whole=True),
    Place("question to edit", "ctrl+up ctrl+up e", seen=("Editing the question",)),
    Place("models", "escape f6", seen=("h000", "h119"), is_whole=True),
    Place("card", "c", seen=("Esc closes",), is_whole=True),
    Place("types", "escape q", seen=("quantizes in the background", "h119"), is_whole=True),
    Place("removal", "escape delete", seen=("This frees",)),
    Place("hub", "escape slash r e p o enter", seen=("1 downloads",)),
    Place("plan", "f7", seen=("What would help", "h061")),
    Place("jobs", "f8 down", seen=("h119",), is_whole=True),
    Place("metrics", "f9", seen=("h000", "h019", "Benchmarks")),
    Place("log", "escape", question="/log", seen=("h119",), is_whole=True),
)


async def walk(texts: Sequence[str], folder: Path, user_of: type) -> dict[str, Shown]:
    """Go from place to place, and return what was shown at each."""
    settings = Settings(data_dir=folder / "data", cache_dir=folder / "cache", auto_compact=False)
    client = world(texts, settings)
    shown = {}
    async with (
        SqliteChatRepository(settings.data_dir) as repository,
        ServiceConnection(client.opened, "guide") as connection,
    ):
        tools = hostile_tools(texts)
        app = LocalllmApp(connection, repository, lambda: 0.0, settings, is_welcoming=True, tools=tools)
        app.driver_class = RecordingDriver
        async with app.run_test(headless=False, size=SIZE, notifications=True) as pilot:
            user = user_of(pilot)
            for place in FEATURES:
                await user.presses(*place.keys.split())
                if place.question:
                    await user.asks(place.question)
                if place.act:
                    await place.act(user, texts)
                await user.sees(*place.seen)
                await pilot.pause()
                written, app._driver.written = app._driver.written, []
                shown[place.name] = Shown("".join(written), user.screen_text)
    return shown


def faults(place: Place, hostile: Shown, allowed: set[str]) -> list[str]:
    """Return what is wrong with what was shown at a place."""
    found = [f"sequence {kind!r}" for kind in sequence_kinds(hostile.written) - allowed]
    found += [f"sequence {each!r}" for each in sequences(hostile.written) if "1337" in each]
    found += [f"control {each}" for each in controls_in(hostile.written)]
    unseen = [head for head in heads() if head not in hostile.screen] if place.is_whole else []
    return found + ([f"never shown: {unseen}"] if unseen else [])


async def test_hostile_text_is_letters_wherever_it_is_shown(tmp_path, user_of, monkeypatch):
    walks = []
    for texts in (BENIGN, HOSTILE):
        folder = tmp_path / texts[0]
        folder.mkdir()
        monkeypatch.chdir(folder)
        walks.append(await walk(texts, folder, user_of))
    plain, hostile = walks
    allowed = set().union(*(sequence_kinds(shown.written) for shown in plain.values()))
    found = {place.name: faults(place, hostile[place.name], allowed) for place in FEATURES}
    assert {name: some[:8] for name, some in found.items() if some} == {}
    assert "[@click=app.exit]go[/]" in hostile["streamed answer"].screen


def test_the_strings_are_120_and_the_judge_finds_each_that_a_terminal_would_obey():
    assert len(set(HOSTILE)) == len(HOSTILE) == 120
    tame = [text for text in HOSTILE if not controls_in(text) and not sequences(text)]
    assert all(printable(text) == text for text in tame)
    assert len(tame) < 20
