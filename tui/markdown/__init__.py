"""Markdown as terminal lines."""
