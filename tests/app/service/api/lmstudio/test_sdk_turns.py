"""What earlier turns of LM Studio's SDKs 1.5.0 become for the model: reasoning, pictures, calls that were cut off."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import gguf
import pytest

from tests.app.running import RunningService
from tests.app.service.api.lmstudio.sdk_client import SdkClient, connected, history, of_model, predict, stack
from tests.quantizer.gguf_files import tiny_llama

TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}>"
    "{% if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{% endif %}"
    "{{ message.content }}\n{% endfor %}<assistant>{% if enable_thinking is false %}<think></think>{% endif %}"
)
PICTURE = {"type": "file", "name": "cat.png", "identifier": "x", "sizeBytes": 3, "fileType": "image"}


@pytest.fixture(scope="module")
def thinking(
    start_service: Callable[..., RunningService], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SdkClient]:
    def edit(writer: gguf.GGUFWriter) -> None:
        writer.add_chat_template(TEMPLATE)

    path = tiny_llama(tmp_path_factory.mktemp("thinking") / "thinker.gguf", edit)
    with connected(start_service(model=str(path)).url, "llm") as client:
        yield client


def _formatted(client: SdkClient, *messages: tuple[str, object], **fields: object) -> str:
    config = stack(**{f"llm__prediction__{name}": value for name, value in fields.items()})
    body = {
        "specifier": of_model("thinker"),
        "history": history(*messages),
        "predictionConfigStack": config,
        "opts": {},
    }
    return str(client.result("applyPromptTemplate", body)["formatted"])


def test_reasoning_is_sent_apart_and_given_back_to_the_template(thinking: SdkClient) -> None:
    *packets, success = thinking.packets("predict", predict("<say><think>Hm</think>It snows.</say>", model="thinker"))
    fragments = [packet["fragment"] for packet in packets]
    kinds = list(dict.fromkeys(fragment["reasoningType"] for fragment in fragments))
    assert kinds == ["reasoningStartTag", "reasoning", "reasoningEndTag", "none"]
    assert success["stats"]["stopReason"] == "eosFound"
    sent = "".join(fragment["content"] for fragment in fragments)
    assert sent == "<think>Hm</think>\n\nIt snows."
    prompt = _formatted(thinking, ("user", "a"), ("assistant", sent), ("user", "b"))
    assert "<assistant><think>Hm</think>It snows.\n<user>b\n" in prompt


def test_reasoning_is_switched_off_by_the_sdks_option(thinking: SdkClient) -> None:
    assert _formatted(thinking, ("user", "a"), reasoning__enableThinking=False).endswith("<assistant><think></think>")


def test_reasoning_stays_in_the_text_where_it_is_not_to_be_parsed(thinking: SdkClient) -> None:
    off = {"enabled": False, "startString": "", "endString": ""}
    body = predict("<say><think>Hm</think>It snows.</say>", model="thinker", reasoning__parsing=off)
    fragments = [packet["fragment"] for packet in thinking.packets("predict", body)[:-1]]
    assert {fragment["reasoningType"] for fragment in fragments} == {"none"}
    assert "".join(fragment["content"] for fragment in fragments) == "<think>Hm</think>It snows."


def test_a_picture_of_an_earlier_turn_becomes_a_note_and_as_the_question_an_error(thinking: SdkClient) -> None:
    earlier = ("user", [{"type": "text", "text": "Look"}, PICTURE])
    prompt = _formatted(thinking, earlier, ("assistant", "Yes."), ("user", "And now?"))
    assert "Look" in prompt
    assert "cat.png" not in prompt
    body = {**predict("", model="thinker"), "history": history(("user", [PICTURE]))}
    assert thinking.error("predict", body)["title"]


def test_a_system_prompt_of_the_configuration_comes_first(thinking: SdkClient) -> None:
    assert _formatted(thinking, ("user", "a"), systemPrompt="Be brief.").startswith("<system>Be brief.\n<user>a")
