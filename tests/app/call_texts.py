"""A call of each family of models as text, for tests of those who write and read calls."""

from __future__ import annotations

import json

from app.protocol.chat import AnswerDelta, Tool, joined_deltas
from app.service.generation.generation import AnswerParser
from app.service.tools.formats import ToolFormat, tool_format_of
from app.service.tools.parser import ToolCallParser, ToolOptions

WEATHER = Tool(
    "get_weather",
    "Tells the weather.",
    {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]},
)
OFFER = ToolOptions(tools=(WEATHER, Tool("now")))

# What stands in the chat templates of each family, and a call of get_weather({"city": "Åre", "days": 3}) of its models.
FAMILIES = {
    "hermes": ('<tool_call> "arguments"', '<tool_call>\n{"name": "get_weather", "arguments": @}\n</tool_call>'),
    "qwen3-coder": (
        "<tool_call> <function= <parameter=",
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nÅre\n</parameter>\n<parameter=days>\n3\n</parameter>\n"
        "</function>\n</tool_call>",
    ),
    "seed-oss": (
        "<seed:tool_call> <function= <parameter=",
        "<seed:tool_call>\n<function=get_weather>\n<parameter=city>Åre</parameter>\n<parameter=days>3</parameter>\n"
        "</function>\n</seed:tool_call>",
    ),
    "glm": (
        "<tool_call> <arg_key>",
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Åre</arg_value>\n<arg_key>days</arg_key>\n"
        "<arg_value>3</arg_value>\n</tool_call>",
    ),
    "glm-4.7": (
        "<tool_call> </arg_key><arg_value>",
        "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Åre</arg_value><arg_key>days</arg_key>"
        "<arg_value>3</arg_value></tool_call>",
    ),
    "hunyuan-3": (
        "<arg_key{}> <tool_sep{}> :opensource",
        "<tool_calls:opensource>\n<tool_call:opensource>get_weather<tool_sep:opensource>\n"
        "<arg_key:opensource>city</arg_key:opensource>\n<arg_value:opensource>Åre</arg_value:opensource>\n"
        "<arg_key:opensource>days</arg_key:opensource>\n<arg_value:opensource>3</arg_value:opensource>\n"
        "</tool_call:opensource>\n</tool_calls:opensource>",
    ),
    "gemma-4": ("<|tool_call>call:", '<|tool_call>call:get_weather{city:<|"|>Åre<|"|>,days:3}<tool_call|>'),
    "minimax-m2": (
        "<minimax:tool_call> <invoke name=",
        '<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">Åre</parameter>\n'
        '<parameter name="days">3</parameter>\n</invoke>\n</minimax:tool_call>',
    ),
    "minimax-m3": (
        ']<]minimax[>[ <invoke name="',
        ']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="get_weather">]<]minimax[>[<city>Åre]<]minimax[>[</city>'
        "]<]minimax[>[<days>3]<]minimax[>[</days>]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>",
    ),
    "functiongemma": (
        "<start_function_call> <escape>",
        "<start_function_call>call:get_weather{city:<escape>Åre<escape>,days:3}<end_function_call>",
    ),
    "deepseek-v4": (
        "｜DSML｜ tool_calls>",
        '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="get_weather">\n'
        '<｜DSML｜parameter name="city" string="true">Åre</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
    ),
    "deepseek-v3.2": (
        "｜DSML｜ function_calls>",
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="get_weather">\n'
        '<｜DSML｜parameter name="city" string="true">Åre</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>\n</｜DSML｜function_calls>",
    ),
    "kimi-k3": (
        "<|open|> open_tag('argument'",
        '<|open|>tools<|sep|><|open|>call tool="get_weather" index="1"<|sep|>'
        '<|open|>argument key="city" type="string"<|sep|>Åre<|close|>argument<|sep|>'
        '<|open|>argument key="days" type="number"<|sep|>3<|close|>argument<|sep|>'
        "<|close|>call<|sep|><|close|>tools<|sep|>",
    ),
    "lfm2": ("<|tool_list_start|>", '<|tool_call_start|>[get_weather(city="Åre", days=3)]<|tool_call_end|>'),
    "olmo-3": ("<function_calls>", '<function_calls>get_weather(city="Åre", days=3)</function_calls>'),
    "minicpm-5": (
        '<function name=" <param name="',
        '<function name="get_weather"><param name="city">Åre</param><param name="days">3</param></function>',
    ),
    "solar-open": (
        "<|tool_call:begin|> <|tool_call:args|>",
        "<|tool_calls|><|tool_call:begin|>abcdefghi<|tool_call:name|>get_weather<|tool_call:args|>@"
        "<|tool_call:end|><|calls|>",
    ),
    "apertus": ("<|tools_prefix|>", '<|tools_prefix|>[{"get_weather": @}]<|tools_suffix|>'),
    "gigachat-3.1": ("<|function_call|>", '<|function_call|>{"name": "get_weather", "arguments": @}'),
    "gigachat-3": (
        "<|role_sep|> <|message_sep|> function call",
        '<|message_sep|>\n\nfunction call<|role_sep|>\n{"name": "get_weather", "arguments": @}',
    ),
    "muse-glimmer": (
        "<atem:function_calls> <|eom|>",
        '<|start|>assistant to=get_weather<|message|><atem:function_calls>\n<atem:invoke name="get_weather">\n'
        '<atem:parameter name="city">Åre</atem:parameter>\n<atem:parameter name="days">3</atem:parameter>\n'
        "</atem:invoke>\n</atem:function_calls>",
    ),
    "functionary-3.2": (">>>all >>>${recipient}", ">>>get_weather\n@"),
    "command-r-plus": (
        "Action: ```json tool_name <|CHATBOT_TOKEN|>",
        'Action:\n```json\n[\n    {\n        "tool_name": "get_weather",\n        "parameters": @\n    }\n]```',
    ),
    "phi-4-mini": (
        "<|tool|> <|/tool|>",
        '<|tool_call|>[{"name": "get_weather", "arguments": @}]<|/tool_call|>',
    ),
    "llama-4": (
        '<|header_start|> {"name": x, "parameters": y}',
        '<|python_start|>[get_weather(city="Åre", days=3)]<|python_end|>',
    ),
    "functionary-3.1": ("<function= </function>", "<function=get_weather>@</function>"),
    "mistral": ("[TOOL_CALLS] [ARGS]", "[TOOL_CALLS]get_weather[CALL_ID]abcdefghi[ARGS]@"),
    "mistral-list": ("[TOOL_CALLS]", '[TOOL_CALLS][{"name": "get_weather", "arguments": @, "id": "abcdefghi"}]'),
    "deepseek-r1": (
        "<｜tool▁call▁begin｜> ```json",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n@\n```<｜tool▁call▁end｜>"
        "<｜tool▁calls▁end｜>",
    ),
    "deepseek-v3.1": (
        "<｜tool▁call▁begin｜>",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>@<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
    "kimi-k2": (
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>@"
        "<|tool_call_end|><|tool_calls_section_end|>",
    ),
    "command-r7b": (
        "<|START_ACTION|>",
        '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "get_weather", "parameters": @}\n]<|END_ACTION|>',
    ),
    "firefunction": ("functools[", 'functools[{"name": "get_weather", "arguments": @}]'),
    "granite-3": ("<|tool_call|>", '<|tool_call|>[{"name": "get_weather", "arguments": @}]'),
    "nemotron-nano": ("<TOOLCALL>", '<TOOLCALL>[{"name": "get_weather", "arguments": @}]</TOOLCALL>'),
    "tool-calls-list": (
        '<tool_calls> "arguments"',
        '<tool_calls>\n{"name": "get_weather", "arguments": @}\n</tool_calls>',
    ),
    "llama-3": (
        '<|start_header_id|> {"name": x, "parameters": y}',
        '{"name": "get_weather", "parameters": @}',
    ),
}  # fmt: skip
ARGUMENTS = {"city": "Åre", "days": 3}


def family(name: str) -> ToolFormat:
    found = tool_format_of(FAMILIES[name][0])
    assert found is not None
    assert found.name == name
    return found


def call_text(name: str, arguments: object = ARGUMENTS) -> str:
    return FAMILIES[name][1].replace("@", json.dumps(arguments, ensure_ascii=False))


def split(family: ToolFormat, text: str, cuts: list[int], offer: ToolOptions = OFFER) -> AnswerDelta:
    """Return all that is told of `text`, coming in pieces."""
    return told_by(ToolCallParser(family, offer, lambda: "ID"), text, cuts)


def told_by(parser: AnswerParser, text: str, cuts: list[int]) -> AnswerDelta:
    """Return all that `parser` tells of `text`, coming in pieces."""
    ends = sorted({min(cut, len(text)) for cut in cuts} | {len(text)})
    told = [parser.push(text[begin:end]) for begin, end in zip([0, *ends], ends, strict=False)]
    told.append(parser.push("", is_final=True))
    assert not parser.is_holding
    return AnswerDelta(
        "".join(part.text for part in told),
        reasoning="".join(part.reasoning for part in told),
        calls=joined_deltas(call for part in told for call in part.calls),
    )
