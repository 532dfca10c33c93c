"""localllm's application: command line, engine, service, models and chats."""

__version__ = "0.1.0"
