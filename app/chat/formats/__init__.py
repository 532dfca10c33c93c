"""The file formats of chats, one module each. All are pure and independent of the store."""
