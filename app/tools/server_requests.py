"""What a server of others may ask for while it runs a call: an answer of the chat's model, and what a person fills in.

Owns the form (read from the flat JSON Schema that the protocol allows, with bounds), the question before each request,
and how many there may be. A server gets nothing that the person did not see and allow: rules of the chat hold for these
questions as for calls, and never those about its tools.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar
from urllib.parse import urlsplit

from app.common.terminal import printable, printable_line
from app.protocol.chat import Message, Tool
from app.tools.approval import ApprovalQuestion, ApprovalRule, Approver, Decision, Verdict, rule_of, verdict
from app.tools.tool import Preview, ServerTool
from quantizer.system.errors import UserError, registered

MAX_REQUESTS = 5  # of a call
MAX_SAMPLED_TOKENS = 1_024
SAMPLING, ELICITATION = "sampling/createMessage", "elicitation/create"
_MAX_CHARACTERS = 48_000  # of a request: a person reads it
_MAX_FIELDS, _MAX_OPTIONS = 20, 50
_MAX_LABEL, _MAX_VALUE = 300, 10_000
_TRUE, _FALSE = frozenset({"yes", "y", "true", "1"}), frozenset({"no", "n", "false", "0"})

FormValue = str | int | float | bool | list[str]
_Value = TypeVar("_Value", str, int, float, list[str])
FieldKind = Literal["text", "number", "integer", "yes or no", "choice", "choices"]


@registered
class RequestRefusedError(UserError):
    """A server asked for something that it does not get."""


@dataclass(frozen=True, slots=True)
class FormField:
    """A value that a server asks for. `options` are the names of a choice by their values; `least` and `most` bound a
    number, the characters of a text or the count of choices. Texts are printable."""

    name: str
    title: str
    description: str = ""
    kind: FieldKind = "text"
    options: Mapping[str, str] = field(default_factory=dict)
    default: str = ""
    is_required: bool = False
    least: float = -math.inf
    most: float = math.inf

    @property
    def hint(self) -> str:
        """What may be typed, in a few words."""
        if self.kind == "choice":
            words = f"one of: {', '.join(self.options.values())}"
        elif self.kind == "choices":
            words = f"any of, separated by commas: {', '.join(self.options.values())}"
        else:
            words = self.kind
        return words if self.is_required else f"{words}; may stay empty"

    def value_of(self, typed: str) -> FormValue | None:
        """Return the value that was typed, None for none. Raises UserError for one that the field does not take."""
        text = typed.strip()
        if not text:
            if self.is_required:
                raise UserError(f"{self.title} must be filled in.")
            return None
        if self.kind == "text":
            return self._bounded(text, len(text), "characters")
        if self.kind == "yes or no":
            if text.lower() not in _TRUE | _FALSE:
                raise UserError(f"{self.title} is yes or no.")
            return text.lower() in _TRUE
        if self.kind == "choice":
            return self._option(text)
        if self.kind == "choices":
            chosen = [self._option(part.strip()) for part in text.split(",") if part.strip()]
            return self._bounded(chosen, len(chosen), "choices")
        try:
            number = int(text) if self.kind == "integer" else float(text)
        except ValueError:
            raise UserError(
                f"{self.title} must be {'a whole number' if self.kind == 'integer' else 'a number'}."
            ) from None
        if not math.isfinite(number):
            raise UserError(f"{self.title} must be a number.")
        return self._bounded(number, number, "")

    def _option(self, text: str) -> str:
        for value, name in self.options.items():
            if text.lower() in (value.lower(), name.lower()):
                return value
        raise UserError(f"{self.title} must be {self.hint}.")

    def _bounded(self, value: _Value, size: float, unit: str) -> _Value:
        if not self.least <= size <= self.most:
            bounds = ((self.least, "at least"), (self.most, "at most"))
            words = " and ".join(f"{word} {bound:g}" for bound, word in bounds if math.isfinite(bound))
            raise UserError(f"{self.title} must have {words} {unit}." if unit else f"{self.title} must be {words}.")
        return value


@dataclass(frozen=True, slots=True)
class Form:
    """What `server` asks the person to fill in; `message` says why, in its words."""

    server: str
    message: str
    fields: tuple[FormField, ...]

    def values_of(self, typed: Mapping[str, str]) -> dict[str, FormValue]:
        """Return the values of what was typed by the names of fields, without those that stay empty. Raises
        WrongFieldError for the first field that does not take what was typed."""
        values: dict[str, FormValue] = {}
        for each in self.fields:
            try:
                value = each.value_of(typed.get(each.name, ""))
            except UserError as error:
                raise WrongFieldError(each, error) from error
            if value is not None:
                values[each.name] = value
        return values


class WrongFieldError(UserError):
    """A `field` of a form does not take what was typed."""

    def __init__(self, field: FormField, error: UserError) -> None:
        super().__init__(error.cause, error.remedy)
        self.field = field


@dataclass(frozen=True, slots=True)
class SamplingRequest:
    """What a server wants the model to answer; `max_tokens` is its wish."""

    messages: tuple[Message, ...]
    system: str = ""
    max_tokens: int = MAX_SAMPLED_TOKENS
    temperature: float | None = None
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SampledText:
    """An answer of `model`; `is_cut` says that its limit of tokens ended it."""

    text: str
    model: str
    is_cut: bool = False


class RequestHelper(Protocol):
    """A chat, as far as servers may use it once the person agreed."""

    async def fill(self, form: Form) -> Mapping[str, FormValue] | None:
        """Return what the person filled in; None where they did not."""

    async def sample(self, request: SamplingRequest) -> SampledText:
        """Return the answer of the chat's model. Raises UserError."""


def read_form(server: str, message: str, schema: Mapping[str, Any]) -> Form:
    """Return the form of an elicitation: an object of flat properties. Raises RequestRefusedError for another one."""
    properties = schema.get("properties", {})
    required = schema.get("required", [])
    if not isinstance(properties, Mapping) or not isinstance(required, list):
        raise RequestRefusedError("The form is malformed.")
    if len(properties) > _MAX_FIELDS or len(message) > _MAX_CHARACTERS:
        raise RequestRefusedError(f"The form is too large: a person fills in {_MAX_FIELDS} fields at most.")
    fields = tuple(_field(str(name), value, is_required=name in required) for name, value in properties.items())
    return Form(server, printable(message), fields)


def _field(name: str, schema: object, *, is_required: bool) -> FormField:
    if not isinstance(schema, Mapping):
        raise RequestRefusedError("The form is malformed.")
    options, kind = _options(schema), _kind(schema)
    if kind is None or (kind in ("choice", "choices") and not 0 < len(options) <= _MAX_OPTIONS):
        raise RequestRefusedError(f"The form has a field of a kind that nobody knows: {_label(name)}.")
    keys = {"text": ("minLength", "maxLength"), "choices": ("minItems", "maxItems")}.get(kind, ("minimum", "maximum"))
    least, most = (_number(schema.get(key)) for key in keys)
    most = math.inf if most is None else most
    default = schema.get("default", "")
    if isinstance(default, bool):
        default = "yes" if default else "no"
    elif isinstance(default, list):
        default = ", ".join(options.get(str(each), str(each)) for each in default)
    elif kind == "choice":
        default = options.get(str(default), "")
    return FormField(
        name=name,
        title=_label(schema.get("title") or name),
        description=_label(schema.get("description", "")),
        kind=kind,
        options=options,
        default=printable_line(str(default)[:_MAX_VALUE]),
        is_required=is_required,
        least=-math.inf if least is None else least,
        most=min(_MAX_VALUE, most) if kind == "text" else most,
    )


def _kind(schema: Mapping[str, Any]) -> FieldKind | None:
    kind = schema.get("type")
    if kind == "string":
        return "choice" if "enum" in schema or "oneOf" in schema else "text"
    kinds: dict[object, FieldKind] = {
        "number": "number", "integer": "integer", "boolean": "yes or no", "array": "choices",
    }  # fmt: skip
    return kinds.get(kind) if isinstance(kind, str) else None


def _options(schema: Mapping[str, Any]) -> dict[str, str]:
    """Return the names of a choice by their values, in the forms that the protocol has had."""
    inside = schema.get("items") if schema.get("type") == "array" else schema
    if not isinstance(inside, Mapping):
        return {}
    named = inside.get("oneOf") or inside.get("anyOf")
    if isinstance(named, list):
        pairs = [(each.get("const"), each.get("title")) for each in named if isinstance(each, Mapping)]
    else:
        values, names = inside.get("enum"), inside.get("enumNames")
        values = values if isinstance(values, list) else []
        names = names if isinstance(names, list) and len(names) == len(values) else values
        pairs = list(zip(values, names, strict=True))
    return {value: _label(name or value) for value, name in pairs if isinstance(value, str)}


def _label(value: object) -> str:
    return printable_line(str(value)[:_MAX_LABEL])


def _number(value: object) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else None  # type: ignore[arg-type]


class ServerRequests:
    """What the server of one call may ask for. `rules` are those of the chat, `gained` what the person decided for
    further requests; the time of the call stands still within `paused`. Permission to ask the model is for the
    `identity` of a server, what is started or reached: another one of its name asks anew."""

    def __init__(
        self,
        approver: Approver,
        helper: RequestHelper,
        rules: Sequence[ApprovalRule],
        paused: Callable[[], AbstractContextManager[object]],
    ) -> None:
        self.gained: list[ApprovalRule] = []
        self._approver = approver
        self._helper = helper
        self._rules = tuple(rules)
        self._paused = paused
        self._n_asked = 0

    async def fill(self, server: str, message: str, schema: Mapping[str, Any]) -> Mapping[str, FormValue] | None:
        """Return what the person fills in; None where they do not. Raises RequestRefusedError."""
        form = read_form(server, message, schema)
        asked = [f"  {each.title}: {each.description or each.hint}" for each in form.fields]
        text = "\n".join((form.message, *asked))
        if not await self._is_allowed(server, ELICITATION, "form", f"{server} to ask you", text, {"form": message}):
            return None
        if not form.fields:
            return {}
        with self._paused():
            return await self._helper.fill(form)

    async def agree_to_address(self, server: str, message: str, url: str) -> bool:
        """Return whether the person agrees to open an address; it is shown, and nothing opens it. Raises
        RequestRefusedError for what is no web address."""
        try:
            parts = urlsplit(url)
        except ValueError:
            parts = urlsplit("")
        if parts.scheme not in ("http", "https") or not parts.hostname or url != printable_line(url):
            raise RequestRefusedError("The address is no web address.")
        host = (
            f"It is at {parts.hostname}. Nothing is sent there by localllm: open it in your browser, then allow this."
        )
        text = f"{printable(message)}\n\n  {url}\n\n{host}"
        title = f"{server} to send you to an address"
        return await self._is_allowed(server, ELICITATION, "form", title, text, {"url": url})

    async def sample(self, server: str, request: SamplingRequest, identity: str = "") -> SampledText:
        """Return an answer of the model. Raises RequestRefusedError where the person or a bound does not allow it."""
        n_tokens = max(1, min(request.max_tokens, MAX_SAMPLED_TOKENS))
        turns = [f"{message.role}: {message.content}" for message in request.messages]
        text = "\n\n".join(([f"system: {request.system}"] if request.system else []) + turns)
        if len(text) > _MAX_CHARACTERS:
            raise RequestRefusedError(f"The question has {len(text):,} characters, more than a person reads.")
        title = f"{server} to ask the model"
        about = {"max_tokens": n_tokens}
        if not await self._is_allowed(server, SAMPLING, "sampling", title, text, about, identity):
            raise RequestRefusedError("The user did not allow it.")
        bounded = SamplingRequest(request.messages, request.system, n_tokens, request.temperature, request.stop[:4])
        with self._paused():
            return await self._helper.sample(bounded)

    async def _is_allowed(
        self,
        server: str,
        method: str,
        kind: Literal["form", "sampling"],
        title: str,
        text: str,
        about: Mapping[str, Any],
        identity: str = "",
    ) -> bool:
        """Return whether the person allows a request, now or before. Raises RequestRefusedError for one too many."""
        self._n_asked += 1
        if self._n_asked > MAX_REQUESTS:
            raise RequestRefusedError(f"This call has asked {MAX_REQUESTS} times already.")
        if len(text) > _MAX_CHARACTERS:
            raise RequestRefusedError("It asks more than a person reads.")
        # As a tool of the server: the rules of the chat, and what is drawn of a question, are the same.
        fingerprint = hashlib.sha256(f"{identity}\n{method}".encode()).hexdigest()
        tool = ServerTool(server, method, Tool(method, "", {}), fingerprint=fingerprint)
        by_rules = verdict((*self._rules, *self.gained), tool)
        if by_rules is not Verdict.ASK:
            return by_rules is Verdict.ALLOW
        question = ApprovalQuestion(tool, json.dumps(about, ensure_ascii=False), Preview(kind, title, text))
        with self._paused():
            decision = await self._approver.ask(question)
        if (rule := rule_of(decision, question)) is not None:
            self.gained.append(rule)
        return decision not in (Decision.DENY, Decision.NEVER)
