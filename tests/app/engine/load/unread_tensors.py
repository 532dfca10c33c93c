"""Prints for each model file on stdin a line of JSON: the tensors that llama.cpp does not read of it, or its error.

One process for many files: starting one for each takes ten times as long as the loads."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from app.engine.load.load_check import unread_of
from quantizer.system.errors import UserError

for line in sys.stdin:
    try:
        answer: object = unread_of(Path(line.strip()))
    except UserError as error:
        answer = error.cause
    print(json.dumps(answer), flush=True)
