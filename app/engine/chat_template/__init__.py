"""Chat templates: messages → prompt, rendered in a sandbox in a child process."""
