"""Codex in one-shot mode, over /v1/responses: it says what the fake model says, also after a picture in its session.

It looks at a picture, which the model cannot see, reads a file, and calls a tool of an MCP server, as the model calls.
Where it is told of /v1/models it knows the model from there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from asking import FAKE, MODEL, PICTURE, SAID, call, say

SERVER = Path(__file__).with_name("notes_server.py")
UNKNOWN = "Model metadata for"  # Codex warns of a model that it knows nothing of
provider = {
    "model_provider": '"here"',
    "model": f'"{MODEL}"',
    "model_providers.here.name": '"here"',
    "model_providers.here.base_url": f'"{FAKE}/v1"',
    "model_providers.here.wire_api": '"responses"',
}
catalogue = {
    "features.api_key_model_discovery": "true",
    "model_providers.here.model_catalog_url": f'"{FAKE}/v1/models"',
    "model_providers.here.experimental_bearer_token": '"any"',
}
notes = {
    "mcp_servers.notes.command": json.dumps(sys.executable),
    "mcp_servers.notes.args": json.dumps([str(SERVER), say(SAID)]),
}


def run(folder: str, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run it with `arguments`, and return what it said."""
    flags = [flag for name, value in {**provider, **settings}.items() for flag in ("-c", f"{name}={value}")]
    command = [os.environ["CLIENT_COMMAND"], "exec", "--skip-git-repo-check", *flags]
    return subprocess.run(
        [*command, *arguments], cwd=folder, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL
    )


with tempfile.TemporaryDirectory() as folder:
    done = run(folder, say(SAID))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip().endswith(SAID), done.stdout
    assert UNKNOWN in done.stderr, done.stderr

    Path(folder, "picture.png").write_bytes(PICTURE)
    Path(folder, "note.txt").write_text(say(SAID), encoding="utf-8")
    calls = call("view_image", path=f"{folder}/picture.png") + call("exec_command", cmd="cat note.txt")
    # its own sandbox needs rights that a container lacks
    done = run(folder, "--sandbox", "danger-full-access", say(calls))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip().endswith(SAID), done.stdout

    asked = say(call("mcp__notes__read_note", name="a"))
    done = run(folder, "--dangerously-bypass-approvals-and-sandbox", asked, **notes, **catalogue)
    assert "mcp: notes/read_note (completed)" in done.stderr, done.stderr
    assert done.stdout.strip().endswith(SAID), done.stdout
    assert UNKNOWN not in done.stderr, done.stderr

    refused = run(folder, "-i", "picture.png", "--", "What is this?")
    assert "this model reads only text" in refused.stdout + refused.stderr, refused
    later = run(folder, "resume", "--last", say(SAID))
    assert later.stdout.strip().endswith(SAID), later.stdout + later.stderr
