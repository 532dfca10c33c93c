from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.library.download.partial_file import DownloadJournal
from app.library.download.remote_file import Range

MARK, BOOTED_S, LATER_S = "sha256 abc 100", 1_000_000.0, 2_000_000.0


def journal(path: Path, booted_s: float = BOOTED_S) -> DownloadJournal:
    return DownloadJournal(path / "journal", lambda: booted_s)


def written(path: Path) -> None:
    """A run that noted 60 bytes, of which 40 were synced, and ended somehow."""
    run = journal(path)
    run.restart(MARK)
    run.add(Range(0, 40))
    run.synced(run.n_lines)
    run.add(Range(50, 70))
    run.close()


@pytest.mark.parametrize(
    ("booted_s", "n_bytes"), [(BOOTED_S, 60), (BOOTED_S + 5, 60), (LATER_S, 40)], ids=["same", "clock set", "rebooted"]
)
def test_unsynced_ranges_count_until_the_machine_reboots(tmp_path: Path, booted_s: float, n_bytes: int) -> None:
    written(tmp_path)
    run = journal(tmp_path, booted_s)
    ranges = run.resumable_ranges(MARK)
    run.close()
    assert ranges is not None
    assert ranges.n_bytes == n_bytes


def test_what_a_run_after_a_restart_adds_is_believed(tmp_path: Path) -> None:
    written(tmp_path)
    run = journal(tmp_path, LATER_S)
    run.resumable_ranges(MARK)
    run.add(Range(80, 90))
    run.close()
    again = journal(tmp_path, LATER_S)
    ranges = again.resumable_ranges(MARK)
    again.close()
    assert ranges is not None
    assert ranges.missing(100) == [Range(40, 80), Range(90, 100)]


@pytest.mark.parametrize("mark", ["sha256 another 100", ""])
def test_another_content_has_nothing(tmp_path: Path, mark: str) -> None:
    written(tmp_path)
    run = journal(tmp_path)
    assert run.resumable_ranges(mark) is None
    run.close()


@given(st.integers(0, 200), st.binary(max_size=40))
def test_a_torn_or_spoilt_journal_claims_nothing_that_was_not_written(
    tmp_path_factory: pytest.TempPathFactory, n_kept: int, rubbish: bytes
) -> None:
    path = tmp_path_factory.mktemp("journal")
    written(path)
    file = path / "journal"
    file.write_bytes(file.read_bytes()[:n_kept] + b"x" + rubbish.translate(None, b"0123456789"))
    run = journal(path)
    ranges = run.resumable_ranges(MARK)
    run.add(Range(90, 95))  # it goes on in a line of its own
    run.close()
    again = journal(path)
    after = again.resumable_ranges(MARK)
    again.close()
    if ranges is not None:
        assert ranges.n_bytes <= 60
        assert after is not None
        assert after.n_bytes == ranges.n_bytes + 5
