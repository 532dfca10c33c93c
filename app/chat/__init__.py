"""Conversations in SQLite: branches, search, import and export. Independent of engine, service and screens."""
