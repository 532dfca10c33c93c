"""chat_template."""
