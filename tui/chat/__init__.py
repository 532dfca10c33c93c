"""The chat: screen, transcript, composer, session and storage."""
