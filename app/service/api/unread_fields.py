"""What becomes of a request's field that no body declares.

`HARMLESS` is the one list of fields that cannot change an answer, for all dialects; `REFUSED` has those that would, and
are not supported. tests/app/service/api/test_sdk_fields.py finds each field of the SDKs of OpenAI, Anthropic, Ollama
and LM Studio in a body or in one of the two. Any other field belongs to no SDK: the client is told that it has no
effect.

A name counts anywhere, `place.name` only in objects of the field `place`, `.name` only in the request itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from app.protocol.errors import RequestError


@dataclass(frozen=True, slots=True)
class Harmless:
    """Fields that cannot change an answer. They are told where their sender would expect an effect beside it."""

    reason: str
    names: tuple[str, ...]
    is_told: bool = False


HARMLESS: Final = (
    Harmless(
        "who asks, and what a vendor stores and bills",
        (
            *("user", "user_id", "metadata", "client_metadata", "safety_identifier", "store", "service_tier"),
            *("inference_geo", "betas", "usage", "provider", "billing_policy", "user_profile_id", "workspace_id"),
            *("access_programs", "fallback_credit_token", "diagnostics", "background_options"),
            *("stream_options.include_obfuscation", ".stream_options"),
        ),
    ),
    Harmless("which model answers where a vendor's policy refuses; none does here", (".fallbacks",)),
    Harmless(
        "what a vendor caches",
        (
            *("prompt_cache_key", "prompt_cache_retention", "prompt_cache_options", "prompt_cache_breakpoint"),
            "cache_control",
        ),
    ),
    Harmless(
        "what an earlier answer had beside its text, and how clients number and label it",
        (
            *("messages.id", "messages.type", "messages.status", "messages.created_at", "messages.model"),
            *("messages.name", "messages.stop_reason", "messages.stop_sequence", "messages.usage"),
            *("messages.annotations", "messages.provider_specific_fields", "messages.tool_call_id"),
            *("messages.tool_name", "tool_calls.type", "tool_calls.index", "function.index"),
            *("content.citations", "content.signature", "content.data", "content.caller", "content.annotations"),
            *("content.logprobs", "content.source", "content.title", "system.citations", "summary.type"),
            *("input.id", "input.status", "input.phase", "input.annotations", "output.annotations", "input.async"),
            *("input.caller", "input.created_by", "input.environment", "input.execution", "input.max_output_length"),
        ),
    ),
    Harmless(
        "results of tools on a vendor's servers, which the prompt has as a note",
        (
            *("content.encrypted_content", "content.encrypted_stdout", "content.error_code", "content.error_message"),
            *("content.file_type", "content.is_file_update", "content.lines", "content.new_lines", "content.new_start"),
            *("content.num_lines", "content.old_lines", "content.old_start", "content.page_age"),
            *("content.retrieved_at", "content.return_code", "content.start_line", "content.state_changes"),
            *("content.stderr", "content.stdout", "content.stop_reason", "content.tabs", "content.tool_references"),
            *("content.total_lines", "content.url", "content.mcp_server_name", "content.server_name"),
            *("content.toolset_name", "content.from", "content.to", "content.trigger", "content.tools"),
        ),
    ),
    Harmless(
        "pictures, sounds and files that the prompt has as a note, or whose question is refused",
        (
            *("content.image_url", "output.image_url", "content.input_audio", "content.video_url"),
            *("content.file_data", "content.file_id", "content.file_url", "output.file_data", "output.file_id"),
            *("output.file_url", "file.file_data", "file.file_id"),
        ),
    ),
    Harmless(
        "how finely a picture is read, which its projector decides",
        ("content.detail", "image_url.detail", "output.detail", "content.transformations"),
    ),
    Harmless("how a sound is cut, which is done where nobody speaks", (".chunking_strategy",)),
    Harmless(
        "labels of schemas and tools: calls fit their schema anyway, and every tool is offered at once",
        (
            *("strict", "json_schema.name", "json_schema.description", "format.name", "format.description"),
            *("tools.type", "tools.eager_input_streaming", "tools.defer_loading", "tools.title"),
            *("tools.output_schema", "tools.async", "tools.annotations", "tools.outputSchema", "tools.items"),
            *("tools.enum", "llm.prediction.toolNaming", "toolCallRequest.type"),
        ),
    ),
    Harmless(
        "containers of a vendor, in which nothing runs",
        (
            *("environment.container_id", "environment.file_ids", "environment.memory_limit"),
            *("environment.network_policy", "skills.skill_id", "skills.source", "skills.type", "skills.version"),
        ),
    ),
    Harmless(
        "how thoughts are shown and checked; the template decides which earlier ones the model reads",
        ("thinking.display", "thinking.block_binding", "reasoning.context"),
    ),
    Harmless("more output of a vendor's own tools", (".include",)),
    Harmless("how a prompt that is too long is cut; none is", ("truncate", "shift")),
    Harmless(
        "how the model is loaded, which the service decides; the context grows with the prompt",
        (
            *("num_ctx", "num_batch", "num_gpu", "main_gpu", "num_thread", "use_mmap", "use_mlock", "low_vram"),
            *("numa", "vocab_only", "f16_kv", "embedding_only", "logits_all"),
            *("llama.autoFit", "mlx.autoFit", "yuzu.autoFit"),
        ),
    ),
    Harmless(
        "where and how a model is loaded with LM Studio's SDK, which the planner decides",
        (
            *("llama.keepModelInMemory", "llama.tryMmap", "llama.flashAttention", "llama.useFp16ForKVCache"),
            *("load.gpuSplitConfig", "load.gpuStrictVramCap", "load.offloadKVCacheToGpu"),
        ),
        is_told=True,
    ),
    Harmless(
        "speed",
        (
            *("cache_prompt", "id_slot", "slot_id", "n_cache_reuse", "t_max_prompt_ms", ".prediction", ".speed"),
            *("guided_decoding_backend", "speculative.n_min", "speculative.p_min", "backend_sampling"),
            "input_extra.time",
        ),
    ),
    Harmless(
        "speed, asked of LM Studio's SDK",
        (
            *("llama.cpuThreads", "speculativeDecoding.draftModel"),
            *("speculativeDecoding.minDraftLengthToConsider", "speculativeDecoding.numDraftTokensExact"),
            "speculativeDecoding.minContinueDraftingProbability",
        ),
        is_told=True,
    ),
    Harmless(
        "names of LM Studio's settings, and what it keeps of a session; nothing is kept here",
        ("layers.layerName", "query.domain", ".ignoreServerSessionConfig"),
    ),
    Harmless(
        "how LM Studio prepares pictures for its engines",
        ("vision.userMaxImageDimensionPixels", "vision.ignoreModelPreferredMaxImageDimension"),
    ),
    Harmless("options that Ollama does not have any more", ("penalize_newline", "tfs_z"), is_told=True),
    Harmless("a registry without a certificate, which is never asked", (".insecure",), is_told=True),
)

_IN_INSTRUCTIONS: Final = "Say it in the instructions, and leave it out."
_AT_THE_CLIENT: Final = "Run it yourself, and describe its functions as `tools`."
_TOOLS: Final = "Send `tools` and `tool_choice`, and results as messages of the role `tool`."
_ONE_SPEAKER: Final = "Speakers are not told apart here: leave it out."
# What to do without a field that would change the answer.
REFUSED: Final[Mapping[str, str]] = {
    ".audio": "Answers are text: leave audio out.",
    ".modalities": 'Answers are text: send ["text"], or leave it out.',
    ".best_of": "Use `n`, and choose among the answers.",
    ".functions": _TOOLS,
    ".function_call": _TOOLS,
    "messages.function_call": _TOOLS,
    "messages.audio": "Send the transcript of the answer as content.",
    "messages.images": "Send pictures as parts of the content.",
    "messages.tool_calls": "Send the calls in the form of this API.",
    "messages.thinking": "Send the thoughts in the form of this API.",
    "messages.output_config": "Send it beside the messages.",
    "tools.custom": "Describe the tool as a function.",
    "tool_choice.custom": "Describe the tool as a function.",
    "tool_choice.server_label": _AT_THE_CLIENT,
    "tools.display_width": _AT_THE_CLIENT,
    "tools.display_height": _AT_THE_CLIENT,
    "tools.configs": _AT_THE_CLIENT,
    ".mcp_servers": _AT_THE_CLIENT,
    ".web_search_options": _AT_THE_CLIENT,
    ".container": "Nothing runs in a container here: leave it out.",
    ".moderation": "Nothing is moderated here: leave it out.",
    ".context_management": "Shorten the conversation yourself, or ask for a compaction.",
    "content.tool": "Send the tools that are in force as `tools`.",
    "content.tool_changes": "Send the tools that are in force as `tools`.",
    "content.citations": "Ask for quotations in the question.",
    ".image": "Pictures are read as they are: leave it out.",
    "output_config.task_budget": "Limit each answer with max_tokens.",
    "reasoning.mode": "Use `effort`.",
    ".personality": _IN_INSTRUCTIONS,
    ".truncation": "Shorten the input, or leave it out.",
    ".width": "Pictures are not made here: leave it out.",
    ".height": "Pictures are not made here: leave it out.",
    ".steps": "Pictures are not made here: leave it out.",
    ".known_speaker_names": _ONE_SPEAKER,
    ".known_speaker_references": _ONE_SPEAKER,
    # of vLLM's and SGLang's chats
    ".chat_template": "Use /apply-template's answer as the prompt of /v1/completions.",
    ".documents": "Send them as messages.",
    # of LM Studio's SDK
    ".fuzzyPresetIdentifier": "Send the instructions and settings of the preset.",
    "llm.prediction.contextPrefill": "Send it as a message.",
    "llm.prediction.toolCallStopStrings": "Use stopStrings.",
    "llama.ropeFrequencyBase": "Convert the model with another rope, or leave it out.",
    "llama.ropeFrequencyScale": "Convert the model with another rope, or leave it out.",
    "load.numExperts": "Models use as many experts as their makers chose: leave it out.",
    "load.seed": "Send the seed with the prediction.",
}
# Values that ask for what happens anyway, of fields that are refused or told otherwise.
_NEUTRAL: Final[Mapping[str, tuple[Any, ...]]] = {
    ".best_of": (1,),
    ".function_call": ("auto", "none"),
    ".image": ({"context_compression": "auto"}, {"context_compression": "disabled"}),
    ".modalities": (["text"],),
    "reasoning.mode": ("standard",),
    "response_format": ({"type": "text"},),
    "tfs_z": (1,),
    ".truncation": ("disabled",),
    # what LM Studio's JavaScript SDK 1.5.0 sends with every loading
    "load.gpuSplitConfig": ({"strategy": "evenly", "disabledGpus": [], "priority": [], "customRatio": []},),
}
# The order of samplers here (see `app.engine.loop.sampling`), as llama-server calls them.
SAMPLERS: Final = (
    *("penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"),
    "infill",
)
_ASKED_BY_AN_EMPTY_OBJECT: Final = (".web_search_options",)
# Lists of items of the Responses API have one type under several names.
_PLACES: Final = {"items": "input", "instructions": "input"}
_FATES: Final = {name: harmless.is_told for harmless in HARMLESS for name in harmless.names}


def keys_of(path: str) -> tuple[str, ...]:
    """Return under what the tables may have the field at `path`, which has names between dots."""
    *_, place, name = ("", *path.split("."))
    return f"{_PLACES.get(place, place)}.{name}", name, path


def is_told(path: str, value: Any) -> bool:
    """Whether the client is told that `value` has no effect at `path`. Raises RequestError, with the path,
    for a value that would change the answer."""
    keys = keys_of(path)
    is_empty = not value and not (value == {} and keys[0] in _ASKED_BY_AN_EMPTY_OBJECT)
    if is_empty or _is_neutral(keys[0], value) or any(value in _NEUTRAL.get(key, ()) for key in keys):
        return False
    refused = next((key for key in keys if key in REFUSED), None)
    harmless = next((key for key in keys if key in _FATES), None)
    # an answer's citations come back as a list; an object asks for them
    if refused and not (harmless and isinstance(value, list)):
        error = RequestError(f"{path} is not supported.", REFUSED[refused])
        error.param = path
        raise error
    return True if harmless is None else _FATES[harmless]


def _is_neutral(key: str, value: Any) -> bool:
    if isinstance(value, dict) and (value.get("checked") is False or value.get("enabled") is False):
        return True
    if key == ".samplers":  # llama.vim sends a list of them: any part in the order of this engine changes nothing
        usual = iter(SAMPLERS)
        return isinstance(value, list) and all(sampler in usual for sampler in value)
    if key == ".context_management":  # Claude Code: which earlier thoughts the model reads is the template's to decide
        edits = value.get("edits") if isinstance(value, dict) else [None]
        kinds = [edit.get("type") if isinstance(edit, dict) else None for edit in edits or ()]
        return all(isinstance(kind, str) and kind.startswith("clear_thinking_") for kind in kinds)
    return False
