from __future__ import annotations

from textual.app import App, ComposeResult

from tui.jobs.log import LogView


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
