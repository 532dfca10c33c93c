"""The shapes in which chats come and go: one module each. All are pure; none knows the store."""
