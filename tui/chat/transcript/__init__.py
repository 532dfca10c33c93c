"""The messages of a chat as widgets."""
