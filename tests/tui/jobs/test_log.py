"""The log screen."""

from __future__ import annotations

from app.client.fake import ScriptedClient
from tui.jobs.log import read_end


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
