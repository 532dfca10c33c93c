"""Every screen in a state worth a snapshot: its client, the keys that lead there, and the text that appears."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from app.chat.conversation import Chat, Message, Transcript
from app.chat.repository import SqliteChatRepository
from app.chat.store.chat_store import ChatStore
from app.connection import ServiceConnection
from app.knowledge.passages import Passage
from app.knowledge.store import FileRecord, KnowledgeStore
from app.protocol.chat import Tool, ToolCall
from app.protocol.errors import ContextOverflowError
from app.protocol.job import Job
from app.protocol.library import LocalModel, MachineProblem, MachineReport
from app.protocol.plan import MeasuredRun
from app.protocol.status import AnswerRecord, EngineCounters, LatencySummary, Occupancy, ServiceStatus
from app.settings.settings import Settings
from app.tools.backend import ToolBackend
from app.tools.tool import BoundCommand, Effect, Preview, ToolOutput
from quantizer.system.errors import ErrorInfo
from tests.app.chat.attachments.files import pdf_of
from tests.app.client.scripted_client import COMPLETED, LOADING, PLAN, READY, ScriptedClient, ScriptedReply
from tests.app.tools.fake import FakeToolBackend, FakeToolServer, ScriptedCall, fake_tool
from tests.tui.model_scenes import client_with_models
from tests.tui.plans import planner_for
from tui import app as app_module
from tui.app import LocalllmApp
from tui.settings.controller import SettingsController

__all__ = ["SCENES", "Scene"]

MOMENT_MS = 1_000_000_000_000  # long ago: relative times of today would be others tomorrow
ANSWER = """I am **localllm**. I can:

- answer questions,
- *quote* and `edit` text.

```python
def double(n: int) -> int:
    return 2 * n  # twice
```

| type | bits |
|---|---|
| Q4_K_M | 4.8 |
"""
TWO_BLOCKS = 'First\n\n```sh\nlocalllm plan qwen3\n```\n\nthen\n\n```toml\nctx = 4096\nkv_type = "q8_0"\n```\n'
LOG = "12:00:01 loading guide\n12:00:02 guide is ready, 28 tensors on the CPU\n12:00:09 POST /v1/chat/completions 200\n"
RUN = MeasuredRun(kind="decode", depth=512, tps=12.0, gpu_layers=30, at_s=1.0)

Step = tuple[str, ...]
"""Keys, separated by spaces, with texts in quotes that are pasted, and the texts that are waited for after them."""


@dataclass(frozen=True, kw_only=True)
class Scene:
    """A way to a screen. The app is made in a folder that `furnish` may fill; `steps` are gone one by one, and what
    stays on the screen for a while only is `gone` at the end. Chats are in memory, unless the scene `is_stored`: then
    those in the folder are open and at the side."""

    name: str
    steps: tuple[Step, ...]
    client: Callable[[], ScriptedClient] = ScriptedClient
    furnish: Callable[[], object] = lambda: None
    is_welcoming: bool = False
    environment: tuple[tuple[str, str], ...] = ()
    tools: Callable[[], ToolBackend | None] = lambda: None
    first: Step = ("", "ready")
    gone: tuple[str, ...] = ()
    is_stored: bool = False

    def app(self, theme: str) -> LocalllmApp:
        """Return the app as it is before the first step. Folders are relative: no picture shows this machine's."""
        self.furnish()
        client = self.client()
        settings = Settings(data_dir=Path("data"), cache_dir=Path("cache"))
        own = {"LOCALLLM_CONFIG": "config.toml", "LOCALLLM_DATA_DIR": "data", "LOCALLLM_CACHE_DIR": "cache"}
        app = (_StoredApp if self.is_stored else LocalllmApp)(
            ServiceConnection(client.opened, "guide"),
            SqliteChatRepository(settings.data_dir) if self.is_stored else None,
            clock=getattr(client, "clock", lambda: 0.0),
            settings=settings,
            is_welcoming=self.is_welcoming,
            settings_controller=SettingsController(settings, {"model": "guide"}, own | dict(self.environment)),
            tools=self.tools(),
        )
        app.theme = theme
        return app


class _StoredApp(LocalllmApp):
    """An app that closes its repository at its end, as `tui.run` does."""

    CSS_PATH = Path(app_module.__file__).with_name("design") / "design.tcss"  # else sought beside this class

    async def on_unmount(self) -> None:
        repository = self.app_context.repository
        assert isinstance(repository, SqliteChatRepository)
        await repository.__aexit__()


def _replying(*deltas: str, **how: Any) -> Callable[[], ScriptedClient]:
    return lambda: ScriptedClient(ScriptedReply(deltas=deltas, **how))


def _compacting(pause_after: int | None = None) -> Callable[[], ScriptedClient]:
    """A chat with one long turn, its summary, and an answer after it."""
    long = replace(COMPLETED, n_prompt_tokens=60, n_output_tokens=1100)
    summary = ("The cook ", "wants **leek soup**", " for four:\n\n- three leeks, half a litre of milk\n- no cream")
    return lambda: ScriptedClient(
        ScriptedReply(deltas=("Leeks first, then milk.",), ending=long),
        ScriptedReply(deltas=summary, ending=replace(long, n_output_tokens=48), pause_after=pause_after),
        ScriptedReply(deltas=("It is soup.",)),
    )


def _slower() -> ScriptedClient:
    return ScriptedClient(model=replace(READY, notices=("A slower path is used on this CPU.",)))


def _keep_chats() -> None:
    with ChatStore(Path("data")) as store:
        for number, (title, model) in enumerate((("Soup", "guide"), ("Why is the sky blue?", "qwen3-0.6b-Q8_0"))):
            moment_ms = MOMENT_MS + number * 3_600_000
            said = Message(id=1, parent_id=None, role="user", content=f"{title} with salt", created_ms=moment_ms)
            chat = Chat(id=1, title=title, created_ms=moment_ms, updated_ms=moment_ms, model=model, leaf_id=1)
            store.transcripts.insert(Transcript(chat, (said,)))
        store.chats.pin(1, True)


def _keep_answered_chats() -> None:
    """Store two years of chats, of which the last has an answer."""
    titles = (
        "Leeks",
        "A name for a boat",
        "Sourdough",
        "Regular expressions",
        "Trains to Lisbon",
        "Why is the sky blue?",
    )
    with ChatStore(Path("data")) as store:
        for number, title in enumerate(titles):
            moment_ms = MOMENT_MS + number * 120 * 86_400_000
            asked = Message(id=1, parent_id=None, role="user", content=f"{title}, please", created_ms=moment_ms)
            said = replace(asked, id=2, parent_id=1, role="assistant", content=ANSWER, model="guide")
            chat = Chat(id=1, title=title, created_ms=moment_ms, updated_ms=moment_ms, model="guide", leaf_id=2)
            store.transcripts.insert(Transcript(chat, (asked, said)))
        store.chats.pin(1, True)


def _keep_log() -> None:
    Path("cache").mkdir(exist_ok=True)
    Path("cache/service.log").write_text(LOG)


def _keep_file() -> None:
    Path("notes.md").write_text("Buy milk.\n")


def _keep_picture() -> None:
    """Draw a sun over the sea, and a document beside it."""
    from PIL import Image, ImageDraw

    picture = Image.new("RGB", (320, 240), "skyblue")
    draw = ImageDraw.Draw(picture)
    draw.ellipse((200, 30, 270, 100), fill="gold")
    draw.rectangle((0, 160, 320, 240), fill="steelblue")
    picture.save("photo.png")
    Path("paper.pdf").write_bytes(pdf_of(("Leeks and salt.", "Boil for an hour.", "Serve hot.")))


def _seeing(*deltas: str) -> Callable[[], ScriptedClient]:
    return lambda: ScriptedClient(ScriptedReply(deltas=deltas), model=replace(READY, sees=True, hears=False))


def _blind() -> ScriptedClient:
    client = client_with_models()
    client.model = replace(READY, sees=False, hears=False)
    client.library.here += [
        LocalModel(id=name, where="library", path=f"/models/{name}.gguf", n_bytes=1 << 30, sees=True)
        for name in ("gemma3:4b-it-q4_K_M", "smolvlm2:2.2b-q8_0")
    ]
    return client


def _machine_with_a_problem() -> ScriptedClient:
    client = client_with_models()
    rows = (("memory", "20 GiB of 24 GiB free"), ("processor", "8 cores with AVX2"))
    client.library.machine_report = MachineReport(
        rows, (MachineProblem("Memory is swapped.", "Close other programs."),)
    )
    return client


def _planning() -> ScriptedClient:
    client = ScriptedClient()
    client.plan_answer = planner_for(measured=(RUN,))
    return client


JOBS = (
    Job(id="1", kind="tune", title="tune guide", arguments={}, created_s=1.0, state="done", fraction=1.0),
    Job(
        id="2",
        kind="eval",
        title="eval qwen3",
        arguments={},
        created_s=2.0,
        state="failed",
        error=ErrorInfo("UserError", "The text has 12 tokens.", "Give a longer one."),
    ),
    Job(
        id="3",
        kind="pull",
        title="pull Qwen/Qwen3-8B-GGUF:Q4_K_M",
        arguments={},
        created_s=3.0,
        state="running",
        fraction=0.31,
        n_done_bytes=1_560_000_000,
        n_bytes=5_030_000_000,
        bytes_per_s=24_500_000.0,
        remaining_s=142.0,
        message="Qwen3-8B-Q4_K_M.gguf",
    ),
)


def _working() -> ScriptedClient:
    client = ScriptedClient(jobs=JOBS)
    client.logs["3"] = "Reading the list of files\nFetching Qwen3-8B-Q4_K_M.gguf over 4 connections\n"
    return client


COUNTERS = EngineCounters(
    n_finished=3,
    n_prompt_tokens=100,
    n_output_tokens=60,
    cached_share=0.6,
    prefill_tokens_per_s=900.0,
    decode_tokens_per_s=48.0,
    n_drafted_tokens=0,
    n_accepted_tokens=0,
    first_token_s=LatencySummary(3, 0.2, 0.4, 0.7),
    inter_token_s=LatencySummary(50, 0.02, 0.03, 1.0),
)


class MeasuredClient(ScriptedClient):
    """A service whose model makes tokens between the first two looks that the metrics screen has, and then stands
    still, as its clock does: a slow machine has time for more looks before the picture."""

    n_looks = 1
    is_watched = False

    def clock(self) -> float:
        return self.n_looks / 2

    async def status(self) -> ServiceStatus:
        if self.is_watched:
            self.n_looks = 2
        counters = replace(COUNTERS, n_output_tokens=self.n_looks * 24)
        self.model = replace(READY, counters=counters, occupancy=Occupancy(1, 2, 900, 2048), n_bytes=400 << 20)
        self.is_watched = bool(self.plan_requests)  # the screen makes one beside its first look
        return await super().status()


def _bench_run(number: int, tps: float) -> Job:
    measured = [{"work": "decode", "case": "depth 0", "unit": "tok/s", "median": tps}]
    result: dict[str, Any] = {"results": [{"measurements": measured}], "rooflines": [{"share": 0.8}]}
    arguments = {"model": "guide"}
    created_s = 1.7e9 + number
    return Job(
        id=str(number), kind="bench", title="", arguments=arguments, created_s=created_s, state="done", result=result
    )


def _measured() -> ScriptedClient:
    client = MeasuredClient(jobs=[_bench_run(1, 40.0), _bench_run(2, 60.0)])
    speeds = (48.0, 51.0, 39.0, 22.0, 47.0, 50.0, 49.0, 31.0, 44.0)
    client.answers = tuple(
        AnswerRecord(
            model="qwen3-0.6b" if number % 4 else "guide",
            at_s=MOMENT_MS / 1000,
            n_prompt_tokens=40 * number + 12,
            n_cached_tokens=0,
            n_output_tokens=30 * (9 - number) + 3,
            first_token_s=0.2 + 0.1 * (number % 3),
            prefill_tps=900.0,
            decode_tps=tps,
        )
        for number, tps in enumerate(speeds)
    )
    runs = tuple(MeasuredRun(kind="decode", depth=9, tps=tps, gpu_layers=0, at_s=1.7e9) for tps in (30.0, 60.0))
    client.plan_answer = lambda _: replace(PLAN, measured=runs)
    return client


MODELS: Step = ("f6", "Recommended", "qwen3-0.6b")
THOUGHT = ScriptedReply(thoughts=("They want to know what I am. ",), deltas=("A chat app.",))

DIFF = """--- total.py
+++ total.py
@@ -1,5 +1,5 @@
 def total(numbers):
     result = 0
     for number in numbers:
-        result -= number
+        result += number
     return result
"""
READ = ToolCall("1", "read_file", '{"path": "total.py"}')
EDIT = ToolCall("2", "edit_file", '{"path": "total.py", "old_text": "-=", "new_text": "+="}')
RUN_CHECK = ToolCall("3", "run_command", '{"argv": ["pytest", "-q"]}')
COMMAND = Preview(
    "command",
    "run pytest -q",
    "pytest -q\nprogram: /usr/bin/pytest\nfolder: /home/me/sums\n"
    "environment: 21 usual variables, without 34 others of yours",
    BoundCommand(("pytest", "-q"), "/usr/bin/pytest", "/usr/bin/pytest", "/home/me/sums"),
)
# a server that is not called files: that one asks for a folder, which would be drawn with the name of this run's
SWITCHED: Step = ("'/tools on project' enter", "3 tools on", "tools: project")
ARMED: Step = ("tab", "┏━")


def _tools() -> FakeToolBackend:
    """Tools that pretend to repair a program."""
    texts = {
        "read_file": (Effect.READ, "Read a text file, or some of its lines."),
        "edit_file": (Effect.WRITE, "Replace a text in a file by another."),
        "run_command": (Effect.RUN, "Run a program and read what it prints."),
    }
    tools = [fake_tool(name, effect, "project", definition=Tool(name, text)) for name, (effect, text) in texts.items()]
    script = {
        "read_file": [
            ScriptedCall(ToolOutput("def total", detail="5 lines"), Preview("arguments", "read total.py", ""))
        ],
        "edit_file": [
            ScriptedCall(
                ToolOutput("Edited total.py (+1 −1 lines).", detail="+1 −1 lines"),
                Preview("diff", "edit total.py", DIFF),
            )
        ],
        "run_command": [ScriptedCall(ToolOutput("1 failed", is_error=True, detail="exit status 1"), COMMAND)],
    }
    return FakeToolBackend(FakeToolServer("project", tools, script))


def _keep_documents() -> None:
    broth, salt = "# Broth\n\nIt simmers for three hours, without a lid.", "# Salt\n\nA pinch of it is enough for four."
    n_broth, n_all = len(broth), len(broth) + 2 + len(salt)
    passages = (Passage(broth, 0, n_broth, "Broth"), Passage(salt, n_broth + 2, n_all, "Salt"))
    with KnowledgeStore(Path("data")) as store:
        folder = store.add_folder(Path("/home/me/recipes"))
        soup = FileRecord(b"soup.md", n_all, 1, "hash", passages=passages)
        photo = FileRecord(b"photo.png", 12, 1, reason="it is a picture")
        store.put(folder, [soup, photo])
        store.mark_updated(folder)


def _without_tools() -> ScriptedClient:
    """A model that calls no tools, so that folders are searched before a question."""
    reply = ScriptedReply(deltas=("It simmers for three hours [1].",))
    return ScriptedClient(reply, model=replace(READY, takes_tools=False))


SEARCHED: Step = ("'/knowledge on' enter", "searched before each question", "tools: knowledge")


def _calling(*calls: ToolCall) -> Callable[[], ScriptedClient]:
    return lambda: ScriptedClient(ScriptedReply(calls=calls), ScriptedReply(deltas=("The sum is right now.",)))


SCENES = (
    Scene(name="empty", steps=(), client=_slower),
    Scene(
        name="loading",
        steps=(("f2", "esc stop"),),
        client=lambda: ScriptedClient(model=replace(LOADING, progress=0.3)),
        first=("", "loading"),
    ),
    Scene(name="answered", steps=(("f2", "48 tokens a second"),), client=_replying(ANSWER)),
    Scene(
        name="stopped",
        steps=(("f2", "answering"), ("escape", "stopped")),
        client=_replying("Half an answer ", pause_after=1),
    ),
    Scene(
        name="summarising",
        steps=(("'hi' enter", "Leeks first"), ("'/compact' enter", "The cook")),
        client=_compacting(pause_after=2),
    ),
    Scene(
        name="compacted",
        steps=(
            ("'hi' enter", "Leeks first"),
            ("'/compact' enter", "Compacted 2 messages", "ready"),
            ("'why?' enter", "It is soup.", "· 12 tokens"),
            ("ctrl+up ctrl+up ctrl+up", "edit"),
        ),
        client=_compacting(),
    ),
    Scene(name="overflow", steps=(("f4", "No answer"),), client=_replying(ending=ContextOverflowError(2100, 2048))),
    Scene(
        name="thoughts",
        steps=(("f2", "48 tokens a second"), ("ctrl+up", "R again", "Thoughts"), ("t", "They want to know")),
        client=lambda: ScriptedClient(THOUGHT),
    ),
    Scene(
        name="versions",
        steps=(("f2", "48 tokens a second"), ("ctrl+r", "2/2", "48 tokens a second"), ("ctrl+up", "R again")),
        client=lambda: ScriptedClient(*[ScriptedReply(deltas=(ANSWER,))] * 2),
    ),
    Scene(
        name="code",
        steps=(("f2", "48 tokens a second"), ("ctrl+up", "R again"), ("c", "2  toml")),
        client=_replying(TWO_BLOCKS),
    ),
    Scene(
        name="attached",
        steps=(
            ("@ n o t e s", "notes.md"),
            ("enter", "notes.md"),
            ("'Read'", "Read", "· 2 tokens, <1 % of", "≈0 + 15 of 2k"),
        ),
        furnish=_keep_file,
    ),
    Scene(
        name="attachment",
        steps=(
            ("@ n o t e s", "notes.md"),
            ("enter", "[notes.md · 2 tokens, <1 % of", " + "),
            ("ctrl+l", "Ctrl+S saves"),
        ),
        furnish=_keep_file,
    ),
    Scene(
        name="attached-media",
        steps=(
            ("@ p h o", "photo.png"),
            ("tab", "[photo.png", "3 % of"),
            ("@ p a p", "paper.pdf"),
            ("tab", "[photo.png · 64 tokens, 3 % ×]", "[paper.pdf · 15 tokens, <1 %", "92 of 2k"),
        ),
        client=_seeing(),
        furnish=_keep_picture,
    ),
    Scene(
        name="attached-unread",
        steps=(("@ p h o", "photo.png"), ("tab", "smolvlm2", "1 not counted")),
        client=_blind,
        furnish=_keep_picture,
    ),
    Scene(
        name="attached-picture",
        steps=(("@ p h o", "photo.png"), ("tab", "[photo.png", "3 % of", " + "), ("ctrl+l", "▀▀▀")),
        client=_seeing(),
        furnish=_keep_picture,
    ),
    Scene(
        name="picture",
        steps=(
            ("@ p h o", "photo.png"),
            ("tab", "[photo.png", "3 % of"),
            ("'What?' enter", "▀▀▀", "48 tokens a second"),
        ),
        client=_seeing("The sun over the sea."),
        furnish=_keep_picture,
    ),
    Scene(
        name="approval-diff",
        steps=(SWITCHED, ("'Repair' enter", "Allow edit total.py?", "+        result += number", "X never")),
        client=_calling(READ, EDIT),
        tools=_tools,
    ),
    Scene(
        name="approval-command",
        steps=(SWITCHED, ("'Run' enter", "Allow run pytest -q?"), ARMED),
        client=_calling(READ, RUN_CHECK),
        tools=_tools,
    ),
    Scene(
        name="calls",
        steps=(
            SWITCHED,
            ("'Repair' enter", "Allow edit"),
            ARMED,
            ("y", "Allow run"),
            ARMED,
            ("n", "denied", "The sum is right now."),
        ),
        client=_calling(READ, EDIT, RUN_CHECK),
        tools=_tools,
    ),
    Scene(
        name="call-expanded",
        steps=(
            SWITCHED,
            ("'Repair' enter", "Allow edit"),
            ARMED,
            ("y", "The sum is right now.", "48 tokens a second"),
            ("ctrl+up ctrl+up", "Output"),
            ("enter", "+        result += number"),
        ),
        client=_calling(READ, EDIT),
        tools=_tools,
    ),
    Scene(name="tools", steps=(SWITCHED, ("'/tools' enter", "Tools of this chat", "3 tools")), tools=_tools),
    Scene(
        name="knowledge",
        steps=(("'/knowledge' enter", "recipes", "2 passages", "found by words alone"),),
        furnish=_keep_documents,
    ),
    Scene(
        name="sources",
        steps=(SEARCHED, ("'How long does broth simmer?' enter", "[1] soup.md (Broth)", "48 tokens a second")),
        client=_without_tools,
        furnish=_keep_documents,
    ),
    Scene(
        name="citation",
        steps=(
            SEARCHED,
            ("'How long does broth simmer?' enter", "48 tokens a second"),
            ("'/source 1' enter", "/home/me/recipes/soup.md", "A pinch of it"),
        ),
        client=_without_tools,
        furnish=_keep_documents,
    ),
    Scene(name="slash", steps=(("slash", "Start a new chat"),)),
    Scene(name="options", steps=(("'/options' enter", "Options of the answers"),)),
    Scene(name="palette", steps=(("ctrl+p", "Search commands, models", "Ctrl+Down"),)),
    Scene(name="theme", steps=(("'/theme' enter", "High contrast"),)),
    Scene(name="help", steps=(("f1", "Keys and commands"),)),
    Scene(name="guide-page", steps=(("'/help plan' enter", "What fits, and how fast"),)),
    Scene(
        name="welcome",
        first=("", "Llama 3.2 1B Instruct", "Memory is swapped."),
        steps=(),
        client=_machine_with_a_problem,
        is_welcoming=True,
    ),
    Scene(
        name="sidebar",
        first=("", "ready", "Q4_K_M  4.8"),  # the chat is open: the highlight is on its row
        steps=(("ctrl+o", "▌Why is the sky blue?", "2002", "◆Leeks", "enter open"),),
        furnish=_keep_answered_chats,
        is_stored=True,
    ),
    Scene(name="chats", steps=(("f5", "◆ Soup", "2 chats"),), furnish=_keep_chats),
    Scene(name="chats-search", steps=(("f5", "2 chats"), ("slash 'blu'", "1 chat")), furnish=_keep_chats),
    Scene(name="chats-rename", steps=(("f5", "2 chats"), ("r", "Rename the chat")), furnish=_keep_chats),
    Scene(name="models", steps=(MODELS,), client=client_with_models),
    Scene(name="models-search", steps=(MODELS, ("slash 'tiny' enter", "maker/Tiny-Coder")), client=client_with_models),
    Scene(name="card", steps=(MODELS, ("down c", "Esc closes")), client=client_with_models),
    Scene(name="quantize", steps=(MODELS, ("down q", "recommended")), client=client_with_models),
    Scene(name="removal", steps=(MODELS, ("down delete", "This frees")), client=client_with_models),
    Scene(name="plan", steps=(("f7", "What would help"),), client=_planning),
    Scene(
        name="plan-overfull",
        steps=(("f7", "What would help"), ("a right", "Does not fit"), ("l", "L again to confirm")),
        client=_planning,
        gone=("planning…", "… computing"),  # its own advice is there
    ),
    Scene(name="jobs", steps=(("f8", "Fetching", "1.56 GB of 5.03 GB"),), client=_working),
    Scene(name="jobs-note", steps=(("f8", "Fetching"), ("r", "is running.")), client=_working),
    Scene(name="leaving", steps=(("f8", "Fetching"), ("ctrl+q", "Running or queued jobs: 1.")), client=_working),
    Scene(
        name="metrics",
        steps=(
            ("f9", "Tokens a second", "400 MiB│", "qwen3-0.6b", "Benchmarks"),
            ("down enter down enter", "1.50 ×"),
        ),
        client=_measured,
    ),
    Scene(
        name="settings",
        steps=(("f10 down down down", "Telemetry: none", "4096: L reloads", "Variable:", "_CONTEXT_SHIFT"),),
        environment=(("LOCALLLM_CTX", "4096"),),
    ),
    Scene(
        name="settings-choice",
        steps=(("f10", "Telemetry: none"), ("down down down", "_CONTEXT_SHIFT"), ("e", "Enter selects")),
    ),
    Scene(name="log", steps=(("'/log' enter", "guide is ready", "completions 200"),), furnish=_keep_log),
    Scene(name="log-empty", steps=(("'/log' enter", "No lines yet in"),)),
)
