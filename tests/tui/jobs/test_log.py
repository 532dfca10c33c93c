"""The log screen and its view."""

from __future__ import annotations

from textual.app import App, ComposeResult

from tests.app.client.scripted_client import ScriptedClient
from tui.jobs.log import LogView, read_end


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
        await user.sees("Ask something")


async def test_without_a_log_its_path_is_shown(open_app, tmp_path):
    async with open_app(ScriptedClient(), size=(120, 40)) as user:
        await user.asks("/log")
        await user.sees("No lines yet in", "service.log")


def test_the_end_of_a_file_is_whole_lines(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"first line\nsecond \xff line\nthird\n")
    assert read_end(path, 10_000) == "first line\nsecond \ufffd line\nthird\n"
    assert read_end(path, 12) == "third\n"
    assert read_end(tmp_path / "none") == ""
    assert "cannot be read" in read_end(tmp_path)


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
