"""The command tables of the chat screen: ids, keys, slash words and texts."""

from __future__ import annotations

import sys

from tui.commands import Command, CommandTable

__all__ = ["CHAT_COMMANDS", "EXAMPLES", "MESSAGE_COMMANDS"]

_UNDO_KEYS = f"alt+u,ctrl+underscore{',ctrl+z' if sys.platform == 'win32' else ''}"  # elsewhere Ctrl+Z suspends

EXAMPLES = ("What can you do?", "How do I quantize a model?", "Which keys does this app have?")

MESSAGE_COMMANDS = CommandTable(
    (
        Command(
            "select-up",
            "Select the message above",
            "Select the previous message: its keys appear below it",
            "select_step",
            values=(-1,),
            keys="ctrl+up,alt+up",
        ),
        Command(
            "select-down",
            "Select the message below",
            "Select the next message; after the last one, the prompt",
            "select_step",
            values=(1,),
            keys="ctrl+down,alt+down",
        ),
        Command(
            "edit",
            "Edit a question",
            "Edit a question; the former text stays as a version",
            "edit",
            keys="e",
            slash="edit",
            has_priority=False,
        ),
        Command(
            "again",
            "Regenerate the selected answer",
            "Generate another version of the selected answer",
            "answer_again",
            keys="r",
            has_priority=False,
            is_listed=False,
        ),
        Command(
            "continue",
            "Continue the answer",
            "Continue an answer that was stopped or cut off",
            "continue_answer",
            keys="ctrl+g",
            slash="continue",
        ),
        Command(
            "version-left",
            "Earlier version",
            "Show an earlier version of the selected message",
            "step_to_version",
            values=(-1,),
            keys="left",
            has_priority=False,
        ),
        Command(
            "version-right",
            "Later version",
            "Show a later version of the selected message",
            "step_to_version",
            values=(1,),
            keys="right",
            has_priority=False,
        ),
        Command(
            "delete",
            "Delete the selected message",
            "Delete the selected message and all that follow it",
            "delete",
            keys="delete",
            has_priority=False,
        ),
        Command(
            "undo",
            "Undo",
            "Restore the deleted messages; else undo typing",
            "undo",
            keys=_UNDO_KEYS,
            slash="undo",
        ),
        Command(
            "copy-message",
            "Copy the selected message",
            "Copy the selected message to the clipboard",
            "copy_message",
            keys="y",
            has_priority=False,
        ),
        Command(
            "copy-code",
            "Copy a code block",
            "Copy one of the message's code blocks to the clipboard",
            "copy_code",
            keys="c",
            slash="code",
            argument="NUMBER",
            has_priority=False,
        ),
        Command(
            "thoughts",
            "Expand or collapse thoughts",
            "Show the model's reasoning before the answer",
            "toggle_thoughts",
            keys="t",
            slash="thoughts",
            has_priority=False,
        ),
    )
)

CHAT_COMMANDS = CommandTable(
    (
        Command(
            "stop",
            "Stop the answer",
            "Stop the answer and keep its text; otherwise focus the prompt",
            "stop_answer",
            keys="escape",
            slash="stop",
        ),
        Command(
            "retry",
            "Regenerate",
            "Regenerate the last answer; both versions are kept",
            "answer_again",
            keys="ctrl+r",
            slash="retry",
        ),
        Command(
            "new",
            "New chat",
            "Start a new chat; this one stays in the history, and its answer goes on",
            "new_chat",
            keys="ctrl+n",
            slash="new",
            also=("clear",),
        ),
        Command(
            "copy",
            "Copy the last answer",
            "Copy the last answer to the clipboard",
            "copy_answer",
            keys="ctrl+y",
            slash="copy",
        ),
        *MESSAGE_COMMANDS,
        Command(
            "attach",
            "Attach a file",
            "Attach a text, document, picture or sound; also @FILE in a question, or drop the file here",
            "attach_file",
            slash="attach",
            argument="FILE",
        ),
        Command(
            "switch-reader",
            "Switch to a model that reads it",
            "Chat with a model that sees the attached pictures, or hears the sounds",
            "switch_reader",
            keys="alt+m",
        ),
        Command(
            "attachment",
            "Open an attachment",
            "Look at an attachment of the prompt, edit its text or put it into the prompt, or choose a part of it",
            "open_attachment",
            keys="ctrl+l",
            slash="attachment",
            argument="NAME",
        ),
        Command(
            "editor",
            "Write in your editor",
            "Edit the prompt in $VISUAL or $EDITOR",
            "edit_in_editor",
            keys="ctrl+o",
            slash="editor",
            argument="TEXT",
        ),
        Command(
            "compare",
            "Compare models",
            "Answer the last question with MODEL too, side by side; without MODEL, compare versions or end that",
            "compare",
            slash="compare",
            argument="MODEL",
        ),
        Command(
            "figures",
            "Show or hide figures",
            "Show the speed and the tokens of each answer below it",
            "toggle_figures",
            slash="figures",
        ),
        Command(
            "take-back",
            "Take a question back",
            "Put the last question that waits for the running answer back into the prompt",
            "take_back",
            slash="unqueue",
        ),
        Command(
            "system",
            "System prompt",
            "Set the system prompt of this chat; `clear` removes it, without TEXT it is shown",
            "set_system_prompt",
            slash="system",
            argument="TEXT",
        ),
        Command(
            "options",
            "Options of the answers",
            "Set samplers, stop strings, a JSON schema and other options for this chat",
            "edit_options",
            slash="options",
            argument="NAME=VALUE",
        ),
        Command(
            "preset",
            "Presets",
            "Apply a preset; without NAME, list the presets",
            "use_preset",
            slash="preset",
            argument="NAME",
        ),
        Command(
            "template",
            "Prompt template",
            "Let a base model continue your text, or chat with it by a known template; without NAME, list them",
            "use_template",
            slash="template",
            argument="NAME",
        ),
        Command(
            "prompt",
            "Prompt library",
            "Put a prompt of the library into the prompt field; without NAME, list the prompts",
            "use_prompt",
            slash="prompt",
            argument="NAME",
        ),
        Command(
            "page-up",
            "Scroll up",
            "Scroll towards earlier messages",
            "scroll_pages",
            values=(-1,),
            keys="pageup",
            is_listed=False,
        ),
        Command(
            "page-down",
            "Scroll down",
            "Scroll towards the latest message",
            "scroll_pages",
            values=(1,),
            keys="pagedown",
            is_listed=False,
        ),
        Command(
            "to-start",
            "Go to the first message",
            "Go to the first message of this chat",
            "go_to_start",
            keys="ctrl+home",
        ),
        Command(
            "to-end",
            "Go to the last message",
            "Go to the last message and follow new text",
            "go_to_end",
            keys="ctrl+end",
        ),
        *(
            Command(
                f"example-{number}",
                question,
                f"Ask “{question}” in an empty chat",
                "ask_example",
                values=(question,),
                keys=f"f{number + 1}",
                is_listed=False,
            )
            for number, question in enumerate(EXAMPLES, start=1)
        ),
    )
)
