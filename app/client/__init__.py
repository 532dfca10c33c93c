"""The typed client of the service, and the client of any other engine."""
