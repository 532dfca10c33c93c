"""Compare a converted encoder with its checkpoint, through the engine: the largest difference, relative to their range.

    uv run --group train python tests/bench/conversion/compare_embeddings.py CHECKPOINT MODEL.gguf

Exits 1 above 2e-3. transformers runs in float32 here and its last hidden states are pooled as modules.json says, the
engine in a child process. A model that ranks gets texts, any other random ids, which are the harder input.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from quantizer.convert.embedding_modules import PROMPT

LIMIT = 2e-3
_LENGTHS = (1, 7, 40, 96)
_FIRST_WORD_ID = 5  # those before are special in every tokenizer of the tiny checkpoints
_QUERY, _WORDS, _N_DOCUMENTS = "hello", ("hello", "he", "llo", "l", "o", "h", "e"), 24
_ENGINE = Path(__file__).parents[2] / "app" / "engine" / "llama" / "real_embedding.py"
_MEAN, _FIRST, _LAST = 1, 2, 3
_POOLINGS = {
    _MEAN: lambda states: states.mean(0),
    _FIRST: lambda states: states[0],
    _LAST: lambda states: states[-1],
}


def reference_vectors(checkpoint: Path, ids: list[list[int]]) -> np.ndarray:
    """Vectors of length one, shape [n_texts, n_embd]."""
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModel

    model = AutoModel.from_pretrained(checkpoint, dtype=torch.float32).eval()
    pool = _POOLINGS[pooling_of(checkpoint)]
    dense = [load_file(path)["linear.weight"].numpy() for path in sorted(checkpoint.glob("*_Dense/model.safetensors"))]
    model = model.encoder if hasattr(model, "decoder") else model
    with torch.no_grad():
        vectors = np.stack([pool(model(torch.tensor([text])).last_hidden_state[0]).numpy() for text in ids])
    for weights in dense:
        vectors = vectors @ weights.T
    return np.stack([vector / np.linalg.norm(vector) for vector in vectors])


def pooling_of(checkpoint: Path) -> int:
    """llama.cpp's number for the pooling that modules.json names, by default the mean."""
    settings = json.loads((checkpoint / "modules.json").read_text()) if (checkpoint / "modules.json").exists() else []
    path = next((module["path"] for module in settings if module["type"].endswith("Pooling")), None)
    mode = json.loads((checkpoint / path / "config.json").read_text())["pooling_mode"] if path else "mean"
    return {"mean": _MEAN, "cls": _FIRST, "lasttoken": _LAST}[mode]


def answer_scores(checkpoint: Path, documents: list[str]) -> np.ndarray:
    """The share of yes in the answers yes and no for each document, shape [n_documents]."""
    import torch
    from tokenizers import Tokenizer
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    answers = [tokenizer.token_to_id(word) for word in ("yes", "no")]
    with torch.no_grad():
        prompts = [PROMPT.replace("{query}", _QUERY).replace("{document}", document) for document in documents]
        ids = [torch.tensor([tokenizer.encode(prompt, add_special_tokens=False).ids]) for prompt in prompts]
        return np.array([float(model(prompt).logits[0, -1, answers].softmax(0)[0]) for prompt in ids])


def reference_scores(checkpoint: Path, documents: list[str]) -> np.ndarray:
    """The first output for each document, shape [n_documents]."""
    import torch
    from tokenizers import Tokenizer
    from transformers import AutoModelForSequenceClassification

    model = AutoModelForSequenceClassification.from_pretrained(checkpoint, dtype=torch.float32).eval()
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    with torch.no_grad():
        pairs = [torch.tensor([tokenizer.encode(_QUERY, document).ids]) for document in documents]
        return np.array([float(model(pair).logits[0, 0]) for pair in pairs])


def through_engine(gguf: Path, case: dict[str, Any]) -> dict[str, Any]:
    """The vectors of the engine for one case, see real_embedding.py."""
    request = json.dumps({str(gguf): {"case": case}})
    done = subprocess.run([sys.executable, str(_ENGINE), "256"], input=request, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr[-2_000:])
    answer: dict[str, Any] = json.loads(done.stdout)[str(gguf)]["case"]
    return answer


def largest_difference(checkpoint: Path, gguf: Path) -> float:
    """The largest difference of any number of a vector, or of any score, as a share of the reference's range."""
    config = json.loads((checkpoint / "config.json").read_text())
    case = case_for(config)
    if "documents" in case:
        scores = answer_scores if _is_decoder(config) else reference_scores
        reference, answer = scores(checkpoint, case["documents"]), through_engine(gguf, case)["scores"]
    else:
        reference, answer = reference_vectors(checkpoint, case["inputs"]), through_engine(gguf, case)["vectors"]
    return float(np.abs(reference - np.array(answer)).max() / (reference.max() - reference.min()))


def case_for(config: dict[str, Any]) -> dict[str, Any]:
    """What a model of this config.json is given: documents to rank, or texts of random ids."""
    random = np.random.default_rng(5)
    if config["architectures"][0].endswith("ForSequenceClassification") or _is_decoder(config):
        return {"query": _QUERY, "documents": [" ".join(random.choice(_WORDS, 2 + i)) for i in range(_N_DOCUMENTS)]}
    return {"inputs": [random.integers(_FIRST_WORD_ID, config["vocab_size"], n).tolist() for n in _LENGTHS]}


def _is_decoder(config: dict[str, Any]) -> bool:
    return bool(config["architectures"][0].endswith("ForCausalLM"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("gguf", type=Path)
    arguments = parser.parse_args()
    difference = largest_difference(arguments.checkpoint, arguments.gguf)
    print(f"largest difference {difference:.2e} of the range (limit {LIMIT:.0e})")
    return int(difference > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
