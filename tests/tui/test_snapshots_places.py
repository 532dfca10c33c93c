"""What the places beside the chat look like. `pytest tests/tui --snapshot-update` draws them anew."""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest

from app.chat.chat import Chat, Transcript
from app.chat.message import Message
from app.chat.store import ChatStore
from app.client_fake import ScriptedClient
from app.job import Job, JobFailure
from app.settings import Settings
from tui.app import LocalllmApp
from tui.connection import Connection

DRAWN_WITH = {"textual": "8.2.8", "rich": "15.0.0"}
MOMENT_MS = 1_790_000_000_000
FAILURE = JobFailure("UserError", "The text has 12 tokens.", "Give a longer one.")

pytestmark = pytest.mark.skipif(
    {name: version(name) for name in DRAWN_WITH} != DRAWN_WITH,
    reason=f"another version draws other pixels; these were drawn with {DRAWN_WITH}",
)
LOOKS = pytest.mark.parametrize(
    ("size", "theme"),
    [((80, 24), "textual-dark"), ((120, 40), "textual-dark"), ((80, 24), "textual-light")],
    ids=["80x24", "120x40", "light"],
)


@pytest.fixture(autouse=True)
def _one_time_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    if hasattr(time, "tzset"):
        monkeypatch.setenv("TZ", "UTC")
        time.tzset()


@pytest.fixture
def keep_chats(tmp_path: Path) -> None:
    with ChatStore(tmp_path / "data") as store:
        for number, (title, model) in enumerate((("Soup", "guide"), ("Why is the sky blue?", "qwen3-0.6b-Q8_0"))):
            moment_ms = MOMENT_MS + number * 3_600_000
            said = Message(id=1, parent_id=None, role="user", content=f"{title} with salt", created_ms=moment_ms)
            chat = Chat(id=1, title=title, created_ms=moment_ms, updated_ms=moment_ms, model=model, leaf_id=1)
            store.transcripts.insert(Transcript(chat, (said,)))
        store.chats.pin(1, True)


Draw = Callable[..., None]


@pytest.fixture
def draw(snap_compare: Callable[..., bool], tmp_path: Path, meet: type) -> Draw:
    """Compare the app after `keys`, once all `texts` are on the screen, with how it was drawn."""

    def compare(client: ScriptedClient, size: tuple[int, int], theme: str, keys: str, *texts: str) -> None:
        settings = Settings(data_dir=tmp_path / "data", cache_dir=tmp_path / "cache")
        app = LocalllmApp(Connection(client.opened, "guide"), clock=lambda: 0.0, settings=settings)

        async def act(pilot) -> None:
            app.theme = theme
            person = meet(pilot)
            await person.sees("ready")
            await person.presses(*keys.split())
            await person.sees(*texts)

        assert snap_compare(app, terminal_size=size, run_before=act)

    return compare


@LOOKS
def test_list_of_chats_looks_as_drawn(draw, keep_chats, size, theme):
    draw(ScriptedClient(), size, theme, "f5", "◆ Soup", "2 chats")


@LOOKS
def test_search_looks_as_drawn(draw, keep_chats, size, theme):
    draw(ScriptedClient(), size, theme, "f5 slash b l u", "1 chat")


JOBS = (
    Job(id="1", kind="tune", title="tune guide", arguments={}, created_s=1.0, state="done", fraction=1.0),
    Job(id="2", kind="judge", title="judge qwen3", arguments={}, created_s=2.0, state="failed", error=FAILURE),
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


@LOOKS
def test_jobs_look_as_drawn(draw, size, theme):
    client = ScriptedClient(jobs=JOBS)
    client.logs["3"] = "Reading the list of files\nFetching Qwen3-8B-Q4_K_M.gguf over 4 connections\n"
    draw(client, size, theme, "f8", "Fetching", "1.56 GB of 5.03 GB")


def test_the_question_before_leaving_looks_as_drawn(draw):
    draw(ScriptedClient(jobs=JOBS), (80, 24), "textual-dark", "f8 ctrl+q", "Jobs that run or wait: 1.")
