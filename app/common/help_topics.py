"""The user's guide: its topics in the order in which a newcomer meets them, one Markdown page each in `assets/docs/`.

`localllm help TOPIC`, /help TOPIC and F1 of the app show these pages.
"""

from __future__ import annotations

from importlib import resources

from quantizer.system.errors import UsageError

TOPICS = {
    "install": "Install localllm, GPUs, first steps",
    "linux": "Install on Linux: packages, GPUs, update, uninstall",
    "macos": "Install on macOS: compilers, Metal, update, uninstall",
    "windows": "Install on Windows: compilers, GPUs, update, uninstall",
    "chat": "Chat in the terminal: keys, options, long chats",
    "run": "Ask from a script",
    "files": "Pictures, sounds and documents",
    "transcribe": "What is said in a sound: text and subtitles",
    "speak": "A text said aloud, into a sound file",
    "tools": "Tools: files, commands, the web",
    "knowledge": "Search folders of your documents",
    "skills": "Skills, and AGENTS.md of a project",
    "mcp": "Tools of MCP servers",
    "models": "Find, download and keep models",
    "plan": "What fits, and how fast it will be",
    "quantize": "Convert and quantize",
    "evaluate": "Measure what quantization lost",
    "serve": "Serve editors and programs; API keys; jobs",
    "api": "The API: what clients notice",
    "batch": "Answer a file of requests",
    "agents": "Coding agents",
    "editors": "Editors that drive a chat: Zed, toad (ACP)",
    "clients": "Other programs, and what sets each up",
    "tune": "Tune and benchmark",
    "settings": "Every setting, and the options of jobs",
    "privacy": "What stays on disk, and how to remove it",
}


def read_topic(name: str) -> str:
    """Return the Markdown page of a topic. Raises UsageError, with the nearest topics, for an unknown one."""
    topic = name.strip().lower()
    if topic not in TOPICS:
        import difflib  # 25 ms, and user interfaces import this module before their first frame

        near = difflib.get_close_matches(topic, TOPICS, n=3) or TOPICS
        raise UsageError(f"There is no help topic {name!r}.", f"Topics: {', '.join(near)}.")
    return resources.files("assets").joinpath("docs", f"{topic}.md").read_text(encoding="utf-8")
