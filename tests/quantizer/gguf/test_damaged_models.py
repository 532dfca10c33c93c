"""A sample of `tests/battery/damage/refuse_damaged.py`, which runs four hundred damaged models through whole jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from quantizer.gguf.tensor_types import file_type_named
from quantizer.system.errors import UserError
from quantizer.write.quantize_plan import plan
from tests.quantizer.damaged_models import Damage, Originals, damages

N_EACH = 12


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Originals:
    return Originals.make(tmp_path_factory.mktemp("originals"))


def test_what_is_not_damaged_is_accepted(originals: Originals, tmp_path: Path) -> None:
    for source in (originals.gguf, originals.shards[0], originals.checkpoint):
        assert plan(source, file_type_named("Q4_0"), tmp_path / "out.gguf").n_bytes > 0


def test_every_damage_is_an_error_with_a_cause(originals: Originals, tmp_path: Path) -> None:
    causes = {
        f"{damage.family} {damage.what}": cause_of(damage, tmp_path / str(index))
        for index, damage in enumerate(damages(originals, N_EACH))
    }
    assert [what for what, cause in causes.items() if not cause or not cause.isprintable()] == []


def cause_of(damage: Damage, folder: Path) -> str:
    """What the plan of a damaged model is refused for; empty when it is not."""
    folder.mkdir()
    try:
        plan(damage.write(folder), file_type_named("Q4_0"), folder / "out.gguf")
    except UserError as error:
        return error.cause
    return ""
