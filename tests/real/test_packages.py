"""Where no index of Python packages answers, the tests of this folder are skipped, and say why."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from tests.real.packages import SMOLLM, NoIndexError, fetch


def test_without_an_index_that_answers_nothing_is_fetched_and_the_cause_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as refusing:  # bound, and listens to nobody
        refusing.bind(("127.0.0.1", 0))
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{refusing.getsockname()[1]}/simple")
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)  # which may name further indexes, as these may
        monkeypatch.setenv("UV_NO_CONFIG", "1")
        for name in [name for name in os.environ if name.startswith(("PIP_EXTRA", "PIP_FIND", "PIP_NO_INDEX", "UV_"))]:
            if name != "UV_NO_CONFIG":
                monkeypatch.delenv(name)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.setenv("REAL_WEIGHTS_DIR", str(tmp_path))
        with pytest.raises(NoIndexError, match="cannot be reached"):
            fetch(SMOLLM)
    assert not any(path.suffix == ".gguf" for path in tmp_path.rglob("*"))
