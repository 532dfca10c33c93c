"""What follows /knowledge on the chat screen: folders added, updated, forgotten; whether the chat searches them."""

from __future__ import annotations

from pathlib import Path

from app.chat.tools_editor import KNOWLEDGE_MODES, ToolsEditor
from quantizer.system.errors import UsageError
from tui.knowledge.screen import KnowledgeScreen, typed_path
from tui.knowledge.updater import KnowledgeUpdater

_FORMS = "/knowledge add FOLDER, update, rm FOLDER, on, off or auto."


async def edit_knowledge(
    text: str, updater: KnowledgeUpdater, editor: ToolsEditor, data_dir: Path
) -> str | KnowledgeScreen:
    """Do what follows /knowledge; return the line to show, or the screen that shows it. Raises UserError."""
    word, _, rest = text.strip().partition(" ")
    word, path = word.lower(), rest.strip()
    if word in KNOWLEDGE_MODES and not path:
        return await editor.search_folders(word)
    if word == "rm" and path:
        known = [Path(folder.path) for folder in await updater.folders()]
        wanted = typed_path(path)
        if wanted not in known:
            names = ", ".join(map(str, known)) or "none"
            raise UsageError(f"{path} was not added.", f"Folders: {names}.")
        await updater.remove(wanted)
        return updater.note
    if word == "add" and path:
        await updater.add(typed_path(path))
    elif word == "update" and not path:
        await updater.update()
    elif text.strip():
        raise UsageError(f"/knowledge {text} is not known.", _FORMS)
    return KnowledgeScreen(updater, editor, data_dir)
