"""Claude Code in one-shot mode, with its whole system prompt and its tools: it reads a file as the fake model says."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

from asking import FAKE, MODEL, SAID, say

settings = {
    "ANTHROPIC_BASE_URL": FAKE,
    "ANTHROPIC_AUTH_TOKEN": "none",
    "ANTHROPIC_MODEL": MODEL,
    "ANTHROPIC_SMALL_FAST_MODEL": MODEL,
    "ANTHROPIC_DEFAULT_HAIKU_MODEL": MODEL,
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_TELEMETRY": "1",
}
with tempfile.TemporaryDirectory() as folder:
    file = Path(folder, "note.txt")
    file.write_text(f"{say(SAID)}\n", encoding="utf-8")
    call = f'<tool_call>\n{{"name": "Read", "arguments": {{"file_path": "{file.resolve()}"}}}}\n</tool_call>'
    command = [os.environ["CLIENT_COMMAND"], "-p", say(call), "--allowedTools", "Read"]
    done = subprocess.run(command, cwd=folder, env=os.environ | settings, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip() == SAID, done.stdout
