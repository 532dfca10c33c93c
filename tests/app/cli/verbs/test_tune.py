from __future__ import annotations

import psutil
import pytest

from app.cli.verbs.tune import warn_if_busy


@pytest.mark.parametrize("busy_percent", [0.0, 3.0, 15.0])
def test_a_machine_at_rest_is_measured_without_a_word(
    busy_percent: float, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(psutil, "cpu_percent", lambda _interval_s: busy_percent)
    warn_if_busy()
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "")


def test_a_busy_machine_is_warned_of_on_standard_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(psutil, "cpu_percent", lambda _interval_s: 62.4)
    warn_if_busy()
    said = capsys.readouterr()
    assert said.out == ""
    assert "Other programs take 62 % of this machine's processors" in said.err
