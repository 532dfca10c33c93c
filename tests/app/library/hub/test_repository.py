from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.library.download.remote_file import Digest
from app.library.hub.access import HubAccess, HubError, NotOnHubError
from app.library.hub.reference import FileReference, RepoReference
from app.library.hub.repository import Repository, checkpoint_files, parse_repository, quant_of
from app.library.hub.selection import QuantChoice, select
from tests.app.library.hub_repos import HubRepo

FILES = {
    "m-Q8_0.gguf": b"88888888",
    "m-Q4_K_M.gguf": b"4444",
    "BF16/m-BF16-00001-of-00002.gguf": b"16161616",
    "BF16/m-BF16-00002-of-00002.gguf": b"16161616",
    "m-F32-00001-of-00002.gguf": b"the second part is missing",
    "mmproj-m-F16.gguf": b"a projector",
    "imatrix.gguf": b"a matrix",
    "README.md": b"# m",
}


def repository(**files: bytes) -> Repository:
    return parse_repository(HubRepo.of("org/repo", {**(files or FILES)}).info(has_blobs=True))


def test_files_are_parsed_with_their_hashes() -> None:
    held = HubRepo.of("org/repo", dict(FILES))
    files = {file.path: file for file in parse_repository(held.info(has_blobs=True)).files}
    assert files["m-Q8_0.gguf"].digest == Digest("sha256", held.files["m-Q8_0.gguf"].sha256)
    assert files["README.md"].digest == Digest("git", held.files["README.md"].blob_id)


def test_a_checkpoint_that_embeds_comes_with_the_modules_behind_its_pooling() -> None:
    wanted = ["config.json", "1_Pooling/config.json", "2_Dense/config.json", "2_Dense/model.safetensors"]
    others = ["2_Dense/pytorch_model.bin", "onnx/model.safetensors", "consolidated.safetensors"]
    files = dict.fromkeys([*wanted, "model.safetensors", *others], b"{}")
    paths = [file.path for file in checkpoint_files(parse_repository(HubRepo.of("a/b", files).info(has_blobs=True)))]
    assert sorted(paths) == sorted([*wanted, "model.safetensors"])


def test_models_are_whole_and_in_order_of_size() -> None:
    models = repository().models
    assert [(model.name, model.quant, len(model.files)) for model in models] == [
        ("m-Q4_K_M.gguf", "Q4_K_M", 1),
        ("m-Q8_0.gguf", "Q8_0", 1),
        ("m-BF16.gguf", "BF16", 2),
    ]
    assert [file.name for file in models[2].files] == ["m-BF16-00001-of-00002.gguf", "m-BF16-00002-of-00002.gguf"]


@pytest.mark.parametrize(
    ("name", "quant"),
    [
        ("Llama-3.2-3B-Instruct-Q4_K_M.gguf", "Q4_K_M"),
        ("qwen2.5-0.5b-instruct-q8_0.gguf", "Q8_0"),
        ("Qwen3-8B-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
        ("model.IQ2_XXS.gguf", "IQ2_XXS"),
        ("gpt-oss-20b-MXFP4.gguf", "MXFP4"),
        ("phi-fp16.gguf", "F16"),
        ("tinyllama.gguf", ""),
        ("Q4Chat.gguf", ""),
    ],
)
def test_a_name_contains_its_quant(name: str, quant: str) -> None:
    assert quant_of(name) == quant


@pytest.mark.parametrize(
    "change",
    [
        {"siblings": None},
        {"siblings": [{"rfilename": "m.gguf"}]},
        {"siblings": [{"rfilename": "m.gguf", "size": -1}]},
        {"siblings": [{"rfilename": "m.gguf", "size": 1 << 60}]},
        {"siblings": [{"rfilename": "m.gguf", "size": 5, "lfs": {"size": 6, "sha256": "a" * 64}}]},
        {"siblings": [{"rfilename": "m.gguf", "size": 5, "lfs": {"size": 5, "sha256": "../../etc"}}]},
        {"siblings": [{"rfilename": 5, "size": 5}]},
        {"sha": "main"},
        {"sha": None},
    ],
)
def test_a_hub_that_makes_no_sense_is_not_believed(change: dict[str, Any]) -> None:
    with pytest.raises(HubError):
        parse_repository({**HubRepo.of("org/repo", {}).info(has_blobs=True), **change})


def test_names_that_climb_are_not_offered() -> None:
    paths = ["../m.gguf", "a/../../m.gguf", "C:\\m.gguf", "/etc/m.gguf", "nul.gguf", ".hidden.gguf"]
    assert repository(**dict.fromkeys(paths, b"x")).files == ()


KEYS = st.sampled_from(["siblings", "sha", "id", "gated", "rfilename", "size", "lfs", "sha256", "blobId"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5),
)


@given(JSON)
def test_any_json_is_parsed_or_rejected(said: Any) -> None:
    with contextlib.suppress(HubError):
        parse_repository(said)


def test_a_file_is_had_from_the_very_commit_that_was_listed() -> None:
    held = repository()
    remote = held.remote(held.files[0], HubAccess("https://hub"))
    assert remote.url == f"https://hub/org/repo/resolve/{held.commit}/m-Q8_0.gguf"


def _smallest(held: Repository) -> QuantChoice:
    return QuantChoice(held.models[0], "It is the smallest.")


@pytest.mark.parametrize(
    ("reference", "name"),
    [
        (RepoReference("org/repo"), "m-Q4_K_M.gguf"),
        (RepoReference("org/repo", "q8_0"), "m-Q8_0.gguf"),
        (RepoReference("org/repo", "m-Q8_0"), "m-Q8_0.gguf"),
        (FileReference("org/repo", "BF16/m-BF16-00002-of-00002.gguf"), "m-BF16.gguf"),
    ],
)
def test_a_reference_means_one_model(reference: RepoReference | FileReference, name: str) -> None:
    assert select(repository(), reference, _smallest).model.name == name


@pytest.mark.parametrize(
    ("files", "quant", "name"),
    [
        (["m-UD-Q4_K_M.gguf", "m-UD-Q4_K_XL.gguf"], "Q4_K_M", "m-UD-Q4_K_M.gguf"),
        (["m-UD-Q4_K_XL.gguf", "m-Q4_K_M.gguf"], "q4_k_xl", "m-UD-Q4_K_XL.gguf"),
        (["m-UD-Q4_K_M.gguf", "m-Q4_K_M.gguf"], "Q4_K_M", "m-Q4_K_M.gguf"),
        (["m-UD-Q4_K_M.gguf", "m-Q4_K_M.gguf"], "UD-Q4_K_M", "m-UD-Q4_K_M.gguf"),
    ],
)
def test_a_dynamic_quant_stands_in_for_a_plain_one_that_is_missing(files: list[str], quant: str, name: str) -> None:
    choice = select(repository(**dict.fromkeys(files, b"m")), RepoReference("org/repo", quant), _smallest)
    assert choice.model.name == name
    was_named = quant.upper() == choice.model.quant
    plain = f"There is no plain {quant.upper()}; this is UD-{quant.upper()}, with more bits where they matter."
    assert choice.reason == ("It was named." if was_named else plain)


@pytest.mark.parametrize(
    ("reference", "files", "words"),
    [
        (RepoReference("org/repo", "Q5_K_M"), FILES, "It has Q4_K_M, Q8_0, BF16"),
        (FileReference("org/repo", "m-F32-00001-of-00002.gguf"), FILES, "not all parts"),
        (RepoReference("org/repo", "Q4_K_M"), {"a-UD-Q4_K_M.gguf": b"a", "b-UD-Q4_K_M.gguf": b"b"}, "Name one of a-UD"),
        (RepoReference("org/repo", "Q4_0"), {"a-Q4_0.gguf": b"a", "b-Q4_0.gguf": b"b"}, "Name one of a-Q4_0"),
        (RepoReference("org/repo"), {"model.safetensors": b"a"}, "--quantize"),
        (RepoReference("org/repo"), {"README.md": b"a"}, "ends in GGUF"),
    ],
)
def test_a_reference_without_a_model_raises_with_the_choices(
    reference: RepoReference | FileReference, files: dict[str, bytes], words: str
) -> None:
    with pytest.raises(HubError, match=words):
        select(repository(**files), reference, _smallest)


def _head_name(files: Iterable[str], model: str) -> str | None:
    held = repository(**{name: name.encode() for name in files})
    head = held.head_of(next(each for each in held.models if each.files[0].path == model))
    return head.path if head else None


def test_draft_heads_are_no_models_of_the_repository() -> None:
    heads = ("dflash-m-Q8_0.gguf", "eagle3-m.gguf", "m-dspark-F16.gguf", "mtp-m-Q8_0.gguf", "m-DFlash2-Q4_K_M.gguf")
    held = repository(**dict.fromkeys((*heads, "m-Q8_0.gguf", "m-MTP-Q4_K_M.gguf"), b"m"))
    assert [model.name for model in held.models] == ["m-MTP-Q4_K_M.gguf", "m-Q8_0.gguf"]
    assert sorted(head.name for head in held.sidecars) == sorted(heads)
    assert select(held, FileReference("org/repo", heads[0]), _smallest).model.name == heads[0]


def test_a_repository_of_draft_heads_alone_has_them_as_models() -> None:
    names = ("m-DFlash2-Q4_K_M.gguf", "m-DFlash2-Q8_0.gguf")
    one, two = (repository(**dict.fromkeys(names[:n], b"m")) for n in (1, 2))
    assert select(one, RepoReference("org/repo"), _smallest).model.name == names[0]
    assert select(two, RepoReference("org/repo", "Q8_0"), _smallest).model.name == names[1]
    with pytest.raises(NotOnHubError, match="only draft heads") as raised:
        select(two, RepoReference("org/repo"), _smallest)
    assert all(name in raised.value.remedy for name in names)


@pytest.mark.parametrize(
    ("files", "model", "head"),
    [
        (("eagle3-m.gguf", "dflash-m.gguf", "dspark-m.gguf"), "m-Q4_0.gguf", "dspark-m.gguf"),
        (("eagle3-m.gguf", "m-dflash-F16.gguf"), "m-Q4_0.gguf", "m-dflash-F16.gguf"),
        (("dflash-m.gguf", "m-dflash2-F16.gguf"), "m-Q4_0.gguf", "m-dflash2-F16.gguf"),
        (("mtp-m-Q4_0.gguf",), "m-Q4_0.gguf", None),
        (("m-EAGLE3-Q4_0.gguf", "m-DFlash2-Q8_0.gguf"), "m-Q4_0.gguf", "m-DFlash2-Q8_0.gguf"),
        (("m-EAGLE3-Q4_0.gguf.txt",), "m-Q4_0.gguf", None),
        (("dflash-m-Q8_0.gguf", "dflash-m-Q5_K_M.gguf", "dflash-m-BF16.gguf"), "m-Q4_0.gguf", "dflash-m-Q5_K_M.gguf"),
        (("dflash-m-Q8_0.gguf", "dflash-m-Q4_0.gguf", "dflash-m-BF16.gguf"), "m-F16.gguf", "dflash-m-BF16.gguf"),
        (("Q4_0/dflash-m-Q8_0.gguf", "dflash-m-Q4_0.gguf"), "Q4_0/m-Q4_0.gguf", "Q4_0/dflash-m-Q8_0.gguf"),
        (("dflash-m-Q4_0.gguf",), "Q4_0/m-Q4_0.gguf", "dflash-m-Q4_0.gguf"),
        (("heads/dflash-m-Q4_0.gguf", "Q8_0/dflash-m.gguf"), "Q4_0/m-Q4_0.gguf", None),
        (("dflash-m-00001-of-00002.gguf", "dflash-m-00002-of-00002.gguf"), "m-Q4_0.gguf", None),
        ((), "m-Q4_0.gguf", None),
    ],
)
def test_the_head_of_a_model_has_the_best_kind_then_the_nearest_folder_and_quant(
    files: tuple[str, ...], model: str, head: str | None
) -> None:
    assert _head_name((*files, model), model) == head
