"""The chats on the disk: SQLite, full-text search, and the files of attachments."""
