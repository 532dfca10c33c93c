"""A coding agent for tests: `claude WORD FILE` does what WORD says, and leaves what it saw in FILE.

ask: three requests with tools, each longer than the last. dump: its arguments and variables. wait: until a signal.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import urllib.request
from pathlib import Path
from types import FrameType

_TOOL = {"name": "look", "input_schema": {"type": "object", "properties": {}}}
_INTERRUPTED, _ENDED = 7, 9


def main() -> int:
    settings, word, file = sys.argv[-3], sys.argv[-2], Path(sys.argv[-1])
    if word == "ask":
        answers = [_ask("word " * n_words) for n_words in (100, 150, 200)]
        file.write_text(json.dumps(answers), encoding="utf-8")
        return 3
    if word == "dump":
        folder = Path(settings).parent
        seen = {
            "arguments": sys.argv[1:],
            "environment": dict(os.environ),
            "folder_mode": folder.stat().st_mode & 0o777,
            "file_mode": Path(settings).stat().st_mode & 0o777,
            "settings": Path(settings).read_text(encoding="utf-8"),
            "is_terminals_group": os.getpgrp() == os.getpgid(os.getppid()),
        }
        file.write_text(json.dumps(seen), encoding="utf-8")
        return 0
    return _wait(file)


def _ask(text: str) -> str:
    body = {
        "model": os.environ["ANTHROPIC_MODEL"],
        "max_tokens": 8,
        "tools": [_TOOL],
        "messages": [{"role": "user", "content": text}],
    }
    request = urllib.request.Request(
        f"{os.environ['ANTHROPIC_BASE_URL']}/v1/messages",
        data=json.dumps(body).encode(),
        headers={"authorization": f"Bearer {os.environ['ANTHROPIC_AUTH_TOKEN']}"},
    )
    with urllib.request.urlopen(request) as answer:
        return str(json.load(answer)["model"])


def _wait(file: Path) -> int:
    def end(number: int, _frame: FrameType | None) -> None:
        file.write_text(signal.Signals(number).name, encoding="utf-8")
        sys.exit(_INTERRUPTED if number == signal.SIGINT else _ENDED)

    signal.signal(signal.SIGINT, end)
    signal.signal(signal.SIGTERM, end)
    file.write_text("ready", encoding="utf-8")
    while True:
        time.sleep(60)


if __name__ == "__main__":
    sys.exit(main())
