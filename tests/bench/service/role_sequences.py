"""Count the prompts in which a chat template loses a message, refuses it, or changes what it takes by itself.

    python -m tests.bench.service.role_sequences FOLDER

FOLDER has chat templates (*.jinja), such as models/templates of llama.cpp's source. Each renders every sequence of
roles below in every dialect. A prompt fails that is refused or has not each message's text, in order; it is changed if
plain Jinja renders the sequence with all its texts too, and otherwise. Prints the counts of each template that has any.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import product
from pathlib import Path
from typing import Any, cast

import jinja2

from app.engine.chat_template.render import render
from app.library.local.model_files import ModelRef
from app.protocol.errors import RequestError
from app.service.api.lmstudio.sdk_requests import ChatHistory
from app.service.api.ollama.requests import OllamaChatBody
from app.service.api.openai.requests import ChatCompletionBody
from app.service.api.responses.requests import ResponsesBody
from app.service.generation.chat import ChatTurn, prompt_of
from app.service.models.model_file import ModelFile
from app.service.models.served_model import ServedModel
from tests.app.service.generation.test_chat import HereAndNow

ROLES = {"S": "system", "U": "user", "A": "assistant"}
SEQUENCES = ["".join(roles) + "U" for n in range(4) for roles in product("SUA", repeat=n)]
MESSAGES = list[dict[str, Any]]


def lmstudio(messages: MESSAGES) -> ChatTurn:
    history = [{**each, "content": [{"type": "text", "text": each["content"]}]} for each in messages]
    return openai(ChatHistory.model_validate({"messages": history}).openai_messages())


def openai(messages: MESSAGES) -> ChatTurn:
    return ChatCompletionBody.model_validate({"messages": messages}).turn()


DIALECTS: Mapping[str, Callable[[MESSAGES], ChatTurn]] = {
    "OpenAI": openai,
    "Ollama": lambda messages: OllamaChatBody.model_validate({"messages": messages}).turn(),
    "Responses": lambda messages: ResponsesBody.model_validate({"input": messages}).turn(),
    "LM Studio": lmstudio,
}


def has_all(prompt: str, messages: MESSAGES) -> bool:
    end = 0
    for message in messages:
        place = prompt.find(message["content"], end)
        if place < 0:
            return False
        end = place + len(message["content"])
    return True


def plain(template: str, messages: MESSAGES) -> str:
    """Return what Jinja makes of `messages` as they are, "" where the template refuses them."""
    variables = {"add_generation_prompt": True, "bos_token": "<s>", "eos_token": "</s>", "tools": None}
    try:
        return render(template, {**variables, "messages": messages})
    except (jinja2.TemplateError, TypeError, ValueError, KeyError, AttributeError):
        return ""


async def counted(template: str) -> Counter[str]:
    file = ModelFile(chat_template=template, bos_token="<s>", eos_token="</s>", n_ctx_train=1, n_bytes=1)
    no_engine = cast("Any", None)
    model = ServedModel(ModelRef("test", Path("test.gguf")), file, no_engine, no_engine, HereAndNow())
    counts: Counter[str] = Counter()
    for roles in SEQUENCES:
        messages = [{"role": ROLES[role], "content": f"Text{place}of{role}."} for place, role in enumerate(roles)]
        by_itself = plain(template, messages)
        for dialect, turn in DIALECTS.items():
            counts["prompts"] += 1
            try:
                prompt = (await prompt_of(model, turn(messages))).prompt
            except RequestError:
                counts[f"refused, {dialect}"] += 1
                continue
            if not has_all(prompt, messages):
                counts[f"lost, {dialect}"] += 1
            elif has_all(by_itself, messages) and prompt != by_itself:
                counts[f"changed, {dialect}"] += 1
    return counts


def main(folder: Path) -> None:
    total: Counter[str] = Counter()
    paths = sorted(folder.glob("*.jinja"))
    for path in paths:
        counts = asyncio.run(counted(path.read_text(encoding="utf-8")))
        total += counts
        if len(counts) > 1:
            print(json.dumps({"template": path.name, **counts}), flush=True)
    print(json.dumps({"templates": len(paths), "sequences": len(SEQUENCES), **total}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
