from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import datetime

import jinja2
import psutil
import pytest

from app.engine.chat_template.render import _compiled, render
from app.engine.chat_template.template_process import TemplateProcess
from app.protocol.errors import RequestError

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
HELLO = [{"role": "user", "content": "Hello"}]
SLOW = "{% for i in range(2000) %}{% for j in range(999) %}{% endfor %}{% endfor %}"


@pytest.fixture
async def renderer() -> AsyncIterator[TemplateProcess]:
    process = TemplateProcess()
    yield process
    await process.close()


async def test_a_template_renders_a_prompt_in_its_own_process(renderer: TemplateProcess) -> None:
    prompt = await renderer.render(CHATML, HELLO)
    assert prompt == "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"


async def test_variables_reach_the_template(renderer: TemplateProcess) -> None:
    assert await renderer.render("{{ bos_token }}{{ tools | tojson }}", [], bos_token="<s>", tools=[{"é": 1}]) == (
        '<s>[{"é": 1}]'
    )


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("", '{"b": "é<", "a": [1]}'),
        ("()", '{"b": "é<", "a": [1]}'),
        ("(separators=(',', ':'))", '{"b":"é<","a":[1]}'),  # Kimi K2.5
        ("(separators=[',', ':'])", '{"b":"é<","a":[1]}'),
        ("(ensure_ascii=True)", '{"b": "\\u00e9<", "a": [1]}'),  # Reka Edge
        ("(ensure_ascii=false)", '{"b": "é<", "a": [1]}'),
        ("(sort_keys=True)", '{"a": [1], "b": "é<"}'),
        ("(indent=2)", '{\n  "b": "é<",\n  "a": [\n    1\n  ]\n}'),
        ("(indent=2, sort_keys=True)", '{\n  "a": [\n    1\n  ],\n  "b": "é<"\n}'),
        ("(true, 1, (',', ':'), true)", '{\n "a":[\n  1\n ],\n "b":"\\u00e9<"\n}'),
    ],
)
def test_tojson_takes_the_options_that_it_has_in_transformers_in_their_order(options: str, expected: str) -> None:
    template = "{{ value | tojson" + options + " }}"
    assert render(template, {"value": {"b": "é<", "a": [1]}}) == expected


def test_tojson_refuses_an_option_that_it_does_not_have() -> None:
    with pytest.raises(TypeError, match="sorted"):
        render("{{ 1 | tojson(sorted=true) }}", {})


@pytest.mark.parametrize("options", ["", "(ensure_ascii=True)", "(separators=(',', ':'))", "(sort_keys=True)"])
def test_tojson_writes_what_a_filter_of_jinja_makes_as_a_list(options: str) -> None:
    text = render("{{ values | map('upper') | tojson" + options + " }}", {"values": ["a"]})
    assert text == '["A"]'


async def test_a_template_may_collect_and_take_items_of_a_list(renderer: TemplateProcess) -> None:
    template = "{% set n = namespace(ids=[]) %}{% set _ = n.ids.append('f:0') %}{{ n.ids.pop(0) }}{{ n.ids }}"
    assert await renderer.render(template, HELLO) == "f:0[]", "Kimi K2 Thinking counts its calls so"


@pytest.mark.parametrize(
    "template",
    [
        "{% set found = [] %}{% set _ = found.append(1) %}{{ found }}",
        "{% set n = namespace(found=[]) %}{% set _ = n.found.append(1) %}{{ n.found }}",
        "{% macro add(found=[]) %}{% set _ = found.append(1) %}{{ found }}{% endmacro %}{{ add() }}",
        "{% if found is defined %}kept{% endif %}{% set found = messages %}[1]",
    ],
)
def test_a_template_keeps_nothing_of_what_it_rendered_before(template: str) -> None:
    assert [render(template, {"messages": HELLO}) for _ in range(3)] == ["[1]"] * 3


def test_a_template_is_compiled_once_for_many_prompts() -> None:
    template = CHATML + "{# of this test #}"
    _compiled.cache_clear()
    for text in ("a", "b", "c"):
        assert text in render(template, {"messages": [{"role": "user", "content": text}]})
    assert _compiled.cache_info().misses == 1


async def test_the_exception_of_a_template_is_in_the_error(renderer: TemplateProcess) -> None:
    with pytest.raises(RequestError, match="roles must alternate"):
        await renderer.render("{{ raise_exception('roles must alternate') }}", HELLO)


@pytest.mark.slow
async def test_an_endless_template_is_stopped_and_the_next_one_works(renderer: TemplateProcess) -> None:
    endless = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    with pytest.raises(RequestError, match="took more than 1 s"):
        await renderer.render(endless, HELLO)
    assert await renderer.render("{{ messages[0].content }}", HELLO) == "Hello"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no address space limit for a process of ours")
async def test_a_template_that_fills_memory_is_an_error_and_the_next_one_works(renderer: TemplateProcess) -> None:
    with pytest.raises(RequestError):
        await renderer.render("{{ 'a' * 2000000000 }}", HELLO)
    assert await renderer.render("{{ messages[0].content }}", HELLO) == "Hello"


async def test_an_endless_output_is_an_error(renderer: TemplateProcess) -> None:
    with pytest.raises(RequestError, match="longer than"):
        await renderer.render("{% for i in range(90000) %}{{ 'x' * 1000 }}{% endfor %}", HELLO)


async def test_a_renderer_that_others_kill_while_it_waits_or_works_fails_no_template(renderer: TemplateProcess) -> None:
    assert await renderer.render("{{ 1 }}", []) == "1"
    psutil.Process(_pid(renderer)).kill()
    assert await renderer.render("{{ 2 }}", []) == "2"
    rendering = asyncio.create_task(renderer.render("{% for _ in range(30000) %}3{% endfor %}", []))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    psutil.Process(_pid(renderer)).kill()
    assert await rendering == "3" * 30000


async def test_the_reply_of_a_cancelled_render_is_not_taken_for_the_next_one(renderer: TemplateProcess) -> None:
    await renderer.render("warm", HELLO)
    slow = asyncio.create_task(renderer.render(SLOW, HELLO))
    await asyncio.sleep(0.005)
    slow.cancel()
    with pytest.raises(asyncio.CancelledError):
        await slow
    assert await renderer.render("second", HELLO) == "second"


async def test_after_a_cancelled_render_the_next_one_needs_no_new_child(renderer: TemplateProcess) -> None:
    await renderer.render("warm", HELLO)
    process_id = _pid(renderer)
    slow = asyncio.create_task(renderer.render("{% for i in range(20000) %}x{% endfor %}", HELLO))
    await asyncio.sleep(0)
    slow.cancel()
    assert await renderer.render("second", HELLO) == "second"
    assert _pid(renderer) == process_id


async def test_a_renderer_closes_while_a_cancelled_render_still_runs(renderer: TemplateProcess) -> None:
    await renderer.render("warm", HELLO)
    slow = asyncio.create_task(renderer.render(SLOW, HELLO))
    await asyncio.sleep(0)
    slow.cancel()
    await renderer.close()
    assert await renderer.render("again", HELLO) == "again"


async def test_a_renderer_that_is_closed_while_its_child_starts_leaves_none(renderer: TemplateProcess) -> None:
    starting = asyncio.create_task(renderer.render("first", HELLO))
    for _ in range(2):  # it has the lock, and begins
        await asyncio.sleep(0)
    await renderer.close()
    assert renderer._child is None
    assert await starting == "first"


def _pid(renderer: TemplateProcess) -> int:
    child = renderer._child
    assert child is not None
    return child.pid


@pytest.mark.parametrize(
    "attack",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.clear() }}",
        "{% set n = namespace(a={}) %}{{ n.a.update(role=1) }}",
        "{{ cycler.__init__.__globals__.os }}",
        "{% include '/etc/passwd' %}",
    ],
)
def test_the_sandbox_rejects_attacks(attack: str) -> None:
    with pytest.raises((jinja2.TemplateError, TypeError)):
        render(attack, {"messages": []})


def test_blocks_are_trimmed_as_chat_templates_expect() -> None:
    assert render("{% if true %}\n  {% set x = 1 %}\nyes\n{% endif %}\n", {}) == "yes\n"


CALL = {"id": "1", "type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": "é"}}}


@pytest.mark.parametrize(
    "expression",
    ["{{ c.arguments }}", "{{ c.arguments | tojson }}", "{{ '' + c.arguments }}", "{{ c.arguments + '' }}"],
)
def test_arguments_of_a_call_are_json_wherever_a_template_prints_them(expression: str) -> None:
    template = f"{{% set c = messages[0].tool_calls[0].function %}}{expression}"
    assert render(template, {"messages": [{"role": "assistant", "tool_calls": [CALL]}]}) == '{"a": 1, "b": "é"}'


def test_arguments_of_a_call_are_an_object_where_a_template_indexes_them() -> None:
    template = "{% for k, v in messages[0].tool_calls[0].function.arguments | items %}{{ k }}={{ v }};{% endfor %}"
    assert render(template, {"messages": [{"role": "assistant", "tool_calls": [CALL]}]}) == "a=1;b=é;"


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("{{ content is none }}", "True"),
        ("<{{ content }}>", "<>"),
        ("{{ '</think>' in content }}", "False"),
        ("{{ 'a' + content }}", "a"),
    ],
)
def test_absent_content_is_none_in_a_test_and_empty_in_text(expression: str, text: str) -> None:
    template = f"{{% set content = messages[0].content %}}{expression}"
    assert render(template, {"messages": [{"role": "assistant", "content": None}]}) == text


def test_a_template_may_ask_for_the_tools_as_text_and_for_the_day() -> None:
    """FireFunction v2's fails without either; a time of day would change each prompt's beginning."""
    assert render("{{ '' + functions }} {{ '' + datetime }}", {"tools": None}).startswith("[] ")
    tools = [{"type": "function", "function": {"name": "now"}}]
    assert '"name": "now"' in render("{{ '' + functions }}", {"tools": tools})
    today = datetime.now().astimezone()
    assert render("{{ datetime }}", {}) == today.strftime("%b %d %Y")
    llama = "{% if not date_string is defined %}{% set date_string = '26 Jul 2024' %}{% endif %}{{ date_string }}"
    assert render(llama, {}) == today.strftime("%d %b %Y"), "Llama 3.1 and 3.3 ask for no other day"
    assert render(llama, {"date_string": "1 May 2025"}) == "1 May 2025"


def test_a_template_that_iterates_over_tools_gets_none_to_iterate_over() -> None:
    """As those of Command R+, Hermes 2 Pro and 3, which are made for tools."""
    assert render("{% for tool in tools %}{{ tool }}{% endfor %}.", {"tools": None}) == "."
    with pytest.raises(TypeError):
        render("{{ 1 + tools }}", {"tools": None})


def test_text_marked_for_training_is_part_of_the_prompt() -> None:
    assert render("a{% generation %}{{ 'b' }}{% endgeneration %}c", {}) == "abc"


@pytest.mark.skipif(sys.platform == "win32", reason="no such limits there")
def test_a_tighter_limit_of_memory_is_not_raised() -> None:
    program = """
import resource
from quantizer.system.memory_limit import limit_growth
resource.setrlimit(resource.RLIMIT_AS, (100 << 20, resource.RLIM_INFINITY))
limit_growth(256 << 20)
print(resource.getrlimit(resource.RLIMIT_AS)[0] >> 20)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True)
    assert done.stdout == "100\n"


def test_a_text_that_is_safe_leaves_what_is_added_to_it_as_it_is() -> None:
    """Functionary 3.1's template adds a tool's JSON to such a text; Jinja escapes it for HTML."""
    template = """{{ "Use '"|safe + tool.name + "'\n"|safe + tool | tojson }}{{ ("<b>"|safe) ~ tool.name | escape }}"""
    assert render(template, {"tool": {"name": "a&b"}}) == 'Use \'a&b\'\n{"name": "a&b"}<b>a&amp;b'
