from __future__ import annotations

import pytest

from app.library.download.remote_file import Digest
from app.library.hub.repository import RepoFile, RepoModel, quant_of
from app.library.hub.selection import families_of, quants_of
from app.library.machine_fit.planning import planning_context
from app.settings.settings import Settings
from offload.footprint.model import PlannedModel
from quantizer.gguf.tensor_types import FILE_TYPES
from tests.offload.machines import MACHINES
from tests.offload.model_outlines import header_of

HEADER_BYTES = 6_000_000


def repo_model(name: str, n_bytes: int = 1000) -> RepoModel:
    return RepoModel(name, quant_of(name), (RepoFile(name, n_bytes, Digest()),))


def test_models_that_differ_in_their_quant_only_are_a_family() -> None:
    names = ["a-1b-Q4_K_M.gguf", "a-1b-q8_0.gguf", "a-1b.UD-Q2_K_XL.gguf", "a-1b-FP16.gguf", "a-3b-Q8_0.gguf", "b.gguf"]
    families = families_of([repo_model(name) for name in names])
    assert [[model.name for model in family] for family in families] == [names[:4], names[4:5], names[5:]]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama-3.1-8b", "qwen3-30b-a3b", "gemma-3-4b"])
def test_one_header_estimates_all_quants(name: str) -> None:
    """Held against the verdicts on the files themselves."""
    header = header_of(name)
    original = PlannedModel(header, header.tensors)
    here = planning_context(Settings(), MACHINES["RTX 3060 12 GB, 32 GB RAM"])
    quants = {quant: original.quantized(FILE_TYPES[quant]) for quant in ("Q8_0", "Q6_K", "Q4_K_M", "IQ3_M", "Q2_K")}
    family = [repo_model(f"{name}-{quant}.gguf", model.n_bytes + HEADER_BYTES) for quant, model in quants.items()]
    for candidate in quants_of(family, family[-1], quants["Q2_K"], here):
        exact = here.fit(quants[candidate.name])
        assert candidate.fit.verdict == exact.verdict, candidate.name
        assert candidate.fit.decode_tps == pytest.approx(exact.decode_tps, rel=0.005)
        assert candidate.fit.total_bytes == pytest.approx(exact.total_bytes, rel=0.005)


def test_a_quant_of_somebody_elses_is_as_large_as_its_file() -> None:
    header = header_of("llama-3.1-8b")
    here = planning_context(Settings(), MACHINES["RTX 4090, 64 GB RAM"])  # where bytes alone decide
    read = PlannedModel(header, header.tensors)
    family = [repo_model("m-Q8_0.gguf", read.n_bytes), repo_model("m-UD-Q4_K_XL.gguf", read.n_bytes // 2)]
    whole, half = quants_of(family, family[0], read, here)
    assert half.name == "UD-Q4_K_XL"
    assert whole.fit.total_bytes - half.fit.total_bytes == pytest.approx(read.n_bytes / 2, rel=1e-5)
    assert (half.fit.decode_tps or 0) == pytest.approx(2 * (whole.fit.decode_tps or 0), rel=0.2)
