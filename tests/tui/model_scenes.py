"""Models to show in tests of screens."""

from __future__ import annotations

from app.protocol.library import HubModel, HubRepository, LocalModel, ModelFit, Quant, Recommended, TypeChoice
from tests.app.client.scripted_client import ScriptedClient, ScriptedLibrary

__all__ = ["GUIDE", "client_with_models"]

GUIDE = LocalModel(
    id="guide",
    where="built in",
    path="/app/guide-Q8_0.gguf",
    n_bytes=5_500_000,
    file_type="Q8_0",
    n_ctx_train=2048,
    fit=ModelFit("fits", 812.0, 20_000_000),
    state="ready",
    loaded_as="guide",
)
_QWEN = LocalModel(
    id="qwen3-0.6b-Q8_0",
    where="library",
    path="/data/models/org/qwen/qwen3-0.6b-Q8_0.gguf",
    n_bytes=639_000_000,
    file_type="Q8_0",
    n_ctx_train=40960,
    fit=ModelFit("fits", 41.3, 1_200_000_000),
)
_BIG = LocalModel(
    id="llama-3.3-70b-Q4_K_M",
    where="library",
    path="/data/models/org/llama/llama-3.3-70b-Q4_K_M.gguf",
    n_bytes=42_500_000_000,
    file_type="Q4_K_M",
    n_ctx_train=131072,
    fit=ModelFit("wont_run", None, 45_000_000_000),
)
_BROKEN = LocalModel(
    id="cut-short", where="library", path="/data/models/a/b/cut-short.gguf", n_bytes=900, damaged="It ends too early."
)
_OLLAMA = LocalModel(
    id="llama3.2:3b",
    where="Ollama",
    path="/ollama/blobs/sha256-1",
    n_bytes=2_020_000_000,
    file_type="Q4_K_M",
    n_ctx_train=131072,
    fit=ModelFit("tight", 12.8, 3_100_000_000),
)
_OFFER = Recommended(
    role="chat",
    why="Of its kind in the catalogue the best that fits.",
    keeps_pace=True,
    title="Qwen3 4B Instruct",
    reference="org/Qwen3-4B-GGUF:Q4_K_M",
    licence="apache-2.0",
    n_parameters=4_000_000_000,
    n_ctx_train=40960,
    quant=Quant("Q4_K_M", 2_500_000_000, ModelFit("fits", 14.2, 3_400_000_000)),
)
_SMALL = Recommended(
    role="small",
    why="Of its kind in the catalogue the best that fits.",
    keeps_pace=True,
    title="Llama 3.2 1B Instruct",
    reference="org/Llama-3.2-1B-GGUF:Q8_0",
    licence="llama3.2",
    n_parameters=1_200_000_000,
    n_ctx_train=131072,
    quant=Quant("Q8_0", 1_320_000_000, ModelFit("fits", 27.0, 1_900_000_000)),
)
_FOUND = HubRepository(
    repo="someone/Tiny-Coder-GGUF",
    is_checkpoint=False,
    n_downloads=1234,
    licence="mit",
    is_gated=False,
    models=(
        HubModel(
            "llama",
            1_100_000_000,
            8192,
            (
                Quant("Q8_0", 1_170_000_000, ModelFit("fits", 24.0, 1_500_000_000)),
                Quant("Q4_K_M", 670_000_000, ModelFit("fits", 41.0, 1_000_000_000)),
            ),
        ),
    ),
)
_CHECKPOINT = HubRepository(
    repo="maker/Tiny-Coder",
    is_checkpoint=True,
    n_downloads=99,
    licence="mit",
    is_gated=True,
    models=(
        HubModel("llama", 1_100_000_000, 8192, (Quant("Q6_K", 900_000_000, ModelFit("fits", 30.0, 1_200_000_000)),)),
    ),
)
_TYPES = (
    TypeChoice(
        quant=Quant("Q8_0", 639_000_000, ModelFit("fits", 41.3, 1_200_000_000)),
        bits_per_weight=8.5,
        perplexity_loss=0.0026,
        needs_imatrix=False,
        description="almost lossless; the safe choice where it fits",
    ),
    TypeChoice(
        quant=Quant("Q4_K_M", 397_000_000, ModelFit("fits", 62.0, 900_000_000)),
        bits_per_weight=4.9,
        perplexity_loss=0.1754,
        needs_imatrix=False,
        description="the usual balance of size and quality",
    ),
    TypeChoice(
        quant=Quant("IQ2_XS", 220_000_000, ModelFit("fits", 70.0, 700_000_000)),
        bits_per_weight=2.6,
        perplexity_loss=None,
        needs_imatrix=True,
        description="for the smallest memory",
    ),
)


def client_with_models() -> ScriptedClient:
    """A service with some models, a catalogue and a hub."""
    client = ScriptedClient()
    client.library = ScriptedLibrary([GUIDE, _QWEN, _BIG, _BROKEN], [_OLLAMA])
    client.library.recommended = (_OFFER, _SMALL)
    client.library.hub = (_FOUND, _CHECKPOINT)
    client.library.type_choices = _TYPES
    client.library.model_info_rows = (("name", "Qwen3 0.6B"), ("architecture", "qwen3"), ("licence", "apache-2.0"))
    return client
