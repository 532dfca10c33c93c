"""What one process writes that another forked stays, whatever that one had open."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from app.library.local.index import Index

ROOT = Path(__file__).parents[2]
# A service that reads models into its index, in a thread, while it starts a job that records a hash in it.
_SERVICE = """
import sys, threading
from pathlib import Path
from app.library.local.index import Index
from quantizer.system.process import python_command
from tests.app import service_process

sys.path.insert(0, sys.argv[1])
service_process._FORKED_MODULES = ("job",)
service_process.track_indexes()
cache, is_open, is_read = Path(sys.argv[1]), threading.Event(), threading.Event()

def read():
    with Index(cache) as index:
        index.paths()
        is_open.set()
        is_read.wait(0.3)

thread = threading.Thread(target=read)
thread.start()
is_open.wait()
job = service_process.ForkingPopen(python_command("job", sys.argv[1]))
is_read.set()
thread.join()
sys.exit(job.wait())
"""
_JOB = """
import sys
from pathlib import Path
from app.library.local.index import Index

with Index(Path(sys.argv[1])) as index:
    index.record_sha256(Path(sys.argv[1]) / "model.gguf", "0" * 64)
    print(index.problem, end="", file=sys.stderr)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only there tests fork")
def test_a_job_that_was_forked_while_its_service_reads_the_index_writes_into_the_same_one(tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    model.write_bytes(b"GGUF")
    (tmp_path / "job.py").write_text(_JOB)
    command = [sys.executable, "-c", _SERVICE, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    with Index(tmp_path) as index:
        assert index.sha256(model) == "0" * 64
