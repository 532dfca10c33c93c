"""What llama.cpp logged of thirteen published models, predicted anew.

`tests/bench/plans/compare_footprint.py --golden` made the log.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.offload.footprint_figures import Figures, predicted
from tests.offload.model_outlines import OUTLINES, header_of

LOGGED = {
    name: Figures.from_json(fields)
    for name, fields in json.loads(Path(__file__).with_name("footprints.json").read_text(encoding="utf-8")).items()
}
PRINTED = 0.005 + 1e-9  # half of the last digit that llama.cpp prints, in MiB


def test_every_outline_has_figures() -> None:
    assert LOGGED.keys() == OUTLINES.keys()


@pytest.mark.parametrize("name", LOGGED)
def test_weights_are_those_of_llama_cpp_to_the_last_digit(name: str) -> None:
    ours, logged = predicted(header_of(name), LOGGED[name]), LOGGED[name]
    assert ours.tensor_bytes == logged.tensor_bytes
    assert ours.mapped_mib == pytest.approx(logged.mapped_mib, abs=PRINTED)


@pytest.mark.parametrize("name", LOGGED)
def test_caches_and_states_are_those_of_llama_cpp_to_the_last_digit(name: str) -> None:
    """Keys and values are printed apart, of layers with a window and without: up to four roundings."""
    logged = LOGGED[name]
    for mine, theirs in zip(predicted(header_of(name), logged).runs, logged.runs, strict=True):
        assert mine.kv_mib == pytest.approx(theirs.kv_mib, abs=4 * PRINTED), theirs
        assert mine.state_mib == pytest.approx(theirs.state_mib, abs=2 * PRINTED), theirs


@pytest.mark.parametrize("name", LOGGED)
def test_compute_buffers_are_predicted_within_15_percent(name: str) -> None:
    logged = LOGGED[name]
    for mine, theirs in zip(predicted(header_of(name), logged).runs, logged.runs, strict=True):
        assert mine.compute_mib == pytest.approx(theirs.compute_mib, rel=0.15), theirs


@pytest.mark.parametrize("name", LOGGED)
def test_all_that_a_model_takes_is_predicted_within_3_percent(name: str) -> None:
    logged = LOGGED[name]
    weights_mib = logged.tensor_bytes / 2**20
    for mine, theirs in zip(predicted(header_of(name), logged).runs, logged.runs, strict=True):
        ours, said = (run.kv_mib + run.state_mib + run.compute_mib + weights_mib for run in (mine, theirs))
        assert ours == pytest.approx(said, rel=0.03), theirs
