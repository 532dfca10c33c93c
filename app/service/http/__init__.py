"""HTTP without dialects: access control, bodies, streams, errors, the access log, OpenAPI."""
