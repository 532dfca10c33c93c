"""Routes for a model's tokens: /tokenize and /detokenize in llama-server's and vLLM's form, vLLM's /tokenizer_info.

The fields of a body decide its form: llama-server's has `content`, vLLM's `prompt` or `messages`. Source of vLLM's:
vllm/entrypoints/openai/protocol.py and lm_eval/utils.py (`RemoteTokenizer`), 0.4.13.
"""

from __future__ import annotations

from typing import Annotated, Any, NotRequired

from pydantic import Field, NonNegativeInt, StrictBool, StrictInt, StrictStr
from starlette.requests import Request
from typing_extensions import TypedDict

from app.protocol.errors import RequestError
from app.service.api.app_state import app_state, model_of, turn_of
from app.service.api.fields import Body, Byte
from app.service.api.messages import ChatMessage, FunctionToolBody
from app.service.api.openai.requests import ChatCompletionBody
from app.service.generation.chat import prompt_of
from app.service.http.routing import Router, errors
from app.service.http.streaming import JsonResponse
from app.service.models.served_model import ServedModel

router = Router()


class TokenizeResponse(TypedDict):
    tokens: list[int]


class Piece(TypedDict):
    """A token with its text, or with its bytes where they are part of a character."""

    id: int
    piece: str | list[Byte]


class TokenizePiecesResponse(TypedDict):
    tokens: list[Piece]


class CountedTokens(TypedDict):
    """vLLM's answer; `token_strs` only where they are wanted."""

    count: NonNegativeInt
    max_model_len: NonNegativeInt
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizeResponse(TypedDict):
    """The text under llama-server's name and under vLLM's, whose bodies are the same."""

    content: str
    prompt: str


class TokenizerInfo(TypedDict):
    """What clients need to count tokens and to write prompts themselves; null is a token that the model does not
    have."""

    tokenizer_class: str
    bos_token: str | None
    eos_token: str | None
    model_max_length: NonNegativeInt
    chat_template: NotRequired[str]


class TokenizeBody(Body):
    """`content` (llama-server's) or `prompt` (vLLM's) is text, in which special tokens are parsed unless
    `parse_special` is false; `messages` (vLLM's) are those of a chat."""

    content: StrictStr | None = None
    add_special: bool = False
    parse_special: bool = True
    with_pieces: bool = False
    prompt: StrictStr | None = None
    messages: Annotated[list[ChatMessage], Field(min_length=1)] | None = None
    tools: list[FunctionToolBody] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: StrictBool | None = None
    continue_final_message: bool | None = None
    add_special_tokens: StrictBool | None = None
    return_token_strs: bool | None = None
    model: str = ""

    @property
    def chat(self) -> ChatCompletionBody:
        names = ("messages", "tools", "chat_template_kwargs", "add_generation_prompt", "continue_final_message")
        return ChatCompletionBody.model_construct(**{name: getattr(self, name) for name in names})

    def check(self) -> None:
        """Raise RequestError unless there is one text."""
        if sum(value is not None for value in (self.content, self.prompt, self.messages)) != 1:
            cause = "A request to tokenize has one of content, prompt and messages."
            raise RequestError(cause, "Send the text as `content` (llama-server) or `prompt` (vLLM).")


class DetokenizeBody(Body):
    tokens: list[StrictInt]
    model: str = ""


@router.post("/tokenize", refusals=errors(404))
async def tokenize(
    request: Request, body: TokenizeBody
) -> JsonResponse[TokenizeResponse | TokenizePiecesResponse | CountedTokens]:
    """Text or a chat to token ids, in the form of the body: llama-server's for `content`, vLLM's for the others."""
    body.check()
    model = await model_of(request, body.model)
    if body.content is None:
        return JsonResponse(await _counted(request, model, body))
    add_special, parse_special = body.add_special, body.parse_special
    with model.in_use() as engine:
        if body.with_pieces:
            pieces = await engine.pieces(body.content, add_special=add_special, parse_special=parse_special)
            return JsonResponse({"tokens": [{"id": token, "piece": _piece(piece)} for token, piece in pieces]})
        tokens = await engine.tokenize(body.content, add_special=add_special, parse_special=parse_special)
        return JsonResponse({"tokens": list(tokens)})


async def _counted(request: Request, model: ServedModel, body: TokenizeBody) -> CountedTokens:
    """Return the tokens in vLLM's form: a prompt begins with the model's first token unless the body says otherwise,
    a chat as its answer would."""
    if body.prompt is not None:
        text, add_special = body.prompt, body.add_special_tokens is not False
    else:
        turn = await turn_of(app_state(request), model, body.chat.turn)
        prepared = (await prompt_of(model, turn)).requests[0]
        assert isinstance(prepared.prompt, str), "the prompt of a chat is a text"
        text = prepared.prompt
        add_special = prepared.add_special if body.add_special_tokens is None else body.add_special_tokens
    with model.in_use() as engine:
        pieces = await engine.pieces(text, add_special=add_special, parse_special=True)
        n_ctx = (await engine.ready()).n_ctx
    strings = [piece.decode("utf-8", "replace") for _, piece in pieces] if body.return_token_strs else None
    return {
        "count": len(pieces),
        "max_model_len": n_ctx,
        "tokens": [token for token, _ in pieces],
        "token_strs": strings,
    }


@router.post("/detokenize", refusals=errors(404))
async def detokenize(request: Request, body: DetokenizeBody) -> JsonResponse[DetokenizeResponse]:
    """Token ids to text."""
    with (await model_of(request, body.model)).in_use() as engine:
        text = await engine.detokenize(body.tokens)
    return JsonResponse({"content": text, "prompt": text})


@router.get("/tokenizer_info", refusals=errors(404))
async def tokenizer_info(request: Request, model: str = "") -> JsonResponse[TokenizerInfo]:
    """The special tokens and the chat template of a model, as in vLLM."""
    served = await model_of(request, model)
    info: TokenizerInfo = {
        "tokenizer_class": "GGUF",
        "bos_token": served.file.bos_token or None,
        "eos_token": served.file.eos_token or None,
        "model_max_length": (await served.ready()).n_ctx,
    }
    if served.file.chat_template:
        info["chat_template"] = served.file.chat_template
    return JsonResponse(info)


def _piece(piece: bytes) -> str | list[int]:
    try:
        return piece.decode()
    except UnicodeDecodeError:  # a part of a character (source: llama-server's README)
        return list(piece)
