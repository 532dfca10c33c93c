"""Convert checkpoints with llama.cpp's own converter, each in a process of its own, to compare the files with ours.

    python tests/bench/conversion/convert_with_peer.py PATH_TO_convert_hf_to_gguf.py FOLDER CHECKPOINT ...

Prints a line of JSON for each, and for the projector of one that has it (its name begins with mmproj-): the name, the
change that it took, and the first error where none helped. The converter is not edited. It refuses tokenizers whose
output has a hash that it does not list, as those of the tests: here the name of the pre-tokenizer is always the same.
It knows some settings only as they were published, not as transformers 5 has them: `as_published` turns those back.
What else tiny checkpoints lack is in `CHANGES`, tried in turn.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from contextlib import redirect_stdout
from multiprocessing import get_context
from pathlib import Path
from typing import Any

PRE_TOKENIZER = "gpt-2"
_NONE, _NO_PREDICTION, _PLAIN_VOCABULARY = "", "without prediction layers", "with GPT-2's vocabulary"
CHANGES = (_NONE, _NO_PREDICTION, _PLAIN_VOCABULARY)
_MAX_ERROR = 300
_PUBLISHED_KINDS = {"full_attention": "attention", "linear_attention": "mamba"}
_PUBLISHED_MARKS = {"full_attention": "*", "linear_attention": "M", "mlp": "-", "moe": "E"}


def as_published(settings: dict[str, Any]) -> dict[str, Any]:
    """Return a config with the kinds of layers, and without experts that no layer has, as it was published."""
    classes = settings.get("architectures") or [""]
    if classes[0] == "GraniteMoeHybridForCausalLM":
        kinds = [_PUBLISHED_KINDS.get(kind, kind) for kind in settings["layer_types"]]
        without = () if settings["num_local_experts"] else ("num_experts_per_tok",)
        return {key: value for key, value in settings.items() if key not in without} | {"layer_types": kinds}
    if classes[0] == "NemotronHForCausalLM":
        pattern = "".join(_PUBLISHED_MARKS[kind] for kind in settings["layers_block_type"])
        without = () if "E" in pattern else ("num_experts_per_tok", "n_routed_experts", "n_group", "topk_group")
        kept = {key: value for key, value in settings.items() if key not in without}
        return kept | {"hybrid_override_pattern": pattern}
    return settings


def _take_settings_as_published(base: Any) -> None:
    """Turn settings back where the converter's base class loads them, and where a class hands it its own."""
    load, init = base.load_hparams, base.__init__

    def begin(self: Any, *arguments: Any, hparams: Any = None, **options: Any) -> None:
        init(self, *arguments, hparams=as_published(hparams) if hparams else None, **options)

    base.load_hparams = staticmethod(lambda *arguments, **options: as_published(load(*arguments, **options)))
    base.__init__ = begin


def convert(checkpoint: Path, output: Path, change: str, *, is_projector: bool = False) -> str:
    """Run the converter's own main under a change and return its error, empty for none. Changes this process."""
    import convert_hf_to_gguf as peer
    from conversion.base import ModelBase, TextModel

    TextModel.get_vocab_base_pre = lambda _self, _tokenizer: PRE_TOKENIZER
    _take_settings_as_published(ModelBase)
    sys.argv = ["convert", str(checkpoint), "--outtype", "f32", "--outfile", str(output)]
    sys.argv.append("--mmproj" if is_projector else "--sentence-transformers-dense-modules")
    if change == _NO_PREDICTION:
        sys.argv.append("--no-nextn")
    if change == _PLAIN_VOCABULARY:
        find = peer.get_model_class
        peer.get_model_class = lambda *names, **options: _with_vocabulary(
            find(*names, **options), TextModel._set_vocab_gpt2
        )
    logged = [""]
    peer.logger.error = lambda text, *values: logged.append(text % values if values else text)
    try:
        with redirect_stdout(sys.stderr):
            peer.main()
    except (Exception, SystemExit) as error:
        return (logged[-1] or f"{type(error).__name__}: {error}")[:_MAX_ERROR]
    return ""


def _with_vocabulary(kind: Any, set_vocab: Any) -> Any:
    kind.set_vocab = set_vocab
    return kind


def attempt(checkpoint: Path, output: Path, change: str, *, is_projector: bool = False) -> str:
    """Convert in a fork, so that neither a crash nor a change stays."""
    try:
        with ProcessPoolExecutor(1, mp_context=get_context("fork")) as pool:
            return pool.submit(convert, checkpoint, output, change, is_projector=is_projector).result()
    except BrokenExecutor as error:
        return str(error)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("checkpoints", type=Path, nargs="+")
    arguments = parser.parse_args()
    os.environ["NO_LOCAL_GGUF"] = ""
    sys.path[:0] = [str(arguments.peer.parent / "gguf-py"), str(arguments.peer.parent)]
    import conversion.base  # noqa: F401  # slow, and once for all forks

    for checkpoint in arguments.checkpoints:
        errors: list[str] = []
        for change in CHANGES:
            errors.append(attempt(checkpoint, arguments.folder / f"{checkpoint.name}.gguf", change))
            if not errors[-1]:
                break
        found = {"name": checkpoint.name, "change": change, "error": errors[0] if errors[-1] else ""}
        print(json.dumps(found), flush=True)
        if (checkpoint / "preprocessor_config.json").exists():
            name = f"mmproj-{checkpoint.name}"
            error = attempt(checkpoint, arguments.folder / f"{name}.gguf", _NONE, is_projector=True)
            print(json.dumps({"name": name, "change": _NONE, "error": error}), flush=True)


if __name__ == "__main__":
    main()
