"""The messages between the service and an engine worker, and their encoding."""
