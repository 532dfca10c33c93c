"""The HTTP routes of the service: one package for each dialect, thin over one internal request type."""
