"""Kills of one process of the real app at a time."""

from __future__ import annotations

import random
import socket
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")]


def test_each_process_may_be_killed_and_no_message_is_lost(tmp_path: Path) -> None:
    from tests.tui.killed_app import KilledApp

    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = int(listener.getsockname()[1])
    killed = KilledApp(tmp_path, port, random.Random(8))
    try:
        killed.start()
        for victim, doing in (("service", "asks"), ("app", "quantizes"), ("worker", "asks for long")):
            assert killed.kill(victim, doing).faults == ()
        assert killed.finish() == []
    finally:
        killed.app.end()
