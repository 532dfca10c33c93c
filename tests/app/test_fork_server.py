"""What tests fork are children like others, whatever the process that starts them is doing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from app.library.local.index import Index
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only there tests fork")
ROOT = Path(__file__).parents[2]
_BEGIN = """
import sys, threading
from pathlib import Path
from quantizer.system.process import python_command
from tests.app import fork_server

cache = Path(sys.argv[1])
sys.path.insert(0, str(cache))
fork_server._FORKED_MODULES, fork_server._IMPORTS = ("job",), ()
fork_server.begin()
"""
_START = 'subprocess.Popen(python_command("job", sys.argv[1]))'
# A service that reads models into its index, in a thread, while it starts a job that records a hash in it.
_READS_INDEX = f"""
import subprocess
from app.library.local.index import Index
is_open, is_read = threading.Event(), threading.Event()

def read():
    with Index(cache) as index:
        index.paths()
        is_open.set()
        is_read.wait()

thread = threading.Thread(target=read)
thread.start()
is_open.wait()
job = {_START}
status = job.wait()
is_read.set()
thread.join()
sys.exit(status)
"""
_RECORDS = """
import sys
from pathlib import Path
from app.library.local.index import Index

with Index(Path(sys.argv[1])) as index:
    index.record_sha256(Path(sys.argv[1]) / "model.gguf", "0" * 64)
    print(index.problem, end="", file=sys.stderr)
"""
# An app that imports a module in a thread, which takes long, while it starts a job that needs the module too.
_IMPORTS = f"""
import subprocess, builtins
builtins.is_begun, builtins.is_started = threading.Event(), threading.Event()

thread = threading.Thread(target=__import__, args=["slow_module"])
thread.start()
is_begun.wait()
job = {_START}
status = job.wait()
is_started.set()
thread.join()
sys.exit(status)
"""
_SLOW_MODULE = """
import builtins
if hasattr(builtins, "is_begun"):
    is_begun.set()
    is_started.wait()
"""
_SLOW_JOB = """
import builtins
for name in ("is_begun", "is_started"):  # where they are, the process was forked in the middle
    assert not hasattr(builtins, name)
import slow_module
"""
_STARTS_AND_KILLS = """
import os, signal, subprocess
job = subprocess.Popen(
    python_command("job"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=cache,
    env={**os.environ, "GIVEN": "x"}, start_new_session=True,
)
number = int(job.stdout.readline())
assert number == job.pid, (number, job.pid)
told = job.stdout.readline().split()
assert told == [str(os.getpid()).encode(), str(job.pid).encode(), str(cache).encode(), b"x"], told
job.kill()
assert job.wait() == -signal.SIGKILL
assert job.stdout.read() == b""
job = subprocess.Popen(python_command("job"), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
assert job.wait() == 3
"""
_TELLS = """
import os, sys
print(os.getpid(), flush=True)
print(os.getppid(), os.getsid(0), os.getcwd(), os.environ.get("GIVEN"), flush=True)
sys.stdin.read()
sys.exit(3)
"""
# A test's process has a handler of logs and an open file, which its children drop.
_HOLDS_FILES = f"""
import builtins, logging, subprocess
logging.getLogger().addHandler(logging.FileHandler(cache / "log"))
builtins.held = open(cache / "held", "w")
fork_server.begin()
sys.exit({_START}.wait())
"""
_OPENS_FILES = """
import builtins, logging, os, sys
numbers = [os.open(os.path.join(sys.argv[1], "own"), os.O_RDWR | os.O_CREAT) for _ in range(20)]
logging.getLogger().warning("into a file of the child")
del builtins.held
for number in numbers:
    assert os.fstat(number).st_size == 0
"""


def _ran(folder: Path, script: str, job: str) -> tuple[int, str]:
    (folder / "job.py").write_text(job)
    command = [sys.executable, "-c", _BEGIN + script, str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S)
    return done.returncode, done.stderr


@pytest.mark.slow
def test_a_job_that_is_forked_while_its_service_reads_the_index_writes_into_the_same_one(tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    model.write_bytes(b"GGUF")
    assert _ran(tmp_path, _READS_INDEX, _RECORDS) == (0, "")
    with Index(tmp_path) as index:
        assert index.sha256(model) == "0" * 64


def test_a_job_imports_what_another_thread_was_importing_when_it_was_forked(tmp_path: Path) -> None:
    (tmp_path / "slow_module.py").write_text(_SLOW_MODULE)
    assert _ran(tmp_path, _IMPORTS, _SLOW_JOB) == (0, "")


def test_a_forked_process_is_a_child_with_its_own_session_folder_environment_and_status(tmp_path: Path) -> None:
    assert _ran(tmp_path, _STARTS_AND_KILLS, _TELLS) == (0, "")


def test_what_a_forked_process_inherited_touches_none_of_the_files_it_opens(tmp_path: Path) -> None:
    returned, said = _ran(tmp_path, _HOLDS_FILES, _OPENS_FILES)
    assert (returned, said) == (0, "into a file of the child\n"), said  # by the handler of last resort
