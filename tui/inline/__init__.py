"""A chat in the terminal's scrollback: reads and prints lines, draws no screen."""
