"""The history: a list of stored chats to search and manage."""
