from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from app.bench.measurement import Measurement, Results
from quantizer.system.errors import UserError
from tests.bench.peer.categories import CATEGORIES, OWN_SAMPLES, Sample, read_samples
from tests.bench.peer.peer import IK_FLAGS, PEER_FLAGS
from tests.bench.peer.side_by_side import WORKS, SideBySide, compared, missed, rows


def results(label: str, rate: float) -> Results:
    return Results.of(label, "model", [Measurement("decode", "depth 0", "tok/s", (rate,))])


def test_the_second_peer_is_compared_apart_and_misses_no_aim() -> None:
    peers = (results("default", 90.0), results("-fa off", 95.0), results("ik", 180.0), results("ik -rtr", 200.0))
    measured = SideBySide(results("localllm", 100.0), peers, (0.0, 0.0))
    (row,) = rows(measured)
    assert row.best == ("-fa off", peers[1].measurements[0])
    assert row.ik == ("ik -rtr", peers[3].measurements[0])
    assert not missed(measured)
    assert len(compared(measured).columns) == len(compared(replace(measured, peers=peers[:2])).columns) + 3


def test_every_work_names_flags_that_exist() -> None:
    assert not PEER_FLAGS.keys() & IK_FLAGS.keys()
    for names in WORKS.values():
        assert set(names) <= PEER_FLAGS.keys() | IK_FLAGS.keys()


def test_there_are_two_chats_of_each_of_the_eleven_categories() -> None:
    assert len(CATEGORIES) == 11
    assert all(sum(sample.category == category for sample in OWN_SAMPLES) == 2 for category in CATEGORIES)


def test_a_file_of_chats_is_read_up_to_a_number_of_each_category(tmp_path: Path) -> None:
    path = tmp_path / "chats.jsonl"
    line = '{"category": "%s", "turns": ["one", " ", "two"], "question_id": 1}'
    path.write_text("\n".join(line % name for name in ("qa", "math", "qa", "qa")), encoding="utf-8")
    qa, math = Sample("qa", ("one", "two")), Sample("math", ("one", "two"))
    assert read_samples(path, 2) == (qa, qa, math)
    assert read_samples(None, 2) == OWN_SAMPLES
    path.write_text('{"turns": []}', encoding="utf-8")
    with pytest.raises(UserError, match="line 1"):
        read_samples(path, 2)
