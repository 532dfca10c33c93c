"""Damages pictures, sounds and documents in many ways, and sends each where a person or a client would.

    uv run python tests/battery/damage/refuse_media.py [--files 400] [--seed 1]

Pictures go to a real service with the guide and a small projector, in four dialects, and sounds to one with a small
model that hears; documents go to the parsers of attachments. Each must be read, or refused with a typed error and a
sentence; nothing may end a service or its worker, and whole files must be answered before and afterwards. Seeded.
"""

from __future__ import annotations

import argparse
import base64
import collections
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from app.chat.attachments.reader import read_data
from app.common.media_formats import MediaKind, format_of
from app.protocol.errors import RequestError
from quantizer.gguf.file_names import projector_name
from quantizer.system.errors import UserError
from quantizer.write.job import JobRequest, run_job
from tests.app.chat.attachments.files import docx_of, notebook_of, paragraph, pdf_of
from tests.app.engine.media.files import picture_file, sound_file
from tests.app.engine.media.test_damaged_media import damaged
from tests.battery.damage.hostile_json import damaged_bytes
from tests.battery.tally import finish
from tests.bench.served import Served, serve
from tests.quantizer.gguf_projectors import tiny_projector
from tests.quantizer.seeing_checkpoints import write_seeing

_GUIDE, _GUIDE_WIDTH = Path(__file__).parents[3] / "assets" / "guide" / "guide-Q8_0.gguf", 256
_DOCUMENT_SHARE = 0.3
_TIMEOUT_S = 300.0  # for a busy machine: what is answered sooner is not waited for
_DOCUMENTS: dict[str, bytes] = {
    "a.pdf": pdf_of(["A page", "Another"]),
    "a.docx": docx_of(paragraph("A paragraph") * 20),
    "a.ipynb": notebook_of({"cell_type": "markdown", "source": ["# A title"]}),
    "a.html": b"<html><head><title>A page</title></head><body><table><tr><td>1</td></tr></table></body></html>",
}
Body = Callable[[str, str], dict[str, Any]]


def _chat_completion(mime_type: str, data: str) -> dict[str, Any]:
    if mime_type.startswith("audio"):
        part: dict[str, Any] = {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
    else:
        part = {"type": "image_url", "image_url": {"url": f"data:{mime_type};base64,{data}"}}
    return {"messages": [{"role": "user", "content": [{"type": "text", "text": "What?"}, part]}], "max_tokens": 2}


def _response(mime_type: str, data: str) -> dict[str, Any]:
    part = {"type": "input_image", "image_url": f"data:{mime_type};base64,{data}"}
    return {"input": [{"role": "user", "content": [part]}], "max_output_tokens": 2}


def _message(mime_type: str, data: str) -> dict[str, Any]:
    source = {"type": "base64", "media_type": mime_type, "data": data}
    return {"max_tokens": 2, "messages": [{"role": "user", "content": [{"type": "image", "source": source}]}]}


def _ollama_chat(_mime_type: str, data: str) -> dict[str, Any]:
    message = {"role": "user", "content": "What?", "images": [data]}
    return {"messages": [message], "stream": False, "options": {"num_predict": 2}}


_DIALECTS: dict[str, Body] = {
    "/v1/chat/completions": _chat_completion,
    "/v1/responses": _response,
    "/v1/messages": _message,
    "/api/chat": _ollama_chat,
}


def ask(served: Served, path: str, data: bytes) -> str:
    """Send a picture or sound; return `read`, `refused: ` and why, or what is wrong with the reply."""
    mime_type = "audio/wav" if _is_sound(data) else "image/png"
    body = _DIALECTS[path](mime_type, base64.b64encode(data).decode()) | {"model": served.model()["id"]}
    try:
        reply = served.http.post(path, json=body, timeout=_TIMEOUT_S)
        content = reply.json()
    except (httpx.HTTPError, ValueError) as error:
        return f"not answered: {error!r}"
    if reply.status_code == httpx.codes.OK:
        return "read"
    is_told = bool(content.get("error")) and str(content).isprintable()
    is_refused = httpx.codes.is_client_error(reply.status_code) and is_told
    return f"refused: {content['error']}" if is_refused else f"{reply.status_code}: {reply.text[:300]}"


def _is_sound(data: bytes) -> bool:
    try:
        return format_of(data).kind is MediaKind.SOUND
    except RequestError:
        return False


def attach(name: str, data: bytes) -> str:
    """Attach a document; return `read`, `refused: ` and why, or what is wrong with the error."""
    try:
        read_data(data, name)
    except UserError as error:
        return f"refused: {error}" if str(error).isprintable() else f"refused badly: {str(error)!r}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "read"


def _damaged_document(chance: random.Random) -> tuple[str, str, bytes]:
    """Return the name of a document, what was done to it, and its bytes: damaged in one to four places."""
    name = chance.choice(list(_DOCUMENTS))
    data, done = _DOCUMENTS[name], []
    for _ in range(chance.randint(1, 4)):
        what, data = damaged_bytes(data, chance)
        done.append(what)
    return name, ", ".join(done), data


@dataclass(frozen=True, slots=True)
class _Services:
    """A service of a model that sees, and one of a model that hears."""

    seeing: Served
    hearing: Served

    def ask(self, data: bytes, chance: random.Random) -> tuple[str, str]:
        """Send a file to one that may read it; return to what, and what comes of it."""
        if _is_sound(data):
            return "/v1/chat/completions", ask(self.hearing, "/v1/chat/completions", data)
        path = chance.choice(list(_DIALECTS))
        return path, ask(self.seeing, path, data)

    def workers(self) -> list[int]:
        return [served.worker.pid for served in (self.seeing, self.hearing)]

    def faults_of_whole_files(self) -> list[str]:
        """Send whole files everywhere; return what is wrong."""
        answers = {f"a picture to {path}": ask(self.seeing, path, picture_file()) for path in _DIALECTS}
        answers["a sound"] = ask(self.hearing, "/v1/chat/completions", sound_file())
        answers |= {name: attach(name, data) for name, data in _DOCUMENTS.items()}
        return [f"{what}, whole: {answer}" for what, answer in answers.items() if answer != "read"]


@contextmanager
def _services(folder: Path) -> Iterator[_Services]:
    with ExitStack() as stack:
        yield _Services(
            *(
                stack.enter_context(serve(model, 0, "--threads", "1", "--ctx", "1024", idle_tune="false"))
                for model in (_seeing(folder), _hearing(folder))
            )
        )


def _seeing(folder: Path) -> Path:
    """Put the guide beside a projector of random weights."""
    model = Path(shutil.copy(_GUIDE, folder))
    tiny_projector(folder / projector_name(model.name, "F32"), _GUIDE_WIDTH)
    return model


def _hearing(folder: Path) -> Path:
    """Convert a small model with its projector."""
    checkpoint, model = write_seeing(folder / "checkpoint", "qwen2audio"), folder / "hearing" / "hears-F16.gguf"
    model.parent.mkdir()
    list(run_job(JobRequest(str(checkpoint), "F16", str(model), 1, False, projector="F16")))
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    chance = random.Random(options.seed)
    tally: collections.Counter[str] = collections.Counter()
    with tempfile.TemporaryDirectory() as folder, _services(Path(folder)) as services:
        workers, faults = services.workers(), services.faults_of_whole_files()
        for number in range(options.files):
            if chance.random() < _DOCUMENT_SHARE:
                name, what, data = _damaged_document(chance)
                kind, told, result = "document", f"{name}, {what}", attach(name, data)
            else:
                seed = 1_000_000 * options.seed + number
                path, result = services.ask(damaged(seed), chance)
                kind, told = "picture or sound", f"damaged({seed}) to {path}"
            tally[f"{kind} {result.partition(':')[0]}"] += 1
            if result.partition(":")[0] not in ("read", "refused"):
                faults.append(f"{told}: {result}")
        faults += services.faults_of_whole_files()
        if services.workers() != workers:
            faults.append("a worker died")
    for fault in faults:
        print(fault)
    for result, count in tally.most_common():
        print(f"{count:5}  {result}")
    finish(options.files, len(faults), options.seed)


if __name__ == "__main__":
    main()
