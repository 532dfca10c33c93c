"""The path of a model that a person types into the search field, as rows to import or enter. Reads folders, never a
file's content. No widgets."""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path, PureWindowsPath
from urllib.parse import unquote, urlsplit

from app.common.terminal import printable_line
from app.library.local.model_files import is_model_file, is_path, stat_model
from tui.models.rows import ModelRow, Section

TITLE = "Import a GGUF file"
_MAX_ENTRIES = 5_000  # of a folder that are looked at
_MAX_ROWS = 50
_HINT = "Type or paste the path of a GGUF file; Tab completes it."


def typed_path(text: str) -> str:
    """Return the path that `text` is, without the quotes and escapes of a shell or a file manager; "" for words."""
    text = text.strip()
    if text[:1] in ("'", '"') and text[:1] == text[-1:] and text[1:]:
        text = text[1:-1]
    if text.startswith("file://"):
        text = unquote(urlsplit(text).path)
    if os.sep == "/":
        text = text.replace("\\ ", " ")  # what terminals write for a dropped file
    return text if is_path(text) else ""


def begins_path(text: str) -> bool:
    """Return whether `text` begins a path that starts at the root, at home or at a drive, perhaps quoted."""
    text = text.lstrip().lstrip("'\"")
    return text.startswith(("/", "~", "file:", os.sep)) or bool(PureWindowsPath(text).drive)


def path_section(path: str) -> Section:
    """Return the file of `path`, or the folders and models that it may be completed to. Reads the disk."""
    place = _expanded(path)
    try:
        if place.is_file():
            is_model = place.name.lower().endswith(".gguf")
            note = "" if is_model else "This file is not a GGUF. A checkpoint: localllm quantize FOLDER converts it."
            return Section(TITLE, (_file_row(place),) if is_model else (), note)
        folder, begin = _split(path)
        if not folder.is_dir():
            return Section(TITLE, (), f"There is no folder {folder}.")
        rows = _rows(folder, begin)
    except (OSError, ValueError) as error:
        return Section(TITLE, (), f"{place} cannot be read: {getattr(error, 'strerror', None) or error}.")
    left_out = f"and {len(rows) - _MAX_ROWS} more: type on." if len(rows) > _MAX_ROWS else _HINT
    what = f"that begins with {begin}" if begin else "in this folder"
    return Section(TITLE, rows[:_MAX_ROWS], left_out if rows else f"There is no folder or GGUF file {what}.")


def completed(path: str) -> str:
    """Return `path` as far as all that it may mean agree; a folder that is the only one gets its separator."""
    folder, begin = _split(path)
    try:
        rows = _rows(folder, begin)
    except (OSError, ValueError):
        return path
    names = [row.name for row in rows]
    common = os.path.commonprefix(names)  # noqa: RUF071 - of names, not of paths
    if len(common) <= len(begin):
        return path
    return path.removesuffix(begin) + ("" if begin or path.endswith(("/", os.sep)) else os.sep) + common


def _rows(folder: Path, begin: str) -> tuple[ModelRow, ...]:
    """Return the models in `folder` and its subfolders whose names begin with `begin`, models first. Names that a
    terminal must not see are left out: a completed one goes into the search field as it is."""
    with os.scandir(folder) as found:
        entries = [
            entry
            for entry in islice(found, _MAX_ENTRIES)
            if entry.name.startswith(begin)
            and (begin or not entry.name.startswith("."))
            and printable_line(entry.name) == entry.name
        ]
    entries.sort(key=lambda entry: entry.name.lower())
    files = (_file_row(folder / each.name) for each in entries if is_model_file(each.name) and each.is_file())
    paths = (folder / each.name for each in entries if each.is_dir())
    folders = (
        ModelRow(id=f"folder:{path}", kind="folder", name=f"{path.name}{os.sep}", model=str(path)) for path in paths
    )
    return (*files, *folders)


def _file_row(path: Path) -> ModelRow:
    return ModelRow(id=f"file:{path}", kind="file", name=path.name, n_bytes=stat_model(path).n_bytes, model=str(path))


def _split(path: str) -> tuple[Path, str]:
    """Return the folder of a path that is being typed, and the begin of the name in it."""
    if path in ("~", ".", "..") or path.endswith(("/", os.sep)):
        return _expanded(path), ""
    return _expanded(path).parent, Path(path).name


def _expanded(path: str) -> Path:
    try:
        return Path(path).expanduser().absolute()
    except RuntimeError:  # no such user, or no home
        return Path(path).absolute()
