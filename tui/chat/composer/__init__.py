"""The composer: text, attachments and completions of the next question."""
