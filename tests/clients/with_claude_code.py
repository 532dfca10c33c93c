"""Claude Code with its whole system prompt and its tools: it reads a picture and a file, as the fake model says.

Its session goes on after a picture that no model here sees: once that is refused, it asks again without (2.1.332, where
earlier versions report it and add the next question to the same message).
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from asking import FAKE, MODEL, PICTURE, SAID, call, say

settings = {
    "ANTHROPIC_BASE_URL": FAKE,
    "ANTHROPIC_AUTH_TOKEN": "none",
    "ANTHROPIC_MODEL": MODEL,
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_TELEMETRY": "1",
}
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def answers(folder: str, *questions: list[dict[str, Any]]) -> list[str]:
    """Return what a session says to `questions`, one after the other."""
    form = ("--input-format", "stream-json", "--output-format", "stream-json", "--verbose")
    command = [os.environ["CLIENT_COMMAND"], "-p", *form]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, cwd=folder, env=os.environ | settings, stdin=pipe, stdout=pipe, text=True
    ) as session:
        assert session.stdin is not None
        assert session.stdout is not None
        said = []
        for question in questions:
            message = {"type": "user", "message": {"role": "user", "content": question}}
            session.stdin.write(f"{json.dumps(message)}\n")
            session.stdin.flush()
            events = map(json.loads, session.stdout)
            said.append(next(event["result"] for event in events if event["type"] == "result"))
        session.stdin.close()
        session.wait(60)
    return said


with tempfile.TemporaryDirectory() as folder:
    picture, note = (Path(folder).resolve() / name for name in ("picture.png", "note.txt"))
    picture.write_bytes(PICTURE)
    note.write_text(f"{say(SAID)}\n", encoding="utf-8")
    calls = "".join(call("Read", file_path=str(file)) for file in (picture, note))
    command = [os.environ["CLIENT_COMMAND"], "-p", say(calls), "--allowedTools", "Read"]
    done = subprocess.run(command, cwd=folder, env=os.environ | settings, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip() == SAID, done.stdout

    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}
    asked = {"type": "text", "text": say(SAID)}
    said = answers(folder, [asked, picture], [asked], [asked])
    assert said == [SAID, SAID, SAID], said
