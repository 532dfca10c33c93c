"""A folder of 200 real documents, and 60 questions that were written by hand before anything was measured, in other
words than the documents' where that was possible, each with the documents that answer it. One document was added to an
answer afterwards: that of shutil, whose get_terminal_size() had been forgotten.

The documents are the language reference of Python (`pydoc_data.topics`), the documentation of 45 of its modules as
pydoc writes it, and 76 files of Debian's /usr/share/doc (bookworm, with nodejs-doc, valgrind, espeak-ng and others).
"""

from __future__ import annotations

import pydoc
import shutil
from importlib import import_module
from pathlib import Path
from pydoc_data.topics import topics  # type: ignore[import-not-found]

DOC = Path("/usr/share/doc")

_MODULES = """argparse bisect calendar cmd code collections configparser contextlib copy csv decimal difflib fractions
    functools getpass glob gzip heapq hmac html.parser http.server imaplib json mailbox mimetypes pathlib pickle queue
    random sched secrets shelve shutil smtplib statistics struct subprocess tarfile tempfile textwrap threading timeit
    traceback weakref webbrowser"""
_NODE = """addons assert async_context async_hooks buffer child_process cli cluster console corepack debugger dgram
    diagnostics_channel dns domain esm events fs globals http http2 https inspector intl module modules net os packages
    path perf_hooks permissions process punycode querystring readline repl report single-executable-applications
    string_decoder timers tls tty url util worker_threads zlib"""
_VALGRIND = ("quick-start", "faq", "mc-manual", "cg-manual", "hg-manual", "drd-manual", "ms-manual", "dh-manual")
_OTHERS = """base-passwd/users-and-groups.html bc/bc.html bzip2/manual.html dpkg/spec/rootless-builds.txt
    dpkg/spec/triggers.txt espeak-ng/docs/add_language.html espeak-ng/docs/numbers.md fontconfig/fontconfig-user.html
    libffi8/html/Structures.html libffi8/html/The-Closure-API.html ninja-build/manual.html openssl/HOWTO/keys.txt
    python3-pip/html/topics/authentication.md python3-pip/html/topics/repeatable-installs.md python3.11/README.venv
    python3/python-policy.html shared-mime-info/shared-mime-info-spec.html/x34.html systemd/DISTRO_PORTING.md
    time/time.html util-linux/modems-with-agetty.txt zlib1g-dev/examples/zlib_how.html"""
DEBIAN = {
    **{f"n/{name}": f"nodejs/api/{name}.md" for name in _NODE.split()},
    **{f"v/{name}": f"valgrind/html/{name}.html" for name in _VALGRIND},
    **{f"d/{name.partition('/')[0]}/{name.rpartition('/')[2]}": name for name in _OTHERS.split()},
}

# The documents that answer a question: any of them is right. `t/` are topics, `m/` modules, `n/` those of
# Node.js, `v/` of Valgrind, `d/` others of Debian.
QUESTIONS: tuple[tuple[str, str], ...] = (
    ("How can I leave a loop before it has run through?", "t/break t/compound t/while t/for"),
    ("Which values count as false in a condition?", "t/truth t/booleans"),
    (
        "An inner function should change a variable that belongs to the function around it",
        "t/nonlocal t/naming t/execmodel",
    ),
    ("Assign to a module level variable from inside a function", "t/global t/naming t/execmodel"),
    ("Checks that vanish when the interpreter optimises", "t/assert"),
    ("Small function without a name", "t/lambda"),
    ("Exclusive or of two integers", "t/bitwise t/operator-summary t/binary"),
    ("Show a number with thousands separators and leading zeros", "t/formatstrings"),
    ("Write a text literal in which backslashes mean nothing special", "t/strings"),
    ("Make my own container answer to square brackets", "t/sequence-types t/specialnames t/subscriptions t/types"),
    ("Run clean-up code even if an error was raised", "t/try t/compound t/exceptions"),
    ("Hand values to the caller one at a time and go on later", "t/yield t/types"),
    ("Square root of minus one as a literal", "t/imaginary t/numbers"),
    (
        "Why do names starting with two underscores in a class get changed?",
        "t/atom-identifiers t/id-classes t/identifiers t/naming",
    ),
    ("Compare words regardless of capitals, also for German ß", "t/string-methods"),
    ("Does multiplication bind tighter than comparison?", "t/operator-summary"),
    ("What is run when an object is about to be thrown away?", "t/customization t/specialnames m/weakref"),
    ("Set a stopping point and go through the program line by line", "t/debugger"),
    ("Read the options that a user typed after the name of my script", "m/argparse"),
    ("What has changed between two versions of a text, line by line?", "m/difflib"),
    ("Priority queue that always gives the smallest item first", "m/heapq m/queue"),
    ("Where does a new value belong in a sorted list?", "m/bisect"),
    ("Load rows of a spreadsheet that was saved as plain text", "m/csv"),
    ("Exact sums of money without binary rounding", "m/decimal"),
    ("Ask for a password without showing what is typed", "m/getpass"),
    ("Remember the results of earlier calls of a function", "m/functools"),
    ("Tokens that an attacker cannot guess", "m/secrets m/random"),
    ("Median and standard deviation of a sample", "m/statistics"),
    ("Break long paragraphs into lines of 70 characters", "m/textwrap"),
    ("How long does a small piece of code take to run?", "m/timeit"),
    ("Send an e-mail from a script", "m/smtplib"),
    ("Delete a directory with everything in it", "m/shutil"),
    ("A file that disappears as soon as it is closed", "m/tempfile"),
    ("Start another program and read what it prints", "m/subprocess n/child_process"),
    ("Settings in the style of Windows INI files", "m/configparser"),
    ("Duplicate an object with all objects inside it", "m/copy"),
    ("Pack numbers into bytes as a C program lays them out", "m/struct"),
    ("Months as a table, and which years have 366 days", "m/calendar"),
    ("Several JavaScript processes that listen on the same port", "n/cluster"),
    ("Find the mail servers of a domain in JavaScript", "n/dns"),
    ("Compress a web response with Brotli", "n/zlib"),
    ("Send a UDP packet to a multicast group", "n/dgram"),
    ("How many columns does the terminal window have?", "n/tty n/process m/shutil"),
    ("Ship a script as one executable for machines without node", "n/single-executable-applications"),
    ("Forbid a program to read files outside one directory", "n/permissions n/cli"),
    ("Run heavy JavaScript in parallel and share memory", "n/worker_threads"),
    ("Find data races between threads of a C program", "v/hg-manual v/drd-manual"),
    ("How much heap does my program use over time?", "v/ms-manual v/dh-manual"),
    ("Count cache misses and mispredicted branches", "v/cg-manual"),
    ("What does an invalid read of size 4 mean?", "v/mc-manual v/quick-start v/faq"),
    ("Membership of which group lets me read log files?", "d/base-passwd/users-and-groups.html"),
    ("Put off work until other packages have been unpacked and configured", "d/dpkg/triggers.txt"),
    ("Build a package without being root", "d/dpkg/rootless-builds.txt"),
    ("How many digits after the point does the calculator give for a division?", "d/bc/bc.html"),
    ("Rescue what is left of a damaged compressed archive", "d/bzip2/manual.html"),
    ("Teach the speech synthesizer another language", "d/espeak-ng/add_language.html"),
    ("Turn off antialiasing for one font", "d/fontconfig/fontconfig-user.html"),
    ("Install exactly the same versions again, checked by their hashes", "d/python3-pip/repeatable-installs.md"),
    ("How does the desktop know the type of a file from its first bytes?", "d/shared-mime-info/x34.html"),
    ("Decompress a file piece by piece in C", "d/zlib1g-dev/zlib_how.html"),
)


def write_documents(folder: Path) -> dict[str, str]:
    """Write the documents into `folder`, and return by the short names of `QUESTIONS` where each is in it. Raises
    FileNotFoundError where one of Debian's is not on this machine."""
    places = {}
    for name, text in topics.items():
        places[f"t/{name}"] = f"python-reference/{name}.txt"
        _write(folder / places[f"t/{name}"], str(text))
    for name in _MODULES.split():
        places[f"m/{name}"] = f"python-library/{name}.txt"
        _write(
            folder / places[f"m/{name}"], pydoc.plain(pydoc.render_doc(import_module(name), renderer=pydoc.plaintext))
        )
    for name, source in DEBIAN.items():
        places[name] = f"debian/{source}"
        (folder / places[name]).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(DOC / source, folder / places[name])
    return places


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
