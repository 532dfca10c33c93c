"""Folders as knowledge in the app: the screen, the typed forms of /knowledge, and updates."""
