"""Pictures and sounds as parts of a prompt."""
