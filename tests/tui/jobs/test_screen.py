"""The jobs screen."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from textual.app import App, ComposeResult

from app.protocol.errors import ServiceError
from app.protocol.job import Job
from quantizer.system.errors import ErrorInfo
from tests.app.client.scripted_client import ScriptedClient
from tui.jobs.screen import LogView, read_end, wrapped

PULL = Job(id="job-1", kind="pull", title="pull org/model:Q4_K_M", arguments={}, created_s=1.0, state="running")
TUNE = Job(id="job-2", kind="tune", title="tune guide", arguments={}, created_s=2.0, state="queued")


@pytest.mark.slow
async def test_jobs_are_followed_and_the_log_is_of_the_one_under_the_cursor(open_app):
    client = ScriptedClient(jobs=[PULL, TUNE])
    client.logs = {"job-1": "first line\nsecond line\n", "job-2": "tuning threads\n"}
    async with open_app(client) as user:
        await user.presses("f8")
        await user.sees("tune guide", "waiting", "Download org/model:Q4_K_M", "running", "tuning threads")
        client.change(replace(PULL, fraction=0.4, bytes_per_s=2e6, remaining_s=30.0, n_done_bytes=40, n_bytes=100))
        await user.sees("▰▰▰▰▱▱▱▱▱▱  40 %", "2 MB/s", "30 s")
        await user.presses("down")
        await user.sees("second line", "40 B of 100 B")
        client.logs["job-1"] += "third line\n"
        await user.sees("third line")


@pytest.mark.slow
async def test_a_job_is_cancelled_retried_and_forgotten(open_app):
    client = ScriptedClient(jobs=[PULL])
    async with open_app(client) as user:
        await user.presses("f8")
        await user.sees("running")
        await user.presses("x")
        await user.sees("The job job-1 is running.")
        await user.presses("c")
        await user.sees("1 cancelled")
        await user.presses("enter", "down")
        await user.sees("○ Download")
        await user.presses("r")
        await user.sees("waiting")
        await user.presses("c")
        await user.sees("○ Download")
        await user.presses("x")
        await user.sees("No jobs.", "downloads, quantizes")
    assert await client.jobs() == ()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["pull", "quantize", "tune", "eval", "bench", "batch"])
async def test_a_job_that_is_done_keeps_its_result_when_it_is_to_run_again(open_app, kind):
    done = replace(PULL, kind=kind, title=f"{kind} it", state="done", arguments={"model": "guide"}, result={"a": 1})
    client = ScriptedClient(jobs=[done])
    async with open_app(client) as user:
        await user.presses("f8")
        await user.sees("1 done")
        await user.presses("enter", "down")
        await user.sees("●")
        await user.presses("r")
        await user.sees(f"{kind} it is done" if kind in ("pull", "quantize", "batch") else "waiting")
    assert await client.job("job-1") == done
    assert client.started == ([] if kind in ("pull", "quantize", "batch") else [(kind, {"model": "guide"})])


async def test_the_command_line_of_a_job_is_one_key_away(open_app):
    client = ScriptedClient(jobs=[PULL])
    client.logs = {"job-1": "[2026-03-12 15:00:00] localllm pull org/model --json\nfetching\n"}
    async with open_app(client) as user:
        await user.presses("f8")
        await user.sees("fetching")
        assert "--json" not in user.screen_text
        await user.presses("d")
        await user.sees("localllm pull org/model --json", "fetching")
        await user.presses("d")
        await user.no_longer_sees("--json")


@pytest.mark.slow
async def test_a_job_that_begins_on_an_empty_screen_has_the_keys(open_app):
    client = ScriptedClient()
    async with open_app(client) as user:
        await user.presses("f8")
        await user.sees("No jobs.", "F9")
        client.change(PULL)
        await user.sees("Download org/model")
        await user.presses("c")
        await user.sees("1 cancelled")


async def test_the_end_of_a_job_is_announced_on_every_screen_and_only_once(open_app):
    client = ScriptedClient(jobs=[PULL, replace(TUNE, state="done")])
    async with open_app(client, size=(120, 40)) as user:
        await user.sees("ready")
        assert "tune guide is finished" not in user.screen_text  # it ended before the app was there
        client.change(replace(PULL, state="failed", error=ErrorInfo("HubError", "The hub is away.", "Try again.")))
        await user.sees("pull org/model:Q4_K_M failed: The hub is away.")
        await user.presses("f8")
        await user.sees("▸ 1970  1 done, 1 failed")
        await user.presses("enter", "down", "down")
        await user.sees("The hub is away. Try again.")


@pytest.mark.slow
async def test_leaving_with_running_jobs_asks_escape_stays_and_they_continue_if_so_chosen(open_app):
    client = ScriptedClient(jobs=[PULL])
    async with open_app(client) as user:
        await user.presses("f8")
        await user.sees("running")
        await user.presses("ctrl+q")
        await user.sees("Running or queued jobs: 1.", "the jobs continue until they finish")
        await user.presses("escape")
        await user.no_longer_sees("Running or queued jobs")
        assert user.app.is_running
        assert not client.is_staying
        await user.presses("ctrl+q")
        await user.sees("Quit; the jobs continue")
        await user.presses("enter")
        await user.leaves()
    assert client.is_staying
    assert (await client.job("job-1")).state == "running"


@pytest.mark.slow
async def test_jobs_are_cancelled_on_quitting_if_so_chosen(open_app):
    client = ScriptedClient(jobs=[PULL, TUNE])
    async with open_app(client) as user:
        await user.presses("f8")
        await user.sees("running")
        await user.presses("ctrl+q")
        await user.sees("Cancel the jobs")
        await user.presses("down", "enter")
        await user.leaves()
    assert [job.state for job in await client.jobs()] == ["cancelled", "cancelled"]
    assert not client.is_staying


@pytest.mark.parametrize(("setting", "states"), [("go-on", "running queued"), ("stop", "cancelled cancelled")])
async def test_what_the_settings_say_of_jobs_is_done_without_a_question(open_app, setting, states):
    client = ScriptedClient(jobs=[PULL, TUNE])
    async with open_app(client, settings={"jobs_at_exit": setting}) as user:
        await user.presses("f8")
        await user.sees("running")
        await user.presses("ctrl+q")
        await user.leaves()
    assert [job.state for job in await client.jobs()] == states.split()
    assert client.is_staying == (setting == "go-on")


@pytest.mark.slow
@pytest.mark.parametrize("setting", ["ask", "stop"])
async def test_a_terminal_that_closes_asks_nothing_and_jobs_go_on_unless_they_are_to_stop(open_app, setting):
    client = ScriptedClient(jobs=[PULL])
    async with open_app(client, settings={"jobs_at_exit": setting}) as user:
        await user.presses("f8")
        await user.sees("running")
        await user.presses("ctrl+q")  # the question may be open when it closes
        user.app.quit_without_asking()
        user.app.quit_without_asking()  # told by a signal and by the terminal
        await user.leaves()
    assert (client.is_staying, (await client.job("job-1")).state) == (
        (True, "running") if setting == "ask" else (False, "cancelled")
    )


async def test_a_service_that_does_not_answer_holds_up_no_terminal_that_closes(open_app, monkeypatch):
    class Silent(ScriptedClient):
        async def stay_until_jobs_end(self) -> None:
            await asyncio.Event().wait()

    monkeypatch.setattr("tui.jobs.monitor._QUIT_TIMEOUT_S", 0.05)
    async with open_app(Silent(jobs=[PULL])) as user:
        await user.presses("f8")
        await user.sees("running")
        user.app.quit_without_asking()
        await user.leaves()


async def test_without_jobs_leaving_asks_nothing(open_app):
    async with open_app(ScriptedClient(jobs=[replace(PULL, state="done")])) as user:
        await user.sees("ready")
        await user.presses("ctrl+q")
        await user.leaves()


async def test_a_service_without_jobs_is_reported(open_app):
    class Jobless(ScriptedClient):
        async def jobs(self):
            raise ServiceError("What answers does no jobs.", "Update it.")

    async with open_app(Jobless()) as user:
        await user.presses("f8")
        await user.sees("What answers does no jobs. Update it.")


@pytest.mark.slow
async def test_every_figure_of_a_job_is_shown_however_narrow_the_terminal(open_app):
    running = replace(PULL, fraction=0.4, bytes_per_s=2e6, remaining_s=30.0, n_done_bytes=40, n_bytes=100)
    client = ScriptedClient(jobs=[running])
    client.logs = {"job-1": "A_long_line_" * 12 + "and_its_end\n"}
    async with open_app(client, size=(120, 40)) as user:
        await user.presses("f8")
        for size in ((120, 40), (80, 24), (72, 24), (60, 20), (40, 20)):
            await user.pilot.resize_terminal(*size)
            await user.until(lambda: "and_its_end" in "".join(user.screen_text.split()), "the line has no end")
            plain = " ".join(user.screen_text.split())
            assert all(text in plain for text in ("▰▰▰▰▱▱▱▱▱▱ 40 %", "2 MB/s", "30 s"))
            assert not set("▏▎▍▌▋▊▉") & set(plain)  # no bar of what would have to be scrolled sideways


@pytest.mark.parametrize("size", [(120, 40), (80, 24), (60, 20)])
async def test_a_note_covers_nothing_of_what_is_read(open_app, size):
    client = ScriptedClient(jobs=[PULL, TUNE])
    client.logs = {"job-2": "".join(f"line {n}\n" for n in range(30))}
    async with open_app(client, size=size) as user:
        await user.presses("f8")
        await user.sees("line 29")
        read = [line for line in user.screen_text.splitlines() if "line" not in line and line.strip()]
        user.app.screen.inform("A note of some words. " * 4)
        await user.sees("A note of some words.")
        await user.until(lambda: "line 29" in user.screen_text, "the end of the log is covered")
        shown = user.screen_text.splitlines()
        assert [line for line in read if line not in shown] == []


@pytest.mark.slow
async def test_the_log_follows_and_shows_only_lines_with_what_is_typed(open_app, tmp_path):
    path = tmp_path / "cache" / "service.log"
    path.parent.mkdir(exist_ok=True)
    path.write_text("loading guide\nready on port 1\n")
    async with open_app(ScriptedClient()) as user:
        await user.asks("/log")
        await user.sees("loading guide", "ready on port 1")
        with path.open("a") as file:
            file.write("an answer\x1b[2J of 12 tokens\n")
        await user.sees("an answer[2J of 12 tokens")
        await user.types("ANSW")
        await user.no_longer_sees("loading guide")
        await user.sees("an answer[2J of 12 tokens")
        await user.presses("escape")
        await user.sees("loading guide")
        await user.presses("escape")
        await user.sees("Ask something")


async def test_without_a_log_its_path_is_shown(open_app, tmp_path):
    async with open_app(ScriptedClient(), size=(120, 40)) as user:
        await user.asks("/log")
        await user.sees("No lines yet in", "service.log", "what fails")


def test_the_end_of_a_file_is_whole_lines(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"first line\nsecond \xff line\nthird\n")
    assert read_end(path, 10_000) == "first line\nsecond \ufffd line\nthird\n"
    assert read_end(path, 12) == "third\n"
    assert read_end(tmp_path / "none") == ""
    assert "cannot be read" in read_end(tmp_path)


@pytest.mark.parametrize(
    ("line", "rows"),
    [
        ("press it again in the app", ["press it again in", "the app"]),
        ("    indented a word at a time", ["    indented a word", "at a time"]),
        ("short", ["short"]),
        ("a_word_that_is_longer_than_the_row and", ["a_word_that_is_longe", "r_than_the_row and"]),
        ("日本語のテキストがここ word", ["日本語のテキストがこ", "こ word"]),
    ],
)
def test_rows_of_a_log_end_between_words(line, rows):
    assert wrapped(line, 20) == rows


class _Reader(App[None]):
    def compose(self) -> ComposeResult:
        yield LogView()


def _lines(n_lines: int) -> str:
    return "".join(f"line {number}\n" for number in range(n_lines))


async def test_the_end_is_in_view_until_the_user_scrolls_away_and_again_after_returning():
    async with _Reader().run_test(size=(40, 10)) as pilot:
        view = pilot.app.query_one(LogView)
        view.show(_lines(30))
        await pilot.pause()
        assert view.scroll_y == view.max_scroll_y > 0
        view.focus()
        await pilot.press("pageup")
        await pilot.wait_for_scheduled_animations()
        place = view.scroll_y
        view.show(_lines(50))
        await pilot.pause()
        assert view.scroll_y == place < view.max_scroll_y
        await pilot.press("ctrl+end", "end")
        await pilot.wait_for_scheduled_animations()
        view.show(_lines(60))
        await pilot.pause()
        assert view.scroll_y == view.max_scroll_y


async def test_its_end_stays_in_view_when_the_window_changes():
    async with _Reader().run_test(size=(40, 20)) as pilot:
        view = pilot.app.query_one(LogView)
        view.show(_lines(30))
        for size in ((40, 8), (30, 8), (30, 25)):
            await pilot.resize_terminal(*size)
            await pilot.pause()
            assert view.scroll_y == view.max_scroll_y > 0
