"""The command table of the models screen: ids, keys and texts."""

from __future__ import annotations

from tui.commands import CommandTable, list_command

__all__ = ["MODEL_COMMANDS"]

MODEL_COMMANDS = CommandTable(
    (
        list_command(
            "choose",
            "Chat/download",
            "enter",
            "Chat with the model; a remote one is downloaded in the background",
            "choose",
        ),
        list_command("search", "Search", "slash,ctrl+f", "Search local models and the hub", "focus_search"),
        list_command("card", "Info", "c", "Show the model's metadata", "show_card"),
        list_command("quantize", "Quantize", "q", "Quantize the model to a type or a size; runs as a job", "quantize"),
        list_command("import", "Import", "i", "Link another program's model into the library", "import_model"),
        list_command("remove", "Remove", "d,delete", "Remove the model after confirmation", "remove_model"),
        list_command("load", "Load", "u", "Load the model, or unload it to free its memory", "load_or_unload"),
        list_command(
            "keep",
            "Keep",
            "k",
            "Keep the model loaded, or unload it after ten idle minutes",
            "toggle_keep_alive",
            is_shown=False,
        ),
        list_command("cancel", "Stop", "x", "Stop the download; partial data is kept", "cancel"),
        list_command("look-again", "Refresh", "ctrl+r", "Rescan the disk and free memory", "rescan", is_shown=False),
    )
)
