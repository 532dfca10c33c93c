"""Thirty tiny tasks for a model with tools: find, read, edit, run and fix, each in a folder of a few small files.

Owns the files, the question, what tells that a task is solved, and the calls that solve it. A task is solved by what is
in the folder or in the answer; an answer names what no question does, so that repeating the question solves nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

Call = tuple[str, Mapping[str, object]]


@dataclass(frozen=True, slots=True)
class Task:
    """`files` are the folder's, by their paths. `is_solved` is asked with the folder and the last answer. `calls` solve
    it, where the answer repeats what the last of them returned."""

    kind: str
    question: str
    files: Mapping[str, str]
    is_solved: Callable[[Path, str], bool]
    calls: Sequence[Call]

    def write(self, folder: Path) -> None:
        for name, text in self.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")


def _says(*words: str) -> Callable[[Path, str], bool]:
    """Return whether an answer has all of `words`, each as a word of its own."""
    return lambda _, answer: all(re.search(rf"(?<!\w){re.escape(word)}(?!\w)", answer, re.IGNORECASE) for word in words)


def _holds(name: str, text: str, *gone: str) -> Callable[[Path, str], bool]:
    """Return whether the file `name` has `text`, and nothing of `gone`."""

    def is_solved(folder: Path, answer: str) -> bool:
        del answer
        try:
            content = (folder / name).read_text(encoding="utf-8")
        except (OSError, ValueError):
            return False
        return text in content and not any(each in content for each in gone)

    return is_solved


def _only(name: str, content: str) -> Callable[[Path, str], bool]:
    """Return whether the file `name` is `content`, with or without a line's end."""
    return lambda folder, _: (folder / name).is_file() and (folder / name).read_text("utf-8").strip() == content


_NOTES = {
    "notes/monday.txt": "Buy leeks.\nCall Ada about the boat.\n",
    "notes/tuesday.txt": "The walrus sleeps at noon.\nPay the rent.\n",
    "notes/friday.txt": "Meet Brahim at the harbour.\n",
}
_CONFIG = {
    "config.ini": "[server]\nhost = example.org\nport = 8417\ntimeout = 30\n",
    "README.md": "# Ferry\n\nTides.\n",
}
_SHOP = {
    "shop/prices.py": "APPLE = 3\nPEAR = 740\n",
    "shop/total.py": "from prices import APPLE, PEAR\n\n\ndef total():\n    return APPLE + PEAR\n\n\nprint(total())\n",
    "shop/old/readme.txt": "Prices of 1998.\n",
}
_ADD = {
    "add.py": "def add(a, b):\n    return a - b\n",
    "check.py": "from add import add\n\nassert add(19, 23) == 42, 'add is wrong'\nprint('all is well')\n",
}


def _greets(body: str) -> Mapping[str, str]:
    check = "from greet import greet\n\nassert greet('Ada') == 'Hello, Ada!', greet('Ada')\nprint('all is well')\n"
    return {"greet.py": f"def greet(name):\n    {body}\n", "check.py": check}


def _read(path: str) -> Call:
    return "read_file", {"path": path}


def _edit(path: str, old: str, new: str) -> Call:
    return "edit_file", {"path": path, "old_text": old, "new_text": new}


def _run(*argv: str, folder: str = "") -> Call:
    return "run_command", {"argv": list(argv), **({"folder": folder} if folder else {})}


TASKS = (
    Task("find", "Which file mentions a walrus?", _NOTES, _says("tuesday.txt"), (
        ("search_text", {"pattern": "walrus"}),)),
    Task("find", "Which file mentions Brahim?", _NOTES, _says("friday.txt"), (
        ("search_text", {"pattern": "Brahim"}),)),
    Task("find", "Which files are in the folder notes? Name all of them.", _NOTES,
        _says("monday.txt", "tuesday.txt", "friday.txt"), (("list_folder", {"path": "notes"}),)),
    Task("find", "In which file is the price of a pear set?", _SHOP, _says("prices.py"), (
        ("search_text", {"pattern": "PEAR ="}),)),
    Task("find", "Which file defines the function total?", _SHOP, _says("total.py"), (
        ("search_text", {"pattern": "def total"}),)),
    Task("find", "Which subfolder does the folder shop have?", _SHOP, _says("old"), (
        ("list_folder", {"path": "shop"}),)),
    Task("find", "One Python file here contains the word assert. Which one?", _ADD, _says("check.py"), (
        ("search_text", {"pattern": "assert", "glob": "*.py"}),)),
    Task("read", "Which port is set in config.ini?", _CONFIG, _says("8417"), (_read("config.ini"),)),
    Task("read", "Which host is set in config.ini?", _CONFIG, _says("example.org"), (_read("config.ini"),)),
    Task("read", "What is the heading of README.md?", _CONFIG, _says("Ferry"), (_read("README.md"),)),
    Task("read", "Whom should I call, by notes/monday.txt?", _NOTES, _says("Ada"), (_read("notes/monday.txt"),)),
    Task("read", "When does the walrus sleep, by notes/tuesday.txt?", _NOTES, _says("noon"), (
        _read("notes/tuesday.txt"),)),
    Task("read", "Of which year are the prices in shop/old/readme.txt?", _SHOP, _says("1998"), (
        _read("shop/old/readme.txt"),)),
    Task("read", "What is the value of PEAR in shop/prices.py?", _SHOP, _says("740"), (_read("shop/prices.py"),)),
    Task("edit", "Set the port in config.ini to 9000.", _CONFIG, _holds("config.ini", "port = 9000", "8417"), (
        _edit("config.ini", "port = 8417", "port = 9000"),)),
    Task("edit", "Change the host in config.ini to localhost.", _CONFIG,
        _holds("config.ini", "host = localhost", "example.org"), (
        _edit("config.ini", "host = example.org", "host = localhost"),)),
    Task("edit", "Set APPLE in shop/prices.py to 4.", _SHOP, _holds("shop/prices.py", "APPLE = 4", "APPLE = 3"), (
        _edit("shop/prices.py", "APPLE = 3", "APPLE = 4"),)),
    Task("edit", "Replace the word leeks by onions in notes/monday.txt.", _NOTES,
        _holds("notes/monday.txt", "Buy onions.", "leeks"), (_edit("notes/monday.txt", "leeks", "onions"),)),
    Task("edit", "Write a file hello.txt that contains: Good morning.", _NOTES, _only("hello.txt", "Good morning."), (
        ("write_file", {"path": "hello.txt", "content": "Good morning."}),)),
    Task("edit", "Write a new file notes/sunday.txt that contains the one word Rest", _NOTES,
        _only("notes/sunday.txt", "Rest"), (("write_file", {"path": "notes/sunday.txt", "content": "Rest"}),)),
    Task("edit", "Rename the function add in add.py to plus.", _ADD, _holds("add.py", "def plus(", "def add("), (
        _edit("add.py", "def add(", "def plus("),)),
    Task("run", "Run python3 total.py in the folder shop. Which number does it print?", _SHOP, _says("743"), (
        _run("python3", "total.py", folder="shop"),)),
    Task("run", "Run python3 check.py. What is the error message?", _ADD, _says("add is wrong"), (
        _run("python3", "check.py"),)),
    Task("run", "Run python3 count.py and tell me the number it prints.",
        {"count.py": "print(sum(range(1, 14)))\n"}, _says("91"), (_run("python3", "count.py"),)),
    Task("run", "Run python3 make.py, then tell me what is in the file that it writes, out.txt.",
        {"make.py": "from pathlib import Path\n\nPath('out.txt').write_text('amber' + ' ' + 'kettle')\n"},
        _says("amber kettle"), (_run("python3", "make.py"), _read("out.txt"))),
    Task("fix", "python3 check.py fails. Repair add.py.", _ADD, _holds("add.py", "a + b", "a - b"), (
        _run("python3", "check.py"), _read("add.py"), _edit("add.py", "a - b", "a + b"), _run("python3", "check.py"))),
    Task("fix", "greet.py has a syntax error. Repair it.", _greets("return f'Hello, {name}!"),
        _holds("greet.py", "return f'Hello, {name}!'"), (
        _read("greet.py"), _edit("greet.py", "{name}!", "{name}!'"), _run("python3", "check.py"))),
    Task("fix", "python3 check.py fails. Repair greet.py.", _greets("return f'Hello {name}!'"),
        _holds("greet.py", "Hello, {name}!"), (
        _run("python3", "check.py"), _read("greet.py"), _edit("greet.py", "Hello ", "Hello, "))),
    Task("fix", "shop/prices.py should say that an apple costs 5, and total.py in shop should print 745. "
        "Change shop/prices.py.", _SHOP, _holds("shop/prices.py", "APPLE = 5", "APPLE = 3"), (
        _read("shop/prices.py"), _edit("shop/prices.py", "APPLE = 3", "APPLE = 5"),
        _run("python3", "total.py", folder="shop"))),
    Task("fix", "The note for friday is wrong: Brahim comes to the station. Correct notes/friday.txt.", _NOTES,
        _holds("notes/friday.txt", "Meet Brahim at the station.", "harbour"), (
        _read("notes/friday.txt"), _edit("notes/friday.txt", "harbour", "station"))),
)  # fmt: skip
