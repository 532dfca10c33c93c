"""Compare a converted encoder with its checkpoint: the largest difference of vectors or scores relative to their range.

    uv run --group train python -m tests.bench.conversion.compare_embeddings CHECKPOINT MODEL.gguf

As compare_logits.py does for decoders, with the same limit. The last hidden states of transformers are pooled as
modules.json says. A model that ranks gets texts, any other random ids, which are the harder input.
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
from quantizer.gguf.header import read_header
from tests.bench.conversion.class_rows import Compared
from tests.bench.conversion.compare_logits import Values, compare
from tests.bench.conversion.native_outputs import native_vectors

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


def reference_vectors(model: Any, checkpoint: Path, ids: list[list[int]]) -> Values:
    """Vectors of length one, shape [n_texts, n_embd]."""
    import torch
    from safetensors.torch import load_file

    pool = _POOLINGS[pooling_of(checkpoint)]
    dense = [load_file(path)["linear.weight"].numpy() for path in sorted(checkpoint.glob("*_Dense/model.safetensors"))]
    model = model.encoder if hasattr(model, "decoder") else model
    with torch.no_grad():
        vectors = np.stack([pool(model(torch.tensor([text])).last_hidden_state[0]).numpy() for text in ids])
    for weights in dense:
        vectors = vectors @ weights.T.astype(vectors.dtype)
    return _of_length_one(vectors)


def _of_length_one(vectors: Values) -> Values:
    return np.stack([vector / np.linalg.norm(vector) for vector in vectors])


def pooling_of(checkpoint: Path) -> int:
    """llama.cpp's number for the pooling that modules.json names, by default the mean."""
    settings = json.loads((checkpoint / "modules.json").read_text()) if (checkpoint / "modules.json").exists() else []
    path = next((module["path"] for module in settings if module["type"].endswith("Pooling")), None)
    mode = json.loads((checkpoint / path / "config.json").read_text())["pooling_mode"] if path else "mean"
    return {"mean": _MEAN, "cls": _FIRST, "lasttoken": _LAST}[mode]


def answer_scores(model: Any, prompts: list[list[int]], answers: list[int]) -> Values:
    """The share of yes in the answers yes and no to each prompt, shape [n_documents]."""
    import torch

    with torch.no_grad():
        return np.array([float(model(torch.tensor([ids])).logits[0, -1, answers].softmax(0)[0]) for ids in prompts])


def reference_scores(model: Any, pairs: list[list[int]]) -> Values:
    """The first output for each document, shape [n_documents]."""
    import torch

    with torch.no_grad():
        return np.array([float(model(torch.tensor([ids])).logits[0, 0]) for ids in pairs])


def through_engine(gguf: Path, case: dict[str, Any]) -> dict[str, Any]:
    """The vectors of the engine for one case, see real_embedding.py."""
    request = json.dumps({str(gguf): {"case": case}})
    done = subprocess.run([sys.executable, str(_ENGINE), "256"], input=request, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr[-2_000:])
    answer: dict[str, Any] = json.loads(done.stdout)[str(gguf)]["case"]
    return answer


def compared_vectors(checkpoint: Path, gguf: Path) -> Compared:
    """Compare the vectors of some texts, or the scores of some documents."""
    import torch
    import transformers
    from tokenizers import Tokenizer

    config = json.loads((checkpoint / "config.json").read_text())
    case, architecture = case_for(config), read_header(gguf).architecture
    if "documents" not in case:
        model = transformers.AutoModel.from_pretrained(checkpoint, dtype=torch.float32).eval()
        return compare(
            architecture,
            model,
            lambda model: reference_vectors(model, checkpoint, case["inputs"]),
            lambda gelu: (found := native_vectors(gguf, case["inputs"], gelu)).with_values(
                _of_length_one(found.values)
            ),
        )
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    if _is_decoder(config):
        answers = [tokenizer.token_to_id(word) for word in ("yes", "no")]
        prompts = [PROMPT.replace("{query}", _QUERY).replace("{document}", each) for each in case["documents"]]
        ids = [tokenizer.encode(prompt, add_special_tokens=False).ids for prompt in prompts]
        model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
        reference = lambda model: answer_scores(model, ids, answers)  # noqa: E731
    else:
        ids = [tokenizer.encode(_QUERY, document).ids for document in case["documents"]]
        kind = transformers.AutoModelForSequenceClassification
        model = kind.from_pretrained(checkpoint, dtype=torch.float32).eval()
        reference = lambda model: reference_scores(model, ids)  # noqa: E731
    return compare(
        architecture,
        model,
        reference,
        lambda gelu: (found := native_vectors(gguf, ids, gelu)).with_values(found.values[:, 0]),
    )


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
    compared = compared_vectors(arguments.checkpoint, arguments.gguf)
    print(json.dumps(compared.summary(), indent=1))
    return int(not compared.is_equal)


if __name__ == "__main__":
    sys.exit(main())
