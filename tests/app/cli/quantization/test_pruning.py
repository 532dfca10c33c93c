from __future__ import annotations

import pytest

from app.cli.quantization.pruning import PrunedRequest, print_layers
from app.engine.offline.layer_importance import LayerDistance
from quantizer.write.job import JobRequest


@pytest.mark.parametrize(("removed", "is_said"), [((0,), False), ((1,), True)])
def test_a_layer_that_stays_although_it_changes_less_is_explained(
    capsys: pytest.CaptureFixture[str], removed: tuple[int, ...], is_said: bool
) -> None:
    request = JobRequest("m.gguf", "F16", "o.gguf", 1, is_overwriting=False, removed_layers=removed)
    print_layers(PrunedRequest(request, [LayerDistance(0, 0.1), LayerDistance(1, 0.2)]))
    lines = capsys.readouterr().out.splitlines()
    assert lines[1 + removed[0]].split() == [str(removed[0]), f"{0.1 + 0.1 * removed[0]:.4f}", "left", "out"]
    assert any("stays, whatever its distance" in line for line in lines) == is_said
