"""The lines of the page of clients, as they are printed for a user: a program that asks one question, and its answer.

Which client is the first argument. What the guide answers is left open: the program ends well and prints something.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from asking import GUIDE, MODEL

from app.launch.clients import CLIENTS
from app.launch.editors import editor_settings

(client,) = (client for client in CLIENTS if client.name == sys.argv[1])
lines = editor_settings(client.name, GUIDE, MODEL)
if client.language == "js":
    program = Path(os.environ["CLIENT_FOLDER"], "lines.mjs")  # beside what it imports
    program.write_text(lines, encoding="utf-8")
    command = ["node", str(program)]
else:
    command = [sys.executable, "-P", "-c", lines]
ran = subprocess.run(command, capture_output=True, text=True, timeout=120)
assert ran.returncode == 0, f"{lines}\n{ran.stdout}{ran.stderr}"
assert ran.stdout.strip(), lines
