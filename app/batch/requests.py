"""The requests of a batch: a file with one on each line, as OpenAI's Batch API and vLLM's `run-batch` read it.

Owns what a line must be, and the order in which lines are answered. Pure: it knows no server and writes nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.common.json_limits import too_many_parts
from quantizer.system.errors import UsageError

MAX_FILE_BYTES = 1 << 30
MAX_ID_CHARACTERS = 512
_MOST_FAULTS = 20
_MOST_SHOWN = 60  # characters of what a file holds, in an error
_FIELDS = frozenset({"custom_id", "method", "url", "body"})
# Fields that make no sense where nobody is connected.
_NOT_IN_A_BATCH = {
    "stream": "Answers of a batch are not streamed: leave `stream` out.",
    "background": "A batch waits for its answers: leave `background` out.",
}


def _json(*values: object) -> str:
    return json.dumps(values, ensure_ascii=False)


# What prompts begin with, by the URL: lines with equal beginnings are answered one after another. Tools come first:
# templates print them into the system prompt.
ENDPOINTS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "/v1/chat/completions": lambda body: _json(body.get("tools"), body.get("messages")),
    "/v1/completions": lambda body: _json(body.get("prompt")),
    "/v1/responses": lambda body: _json(body.get("instructions"), body.get("tools"), body.get("input")),
    "/v1/embeddings": lambda _body: "",  # each is computed whole
}


@dataclass(frozen=True, slots=True)
class LineFault:
    """What is wrong with a line, counted from 1; `code` is OpenAI's word for it."""

    number: int
    code: str
    message: str
    param: str | None = None


class BatchFileError(UsageError):
    """A file that is no batch; `faults` are the first ones."""

    def __init__(self, name: str, faults: Sequence[LineFault]) -> None:
        first = faults[0]
        n_more = f" {len(faults) - 1} more lines are wrong." if len(faults) > 1 else ""
        super().__init__(f"{name}, line {first.number}: {first.message}{n_more}", "Correct the file.")
        self.faults = tuple(faults)


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """The request on line `number`. `request_id` is made of all that is asked: one that changed has another."""

    number: int
    custom_id: str
    url: str
    text: str  # its body, as JSON: a file of large bodies takes less memory so
    request_id: str

    @property
    def body(self) -> dict[str, Any]:
        body: dict[str, Any] = json.loads(self.text)
        return body


def read_requests(name: str, lines: Iterable[bytes], model: str = "", url: str = "") -> list[BatchRequest]:
    """Return the requests of the file `name`, in the order to answer them. `model` replaces the model of each, `url` is
    the only one allowed. Raises BatchFileError with the numbers of the lines that are wrong, UsageError for an empty
    file."""
    found: list[tuple[tuple[str, str, str], BatchRequest]] = []
    for body, request in each_request(name, lines, model, url):
        # By model first: two may not fit into memory together.
        found.append(((str(body.get("model")), request.url, ENDPOINTS[request.url](body)), request))
    found.sort(key=lambda pair: (pair[0], pair[1].number))
    return [request for _, request in found]


def each_request(
    name: str, lines: Iterable[bytes], model: str = "", url: str = ""
) -> Iterator[tuple[dict[str, Any], BatchRequest]]:
    """Yield the body of each request and the request, in the order of the file, of which no more than a line is held.
    Raises as `read_requests` does, behind what was right."""
    numbers: dict[str, int] = {}
    faults: list[LineFault] = []
    for number, line in enumerate(lines, 1):
        data = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
        if not data.strip():
            continue
        fields = _read(number, data, url)
        if isinstance(fields, dict) and (first := numbers.get(fields["custom_id"])):
            message = f"custom_id {fields['custom_id'][:_MOST_SHOWN]!r} is that of line {first} too."
            fields = LineFault(number, "duplicate_custom_id", message, "custom_id")
        if isinstance(fields, LineFault):
            faults.append(fields)
            if len(faults) >= _MOST_FAULTS:
                break
            continue
        custom_id, line_url, body = fields["custom_id"], fields["url"], fields["body"]
        numbers[custom_id] = number
        if model:
            body["model"] = model
        text = json.dumps(body, sort_keys=True)
        digest = hashlib.sha256(_json(custom_id, line_url, text).encode("utf-8", "surrogatepass")).hexdigest()
        if not faults:
            yield body, BatchRequest(number, custom_id, line_url, text, f"batch_req_{digest[:32]}")
    if faults:
        raise BatchFileError(name, faults)
    if not numbers:
        raise UsageError(f"{name} has no requests.", "Write one on each line, as JSON.")


def _read(number: int, line: bytes, only_url: str) -> dict[str, Any] | LineFault:
    """Return the fields of a line, or what is wrong with it."""
    if too_many := too_many_parts(line):  # which the service would refuse later
        parts, n, most = too_many
        message = f"This has {n:,} {parts}, a request has at most {most:,}."
        return LineFault(number, "invalid_json_line", message)
    try:
        fields = json.loads(line, parse_constant=_refuse_constant)
        json.dumps(fields, ensure_ascii=False).encode()  # refuses half a surrogate pair
    except (ValueError, RecursionError) as error:
        return LineFault(number, "invalid_json_line", f"This is not JSON: {error}.")
    if not isinstance(fields, dict):
        return LineFault(number, "invalid_json_line", "This is not a JSON object.")
    custom_id, url, body = fields.get("custom_id"), fields.get("url"), fields.get("body")
    unknown = next((name[:_MOST_SHOWN] for name in fields if name not in _FIELDS), None)
    is_id = isinstance(custom_id, str) and 0 < len(custom_id) <= MAX_ID_CHARACTERS
    is_url = isinstance(url, str) and url in ENDPOINTS
    wrong = (
        (unknown is not None, "unknown_parameter", f"A request has no field {unknown!r}.", unknown),
        (
            not is_id,
            "invalid_custom_id",
            f"custom_id must be a text of 1 to {MAX_ID_CHARACTERS} characters.",
            "custom_id",
        ),
        (fields.get("method", "POST") != "POST", "invalid_method", "method must be POST.", "method"),
        (not is_url, "invalid_url", f"url must be one of {', '.join(ENDPOINTS)}.", "url"),
        (bool(only_url) and url != only_url, "mismatched_endpoint", f"url must be the batch's: {only_url}.", "url"),
        (not isinstance(body, dict), "invalid_body", "body must be a JSON object.", "body"),
        *(
            (isinstance(body, dict) and bool(body.get(name)), "invalid_body", remedy, f"body.{name}")
            for name, remedy in _NOT_IN_A_BATCH.items()
        ),
    )
    faults = (LineFault(number, code, message, param) for is_wrong, code, message, param in wrong if is_wrong)
    return next(faults, fields)


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is not a JSON number")
