"""An agent of the Agent Client Protocol: editors drive chats over stdin and stdout."""
