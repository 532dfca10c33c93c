"""Readers of files that a person, another program or an earlier version wrote, and of what hubs and indexes answer."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.battery.fuzz.target import Form, Reader, Target, document

__all__ = ["TARGETS"]


def _settings(folder: Path) -> Reader:
    from app.settings.settings import SETTINGS, edit_toml, load_settings, setting_sources

    path = folder / "config.toml"
    environment = {"LOCALLLM_CONFIG": str(path)}

    def read(data: bytes) -> None:
        path.write_bytes(data)
        load_settings({}, environment)
        setting_sources({}, environment)
        text = data.decode()
        path.write_text(edit_toml(text, "port", 8081), newline="")
        assert load_settings({}, environment).port == 8081
        assert "port" in SETTINGS

    return read


def _settings_files() -> list[bytes]:
    return [
        b'# mine\nport = 8080\nmodel = "guide"\ngpu = true\n', b'kv_type = "q8_0"\nctx = 4096\nmodels_folders = ["/a"]\n',
        b'[keys]\nquit = "ctrl+q"\n', b'origins = "app://"\nkeep_alive = "5m"\nstate_memory = "1GiB"\n',
    ]  # fmt: skip


def _presets(folder: Path) -> Reader:
    from app.chat.presets import Presets

    presets = Presets(folder)

    def read(data: bytes) -> None:
        presets._path.write_bytes(data)
        found = presets.all()
        presets.save("new", next(iter(found.values())) if found else presets.get("precise"))
        saved = presets.all()
        assert {name: saved.get(name) for name in found if name != "new"} == {
            k: v for k, v in found.items() if k != "new"
        }

    return read


def _preset_files() -> list[bytes]:
    return [
        b'[a]\nsystem = "Be brief."\ntemperature = 0.5\n', b'["b c"]\ntop_k = 40\nstop = ["x"]\nthink = "low"\n',
        b'[d]\njson_schema = "{}"\nseed = -1\nmax_tokens = 9\n',
    ]  # fmt: skip


_TOML_WORDS = (
    "=",
    "[",
    "]",
    "[[",
    "'''",
    '"""',
    "inf",
    "nan",
    "0x",
    "1979-05-27T07:32:00Z",
    "{",
    "}",
    ".",
    "true",
    "\\u",
)


def _mcp_file(folder: Path) -> Reader:
    from app.tools.mcp.config import McpFile, config_of, expanded, identity_of, launch_entry
    from quantizer.system.errors import UserError

    file = McpFile(folder / "mcp.json")

    def read(data: bytes) -> None:
        file.path.write_bytes(data)
        file.path.chmod(0o600)
        for server in file.servers():
            assert (server.launch is None) == bool(server.problem)
            if server.launch is None:
                continue
            identity_of(server.launch)
            again = config_of(server.name, launch_entry(server.launch, timeout_s=server.timeout_s))
            assert (again.launch, again.timeout_s) == (server.launch, server.timeout_s), "written otherwise than read"
            try:
                expanded(server.launch, {"HOME": "/h"})
            except UserError as error:
                assert error.remedy

    return read


def _mcp_files() -> list[bytes]:
    made: list[Any] = [
        {"mcpServers": {"a": {"command": "x", "args": ["y", "${HOME}"], "env": {"A": "${env:B:-c}"}, "cwd": "/"}}},
        {"mcpServers": {"b": {"url": "https://a.b/c", "headers": {"A": "b"}, "type": "sse", "timeout_s": 9}}},
        {"mcpServers": {"c": {"command": "x", "disabled": True}, "d": {}}, "other": 1},
    ]
    return [json.dumps(each).encode() for each in made]


def _index(folder: Path) -> Reader:
    """Read a record of the index of models with these facts, and show it as a list does."""
    from app.library.local.index import Index

    index = Index(folder)

    def read(data: bytes) -> None:
        index._connection.execute("DELETE FROM models")
        row = (b"/m.gguf", "stamp", data.decode("utf-8", "replace"), "")
        index._connection.execute("INSERT INTO models VALUES (?, ?, ?, ?)", row)
        facts = index.records()[b"/m.gguf"].facts
        if facts is not None:
            _check_types(facts)

    return read


def _check_types(value: Any) -> None:
    """Check that the fields of a dataclass have the types that they declare; they are counted with and shown."""
    from dataclasses import fields, is_dataclass

    for item in fields(value):
        part = getattr(value, item.name)
        kind = str(item.type).partition("[")[0].partition(" |")[0]
        plain = {"int": int, "float": (int, float), "str": str, "bool": bool, "tuple": tuple}.get(kind)
        is_right = plain is None or isinstance(part, plain) or (part is None and "None" in str(item.type))
        assert is_right and not (plain in (int, (int, float)) and isinstance(part, bool)), f"{item.name} is {part!r}"
        if is_dataclass(part):
            _check_types(part)


def _facts() -> list[bytes]:
    from dataclasses import asdict, fields

    from app.protocol.library import ModelFacts

    zero: dict[str, Any] = {"int": 1, "float": 0.5, "str": "a", "bool": False}
    values = {item.name: zero.get(str(item.type).partition(" |")[0], ()) for item in fields(ModelFacts)}
    return [json.dumps(asdict(ModelFacts(**values))).encode(), b"", b"{}"]


def _state(folder: Path) -> Reader:
    """Read a file of a saved state at the start of an engine, and the state in it."""
    from app.engine.cache.state_store import read_state, states_in

    path = folder / "0a-chat"

    def read(data: bytes) -> None:
        path.write_bytes(data)
        for name, key, n_bytes in states_in(folder):
            assert name == path.name and n_bytes == len(data)
            state = read_state(path, key)
            assert state is None or len(state) < len(data)

    return read


def _states() -> list[bytes]:
    import tempfile

    import numpy as np

    from app.engine.cache.state_store import StateKey, write_state

    keys = (StateKey("", np.array([1, 2, 3], np.int32)), StateKey("n", np.array([], np.int32), is_checkpoint=True))
    with tempfile.TemporaryDirectory() as folder:
        for number, key in enumerate(keys):
            write_state(Path(folder), f"{number}-c", key, memoryview(b"state"), 1 << 20)
        return [path.read_bytes() for path in sorted(Path(folder).iterdir())]


def _machine_files(folder: Path) -> Reader:
    """Read the measurements of this machine: of models, of its devices, of earlier loads and runs."""
    from app.engine.load.machine import known_speeds
    from app.engine.load.machine_file import MachineFile, this_build
    from app.engine.load.planner import ExcessUsage
    from app.engine.load.run_history import RunHistory, measured_runs
    from app.engine.tuning.tune_results import DEFAULT_WORKLOAD, TuneFile, choose
    from app.protocol.codec import decode_checked

    def read(data: bytes) -> None:
        bundled = document(data)
        parts = bundled if isinstance(bundled, dict) else {}
        runs = parts.get("runs")
        for name in ("tune", "devices", "bandwidth", "loads"):
            here = parts.get(name)
            (folder / f"{name}.json").write_text(json.dumps({this_build(): here, "m": here, f"{this_build()}, ": here}))
        (folder / "runs.jsonl").write_text("\n".join(map(json.dumps, runs if isinstance(runs, list) else [runs])))
        tune = TuneFile(folder, "m")
        for model in tune.names():
            measured, work = tune.measured(model), tune.work(model)
            tune.step_ratios(model)
            if measured:
                choose(measured, measured[0], work, is_used=work != DEFAULT_WORKLOAD)
        known_speeds(folder)
        loads = MachineFile(folder / "loads.json", "m")
        for name in loads.entries():
            with suppress(ValueError):  # as a load does
                _check_types(decode_checked(ExcessUsage, loads.entry(name)))
        MachineFile(folder / "bandwidth.json", "m").entries()
        measured_runs(RunHistory(folder).records(), 2)

    return read


def _measurements() -> list[bytes]:
    setting = {"n_threads": 2, "flash_attention": False, "extra_buffers": True, "n_ubatch": 512, "kv_type": "f16"}
    measured = {"setting": setting, "prefill": 9.5, "decode": [[0, 5.0], [512, 4.0]], "step_ratios": [[2, 1.2]]}
    work = {"n_prefill": 9, "n_decode": 9, "depth": 9, "n_step": 1.0}
    tune = {"k": {"name": "m.gguf", "measured": [measured, measured], "work": work, "used_steps": {"2": 1.5}}}
    run = {
        "machine": "m", "n_threads": 2, "model": "k", "kind": "decode", "depth": 9, "tokens_per_s": 5.0,
        "work": {"read_bytes": {"CPU": 1e9}, "attention_bytes": 1.0, "n_layers": 4}, "others_share": 0.1,
    }  # fmt: skip
    made = [
        {"tune": tune},
        {"runs": [run, {**run, "kind": "prefill", "n_ubatch": 512}]},
        {"loads": {"k": {"gpu_bytes": 1}}},
    ]
    return [json.dumps(each).encode() for each in made]


def _chats(folder: Path) -> Reader:
    """Read exports of localllm and other apps, and export what was read."""
    from app.chat.files import EXPORTS, read_chats
    from app.chat.formats.json_reader import ImportedChat

    path = folder / "chats.json"

    def read(data: bytes) -> None:
        path.write_bytes(data)
        for item in read_chats(path):
            if not isinstance(item, ImportedChat):
                continue
            contents = item.contents
            size = 0
            for export in EXPORTS.values():
                for piece in export([item.transcript], lambda file, contents=contents: contents[file.sha256]):  # type: ignore[misc]
                    size += len(piece.encode("utf-8", "surrogatepass"))
            assert size < 20_000 + 60 * len(data), f"{len(data)} bytes became {size}"
            by_id = {message.id: message for message in item.transcript.messages}
            assert item.transcript.chat.leaf_id in by_id
            assert all(message.parent_id is None or message.parent_id in by_id for message in by_id.values())

    return read


def _exports() -> list[bytes]:
    own_message = {
        "id": 1, "parent_id": None, "role": "user", "content": "a", "state": "finished", "created_ms": 1_700_000_000_000,
        "attachments": [{"name": "p", "content": "", "media": [{"base64": "iVBORw0KGgo="}]}], "stats": {"n": 1},
    }  # fmt: skip
    call = {"call_id": "c", "name": "look", "arguments": "{}"}
    result = {"call_id": "c", "tool": "look", "title": "look", "outcome": "done", "n_bytes": 1, "changes": []}
    own = {
        "format": "localllm-chat", "version": 3, "title": "t", "leaf_id": 3,
        "settings": {"system": "s", "options": {"seed": 1}, "tools": {"rules": [{"scope": "tool", "tool": "x", "is_denied": True}]}},
        "messages": [
            own_message, {"id": 2, "parent_id": 1, "role": "assistant", "content": "", "reasoning": "r", "calls": [call]},
            {"id": 3, "parent_id": 2, "role": "tool", "content": "x", "result": result},
        ],
    }  # fmt: skip
    webui_answer = (
        '<details type="reasoning" done="true"><summary>T</summary>\n> r\n</details>\nb'
        '<details type="tool_calls" id="1" name="look" arguments="{}" result="&quot;x&quot;">\n</details>c'
    )
    webui = {
        "id": "u", "title": "t", "pinned": True, "created_at": 1700000000,
        "chat": {"models": ["m"], "history": {"currentId": "2", "messages": {
            "1": {"parentId": None, "role": "user", "content": "a", "files": [{"url": "data:image/png;base64,iVBORw0KGgo="}]},
            "2": {"parentId": "1", "role": "assistant", "content": webui_answer, "model": "m", "timestamp": 1},
        }}},
    }  # fmt: skip
    chatgpt = {
        "title": "t", "current_node": "c", "create_time": 1700000000.5, "mapping": {
            "a": {"parent": None, "message": None},
            "b": {"parent": "a", "message": {"author": {"role": "user"}, "content": {"content_type": "text", "parts": ["a"]}}},
            "t": {"parent": "b", "message": {"author": {"role": "assistant"}, "content": {"content_type": "thoughts", "thoughts": [{"content": "x"}]}}},
            "c": {"parent": "t", "message": {"author": {"role": "assistant"}, "content": {"content_type": "code", "language": "py", "text": "1"}}},
        },
    }  # fmt: skip
    plain = {"messages": [
        {"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "a"}]},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "c", "function": {"name": "look", "arguments": {"a": 1}}}]},
        {"role": "tool", "tool_call_id": "c", "content": "x"},
    ]}  # fmt: skip
    return [json.dumps([each]).encode() for each in (own, webui, chatgpt, plain)]


_CHAT_WORDS = (
    "messages", "role", "content", "parent_id", "parentId", "parent", "mapping", "message", "author", "parts", "thoughts",
    "content_type", "history", "currentId", "tool", "user", "assistant", "summary", "result", "calls", "attachments",
    "<details type=\"tool_calls\" ", "</details>", "```", "data:image/png;base64,iVBORw0KGgo=", "images", "tool_calls",
)  # fmt: skip


def _recipe(folder: Path) -> Reader:
    from app.library.local.model_sampling import parse_generation_config
    from app.library.local.recipe import read_recipe, recipe_path
    from app.protocol.chat import Message

    model = folder / "m.gguf"

    def read(data: bytes) -> None:
        parse_generation_config(data)
        recipe_path(model).write_bytes(data)
        for message in read_recipe(model).begin([Message("user", "a")]):
            assert isinstance(message.content, str)

    return read


def _recipes() -> list[bytes]:
    recipe = {
        "base": "guide", "system": "s", "template": "", "license": "", "parameters": {"temperature": 0.5, "stop": ["a"]},
        "messages": [{"role": "user", "content": "a"}],
    }  # fmt: skip
    generation = {"temperature": 0.6, "top_p": 0.9, "top_k": 40, "repetition_penalty": 1.1, "do_sample": True}
    return [json.dumps(each).encode() for each in (recipe, generation)]


def _manifest(folder: Path) -> Reader:
    """Read a manifest of Ollama, from its folder and from a registry, and the layers of a recipe."""
    from app.library.external import BAD_LAYERS, _layers_of, ollama_recipe
    from app.library.hub.ollama_registry import _layer

    path = folder / "manifest"
    number = 0

    def read(data: bytes) -> None:
        nonlocal number
        number += 1
        path.with_name(f"m{number % 7}").write_bytes(data)
        for _, digest in _layers_of(path.with_name(f"m{number % 7}")):
            assert len(digest) == 64
        try:
            found = [_layer(entry) for entry in document(data)["layers"]]
        except (KeyError, TypeError, ValueError, AttributeError):  # as `fetch_layers` does
            found = []
        assert all(layer.n_bytes >= 0 for layer in found)
        text = data.decode("utf-8", "replace")
        for kind in ("params", "messages"):
            texts: dict[str, Sequence[str]] = dict.fromkeys(("system", "params", "messages", "license"), ())
            try:
                ollama_recipe({**texts, kind: [text]})
            except BAD_LAYERS:
                continue

    return read


def _manifests() -> list[bytes]:
    kinds = ("model", "params", "system", "license", "projector", "adapter", "messages")
    layers = [
        {"mediaType": f"application/vnd.ollama.image.{kind}", "digest": f"sha256:{'0a' * 32}", "size": 9}
        for kind in kinds
    ]
    made: list[Any] = [
        {"schemaVersion": 2, "config": {}, "layers": layers}, {"temperature": 0.5, "stop": ["a"]},
        [{"role": "user", "content": "a"}],
    ]  # fmt: skip
    return [json.dumps(each).encode() for each in made]


def _repository(folder: Path) -> Reader:
    """Read what the hub says of a repository, and choose among its files."""
    from app.library.hub.access import HubAccess
    from app.library.hub.repository import checkpoint_files, parse_repository
    from app.library.hub.selection import families_of
    from quantizer.system.errors import UserError

    access = HubAccess("https://hub")

    def read(data: bytes) -> None:
        repository = parse_repository(document(data))
        for family in families_of(repository.models):
            for model in family:
                repository.head_of(model)
                repository.projectors_of(model, "F16")
                assert model.files
        for file in repository.files:
            url = repository.remote(file, access).url
            assert url.startswith("https://hub/") and "/../" not in url
        assert all(each.name for each in repository.sidecars)
        try:
            checkpoint_files(repository)
        except UserError as error:
            assert error.remedy

    return read


def _repositories() -> list[bytes]:
    names = (
        "a-Q4_K_M.gguf", "a-Q8_0-00001-of-00002.gguf", "a-Q8_0-00002-of-00002.gguf", "mmproj-a-F16.gguf", "b/c-BF16.gguf",
        "config.json", "model-00001-of-00002.safetensors", "tokenizer.json", "1_Dense/model.safetensors", "a-mtp-Q8_0.gguf",
    )  # fmt: skip
    files = [{"rfilename": name, "size": 9, "lfs": {"sha256": "0a" * 32, "size": 9}} for name in names]
    plain = [{"rfilename": "README.md", "size": 1, "blobId": "0a" * 20}, *files[:3]]
    made = [
        {"id": "a/b", "sha": "0a" * 20, "siblings": files, "cardData": {"base_model": ["a/c"]}},
        {"id": "a/b", "sha": "0a" * 20, "siblings": plain, "cardData": {"base_model": "a/c"}},
    ]
    return [json.dumps(each).encode() for each in made]


def _hub_answer(_folder: Path) -> Reader:
    """Read a page of a server over our own client: JSON of the hub, then JSON and HTML of a package index."""
    import httpx

    from app.library.download.http_session import HttpSession, RetryPolicy
    from app.library.hub.access import HubAccess
    from app.library.hub.ollama_registry import fetch_layers
    from app.library.hub.reference import parse_reference
    from app.library.hub.repository import fetch_config, fetch_repository
    from app.library.packages.package_index import _html_links, _json_links, _wheels_among
    from quantizer.system.errors import UserError

    policy = RetryPolicy(1, 0.0)
    reference: Any = parse_reference("ollama:a:b")

    async def ask(data: bytes) -> UserError | None:
        failed = None
        transport = httpx.MockTransport(lambda _request: httpx.Response(200, stream=httpx.ByteStream(data)))
        async with httpx.AsyncClient(transport=transport) as client:
            session = HttpSession(client, HubAccess("https://hub"))
            for work in (
                fetch_repository(session, "a/b", "", policy),
                fetch_config(session, "a/b", policy),
                fetch_layers(session, reference, policy),
            ):
                try:
                    await work
                except UserError as error:
                    failed = error
        return failed

    def read(data: bytes) -> None:
        for links in (
            lambda: _json_links(data, "https://i/a/"),
            lambda: _html_links(data.decode("utf-8", "replace"), "https://i/a/"),
        ):
            try:
                for wheel in _wheels_among(links(), "a")[0]:
                    assert wheel.n_bytes is None or wheel.n_bytes >= 0
            except UserError as error:
                assert error.remedy
        if failed := asyncio.run(ask(data)):
            raise failed

    return read


def _hub_pages() -> list[bytes]:
    file = {
        "filename": "a-1.0-py3-none-any.whl",
        "url": "a.whl",
        "hashes": {"sha256": "0a" * 32},
        "size": 9,
        "yanked": False,
    }
    page = f'<a href="a-1.0-py3-none-any.whl#sha256={"0a" * 32}" data-yanked>a</a><a href="a-1.0.tar.gz">b</a>'
    return [json.dumps({"files": [file]}).encode(), page.encode(), *_repositories()[1:], *_manifests()[:1]]


def _wheel(folder: Path) -> Reader:
    from app.library.packages.contents import checkpoint_members, gguf_files, zip_members
    from app.library.packages.wheel import read_wheel, read_zip

    path = folder / "a-1.0-py3-none-any.whl"

    def read(data: bytes) -> None:
        path.write_bytes(data)
        read_zip(path)
        wheel = read_wheel(path)
        for member in wheel.members:
            assert ".." not in member.name.split("/") and not member.name.startswith("/")
        gguf_files([wheel])
        zip_members([wheel])
        checkpoint_members(wheel.members)

    return read


def _wheels() -> list[bytes]:
    def wheel(files: Mapping[str, bytes], metadata: str = "Name: a\nVersion: 1.0\n") -> bytes:
        written = io.BytesIO()
        record = "".join(f"{name},sha256={_coded(content)},{len(content)}\n" for name, content in files.items())
        with zipfile.ZipFile(written, "w") as archive:
            for name, content in files.items():
                archive.writestr(name, content)
            archive.writestr("a-1.0.dist-info/METADATA", metadata)
            archive.writestr("a-1.0.dist-info/RECORD", record)
        return written.getvalue()

    return [
        wheel({"a/m.gguf": b"GGUF"}),
        wheel({"a/m.part1": b"x"}, "Name: a\nRequires-Dist: a-part2 (==1.0)\nRequires-Dist: b; extra == 'c'\n"),
        wheel({"a/config.json": b"{}", "a/m.gguf.sha256": b"0a" * 32}),
    ]


def _coded(content: bytes) -> str:
    import base64

    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")


def _batch(_folder: Path) -> Reader:
    from app.batch.requests import read_requests

    def read(data: bytes) -> None:
        ids = [request.custom_id for request in read_requests("b.jsonl", data.splitlines(), "m")]
        assert len(set(ids)) == len(ids)

    return read


def _batches() -> list[bytes]:
    line = {
        "custom_id": "a",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"messages": [], "max_tokens": 9},
    }
    other = {"custom_id": "b", "url": "/v1/embeddings", "body": {"input": ["a"], "model": "m"}}
    return [json.dumps(line).encode() + b"\n" + json.dumps(other).encode() + b"\n", json.dumps(line).encode()]


TARGETS = (
    Target("settings", _settings, ("app.settings", "app.options"), _settings_files, Form.TEXT, _TOML_WORDS),
    Target(
        "presets", _presets, ("app.chat.presets", "app.chat.sampling_options"), _preset_files, Form.TEXT, _TOML_WORDS
    ),
    Target(
        "mcp_file",
        _mcp_file,
        ("app.tools.mcp.config",),
        _mcp_files,
        words=("command", "url", "args", "env", "type", "${a}"),
    ),
    Target("index", _index, ("app.library.local.index",), _facts),
    Target("state", _state, ("app.engine.cache",), _states, Form.BYTES, max_bytes=1_024),
    Target(
        "measurements", _machine_files, ("app.engine.load", "app.engine.tuning", "app.protocol.codec"), _measurements
    ),
    Target("chats", _chats, ("app.chat.formats", "app.chat.files"), _exports, words=_CHAT_WORDS),
    Target("recipe", _recipe, ("app.library.local", "quantizer.gguf.sampling_keys"), _recipes),
    Target("manifest", _manifest, ("app.library.external", "app.library.hub"), _manifests),
    Target("repository", _repository, ("app.library.hub",), _repositories),
    Target("hub_answer", _hub_answer, ("app.library.hub", "app.library.packages"), _hub_pages, Form.TEXT),
    Target("wheel", _wheel, ("app.library.packages",), _wheels, Form.BYTES),
    Target("batch", _batch, ("app.batch",), _batches, Form.TEXT),
)
