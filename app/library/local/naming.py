"""Names of models: safe file names, ids, and paths in the library. Pure.

A model has one id, for people and for clients, in Ollama's form, qwen2.5-coder:7b-instruct-q4_K_M: editors derive the
prompt format from the part before the colon. Ids come from file names alone, as reading a header takes up to 0.3 s. A
name from a hub or a URL is untrusted: one that leaves its folder, or that any system treats specially, is rejected on
every system, so that a library can be moved. Does not access the disk.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import chain
from pathlib import Path

from app.library.local.model_files import ModelRef
from quantizer.gguf.file_names import unsplit_name
from quantizer.system.errors import UsageError

_MAX_BYTES = 200  # file systems allow 255, and partial files have longer names
_FORBIDDEN = re.compile(r'[\x00-\x1f\x7f-\x9f<>:"/\\|?*\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]')
_DEVICE = re.compile(r"(con|prn|aux|nul|conin\$|conout\$|com[0-9¹²³]|lpt[0-9¹²³])\s*(\..*)?", re.IGNORECASE | re.DOTALL)
_QUANT = r"(?:ud-)?(?:i?q\d(?:_[a-z0-9]+)*|tq\d_\d|mxfp4(?:_moe)?|nvfp4|bf16|f16|f32)"
_ENDS_WITH_QUANT = re.compile(rf"[-._ ]({_QUANT})$", re.IGNORECASE)
_SIZE = re.compile(r"[-_ ]((?:\d+x)?e?\d+(?:\.\d+)?[bm](?:-a\d+(?:\.\d+)?b)?)(?=[-_. ]|$)", re.IGNORECASE)
_QUANT_HEAD = re.compile(r"^(?:ud-)?(?:i?q\d|tq\d|mxfp4|nvfp4|bf16|f16|f32)", re.IGNORECASE)
_GENERIC = re.compile(r"(?:ggml[-_])?(?:model|weights|gguf)", re.IGNORECASE)  # names that do not identify a model
_FORMAT = re.compile(r"[-_.](?:i1-)?gguf$", re.IGNORECASE)  # the suffix of a repository's name
_NOT_IN_AN_ID = re.compile(r"[^A-Za-z0-9._]+")
_DRIVE = re.compile(r"[A-Za-z]:[\\/]")
_TAG_DIGITS = (6, 16, 64)
_LOCAL = "local"  # the publisher of models without one
_MAX_CHARACTERS = 96
_NOT_IN_A_FILE_NAME = re.compile(r"[^\w.+-]+")


def is_safe_name(name: str) -> bool:
    """Return whether `name` is one visible file of one folder, the same on Linux, macOS and Windows."""
    if not name or name.startswith((".", " ")) or name.endswith((".", " ")):
        return False
    if _FORBIDDEN.search(name) or _DEVICE.fullmatch(name):
        return False
    return len(name.encode()) <= _MAX_BYTES


def is_path(name: str) -> bool:
    """Return whether `name` can only be a path, on any system: publisher/repo has a separator too."""
    is_special = name == "~" or name.startswith(("~/", ".", "/", os.sep)) or "\\" in name
    return is_special or bool(_DRIVE.match(name)) or Path(name).is_absolute()


def listed(names: Iterable[str], n_most: int) -> str:
    """Return the first `n_most` different names as text, and how many more there are."""
    known = list(dict.fromkeys(names))
    more = f" and {len(known) - n_most} more" if len(known) > n_most else ""
    return (", ".join(known[:n_most]) or "none") + more


def id_of(file_name: str, repo: str = "") -> str:
    """Return the id of the model in a file; a generic file name is replaced by that of its `repo`.

    A name without size and quantization was chosen by the user, and is the id as it is.
    """
    stem = unsplit_name(file_name.removesuffix(".gguf") + ".gguf").removesuffix(".gguf")
    found = _ENDS_WITH_QUANT.search(stem)
    name, quant = (stem[: found.start()], _ollama_quant(found[1])) if found else (stem, "")
    if _GENERIC.fullmatch(name) and repo:
        name = _FORMAT.sub("", repo.rpartition("/")[2]) or name
    size = _SIZE.search(name)
    if size is None:
        return f"{_cleaned(name).lower()}:{quant}" if quant else _cleaned(name)
    tag = [size[1].lower(), _cleaned(name[size.end() :], "").lower(), quant]
    return f"{_cleaned(name[: size.start()]).lower()}:{'-'.join(filter(None, tag))}"


def ids_of(
    models: Iterable[tuple[Path, str]], since_ns: Callable[[Path], int], taken: Collection[str] = ()
) -> dict[Path, str]:
    """Return the id of each model, given its path and its repo, publisher/name; none of them is in `taken`.

    Of several with one id the oldest keeps it, and the others get their publisher in front: adding a model never
    changes another's id. `since_ns` is called only for those.
    """
    groups: dict[str, list[tuple[Path, str]]] = defaultdict(list)
    for path, repo in models:
        groups[id_of(path.name, repo).lower()].append((path, repo))
    return dict(chain.from_iterable(_unique_ids(group, since_ns, set(taken)) for group in groups.values()))


def _unique_ids(
    group: list[tuple[Path, str]], since_ns: Callable[[Path], int], taken: set[str]
) -> Iterator[tuple[Path, str]]:
    oldest_first = sorted(group, key=lambda item: (since_ns(item[0]), item[0])) if len(group) > 1 else group
    for path, repo in oldest_first:
        free = next(name for name in _possible_ids(path, repo) if name.lower() not in taken)
        taken.add(free.lower())
        yield path, free


def _possible_ids(path: Path, repo: str) -> Iterator[str]:
    """Yield the id, the id with its publisher, and that with digits of a hash; no plain id has a double dash.

    Only files of one name in different folders of a repo, or with other parts, need a hash of the whole path.
    """
    plain = id_of(path.name, repo)
    with_publisher = f"{_cleaned(repo.partition('/')[0], _LOCAL)}/{plain}"
    digests = (
        hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest() for text in (f"{repo}/{path.name}", str(path))
    )
    tagged = (f"{with_publisher}--{digest[:n_digits]}" for digest in digests for n_digits in _TAG_DIGITS)
    return chain((plain, with_publisher), tagged)


def _ollama_quant(quant: str) -> str:
    """Return a quantization as Ollama writes it: q4_K_M, iq4_XS, q8_0, f16."""
    head = _QUANT_HEAD.match(quant)
    assert head is not None, "the pattern that found it begins with this one"
    return head[0].lower() + quant[head.end() :].upper()


def _cleaned(text: str, if_empty: str = "model") -> str:
    return _NOT_IN_AN_ID.sub("-", text).strip("-._") or if_empty


def model_output_path(source: ModelRef, wanted: str, models_dir: Path) -> Path:
    """Return the path for `source` under the name `wanted`: FILE, PUBLISHER/REPO or PUBLISHER/REPO/FILE.

    An empty name keeps the one it has at its source. Raises UsageError for an invalid name.
    """
    file = _as_file_name(source.id if source.path.suffix != ".gguf" else unsplit_name(source.path.name))
    publisher, _, repo = source.repo.partition("/")
    match [part.removesuffix(".gguf") for part in wanted.split("/")] if wanted else []:
        case []:
            names = [_as_file_name(publisher) if repo else _LOCAL, _as_file_name(repo) if repo else file, file]
        case [name]:
            names = [_LOCAL, name, name]
        case [publisher, repo]:
            names = [publisher, repo, file]
        case names:
            pass
    if len(names) != 3 or not all(map(is_safe_name, names)):
        cause = f"{wanted!r} is not a valid name for a model."
        raise UsageError(cause, "Give NAME, PUBLISHER/REPO or PUBLISHER/REPO/NAME.")
    return models_dir / names[0] / names[1] / f"{names[2]}.gguf"


def _as_file_name(text: str) -> str:
    """Turn an untrusted name into a file name: its last part, other characters as dashes."""
    dashed = _NOT_IN_A_FILE_NAME.sub("-", text.rpartition("/")[2].removesuffix(".gguf"))
    name = dashed.strip(".-+")[:_MAX_CHARACTERS].rstrip(".")
    return name if is_safe_name(name) else "model"
