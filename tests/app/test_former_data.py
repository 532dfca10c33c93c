from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.app.data_folder import read, write

FORMER = sorted(path for path in Path(__file__).with_name("former_data").iterdir() if path.is_dir())


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    write(tmp_path / "data")
    found = read(tmp_path / "data")
    assert [message["content"] for message in found["chats"][0]["messages"]][1:] == ["The Rhi", "The Danube."]
    assert found["found"] == ["Rivers", "Tools"]
    called, answered = found["chats"][1]["messages"][1:3]
    assert (called["calls"][0]["name"], answered["result"]["outcome"]) == ("write_file", "done")
    assert found["jobs"][0]["log"] == "fetched\n"
    assert len(found["responses"]["items"]) == 2


@pytest.mark.parametrize("version", FORMER, ids=lambda path: path.name)
def test_data_of_a_former_version_is_read_as_it_was(version: Path, tmp_path: Path) -> None:
    shutil.copytree(version / "data", tmp_path / "data")
    (tmp_path / "data" / "keys.json").chmod(0o600)  # git keeps no such mode
    wanted = json.loads((version / "read.json").read_text(encoding="utf-8"))
    assert json.loads(json.dumps(read(tmp_path / "data"))) == wanted
    assert json.loads(json.dumps(read(tmp_path / "data"))) == wanted, "opened again, after any migration"
