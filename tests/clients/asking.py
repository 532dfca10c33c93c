"""What every client here asks, and of whom.

`GUIDE` is a service with the real engine and the guide, `FAKE` one whose model says what stands in <say></say>.
"""

from __future__ import annotations

import base64
import json
import os
import time
import urllib.request

__all__ = [
    "ANSWER",
    "CALL",
    "CITY",
    "ENDLESS",
    "FAKE",
    "GUIDE",
    "MODEL",
    "PICTURE",
    "QUESTION",
    "SAID",
    "SCHEMA",
    "assert_idle",
    "call",
    "say",
]

GUIDE, FAKE = os.environ["LOCALLLM_GUIDE_URL"], os.environ["LOCALLLM_FAKE_URL"]
MODEL = "guide"
QUESTION = "How do I quantize a model?"
ANSWER = "localllm quantize"  # is part of every good answer to it
CITY = "Åre"
CALL = f'<say><tool_call>\n{{"name": "get_weather", "arguments": {{"city": "{CITY}"}}}}\n</tool_call></say>'
SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}}, "required": ["city"]}
SAID = "It snows."
ENDLESS = f"<say>{'word ' * 2000}</say>"

PICTURE = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAIAAABLbSncAAAAEUlEQVR4nGNwaDiAFTEMLQkAYvNgAXSglMMAAAAASUVORK5CYII="
)

_FREE_WITHIN_S = float(os.environ.get("FREE_WITHIN_S", "0.25"))  # more beside other tests


def say(text: str) -> str:
    """Return what makes the fake model say `text`."""
    return f"<say>{text}</say>"


def call(tool: str, **arguments: object) -> str:
    """Return what a model writes to call `tool`."""
    return f"<tool_call>{json.dumps({'name': tool, 'arguments': arguments})}</tool_call>"


def assert_idle(url: str) -> None:
    """Assert that nobody's answer runs any more, soon after a client went away."""
    deadline_s = time.monotonic() + _FREE_WITHIN_S
    while _n_running(url):
        assert time.monotonic() < deadline_s, "an answer still runs for a client that went away"
        time.sleep(0.01)


def _n_running(url: str) -> int:
    with urllib.request.urlopen(f"{url}/api/localllm/status") as response:
        return int(json.load(response)["models"][0]["n_running"])
