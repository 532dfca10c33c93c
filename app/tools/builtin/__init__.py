"""The built-in servers of tools: files, commands and the web."""
