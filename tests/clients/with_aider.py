"""aider in one-shot mode, over Ollama's dialect and over OpenAI's: it edits a file as the fake model says."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from asking import FAKE, MODEL

EDIT = "hello.py\n<<<<<<< SEARCH\nprint(1)\n=======\nprint(2)\n>>>>>>> REPLACE"
FLAGS = ("--no-git", "--yes-always", "--no-analytics", "--no-check-update", "--no-show-model-warnings", "--no-pretty")
SERVERS = {
    f"ollama_chat/{MODEL}": {"OLLAMA_API_BASE": FAKE},
    f"openai/{MODEL}": {"OPENAI_API_BASE": f"{FAKE}/v1", "OPENAI_API_KEY": "none"},
}

for model, server in SERVERS.items():
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "hello.py")
        file.write_text("print(1)\n", encoding="utf-8")
        message = f"<say>{EDIT}</say>"
        command = [sys.executable, "-m", "aider", "--model", model, "--edit-format", "diff", *FLAGS]
        subprocess.run([*command, "--message", message, str(file)], check=True, cwd=folder, env=os.environ | server)
        assert file.read_text(encoding="utf-8") == "print(2)\n", model
