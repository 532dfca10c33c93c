"""The header of a model file, as far as chat needs it before an engine loads the model.

Independent of weights and of processes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from app.library.local.model_files import FileIdentity, identity_of
from app.library.local.recipe import NO_RECIPE, Recipe, read_recipe
from app.service.infill.tokens import InfillTokens, infill_tokens_of
from quantizer.gguf.header import Header
from quantizer.gguf.validation import check_answers, validate_gguf

__all__ = ["ModelFile", "read_model_file"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFile:
    """A valid model. `chat_template` is empty for a model without one.

    `recipe` is how it was made of another model, if it was; its template becomes the `chat_template`.

    `infill` are the tokens for filling in the middle, None for a model that cannot. `identity` is the same for all
    names of the file.
    """

    chat_template: str
    bos_token: str
    eos_token: str
    n_ctx_train: int
    n_bytes: int
    infill: InfillTokens | None = None
    recipe: Recipe = NO_RECIPE
    identity: FileIdentity = ()

    @property
    def recipe_n_ctx(self) -> int:
        """The context length of its recipe, 0 for a recipe without one."""
        wanted = self.recipe.parameters.get("num_ctx")
        return wanted if isinstance(wanted, int) else 0  # requests refuse a recipe with anything else


def read_model_file(path: Path) -> ModelFile:
    """Read the header of the GGUF at `path`. Raises ModelFileError for a file without a text model."""
    header, recipe = validate_gguf(path), read_recipe(path)
    check_answers(header, needs_tokenizer=True)
    return ModelFile(
        chat_template=recipe.template or header.text("tokenizer.chat_template"),
        bos_token=_token(header, "tokenizer.ggml.bos_token_id"),
        eos_token=_token(header, "tokenizer.ggml.eos_token_id"),
        n_ctx_train=header.integer(f"{header.architecture}.context_length") or 0,
        n_bytes=header.file_bytes,
        infill=infill_tokens_of(header),
        recipe=recipe,
        identity=identity_of(path),
    )


def _token(header: Header, key: str) -> str:
    """Return the text of the token whose id is at `key`, empty for none or an invalid id."""
    token_id = header.integer(key)
    if token_id is None or "tokenizer.ggml.tokens" not in header.fields:
        return ""
    tokens = header.array("tokenizer.ggml.tokens")
    return str(tokens[token_id]) if 0 <= token_id < len(tokens) else ""
