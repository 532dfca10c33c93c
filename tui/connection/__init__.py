"""The connection to the service, and the protocols of its clients."""
