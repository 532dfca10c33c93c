"""What a person writes with: completion of commands and files, and texts that go with a question. No widgets here."""
