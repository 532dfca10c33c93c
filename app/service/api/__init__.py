"""One module per HTTP dialect, thin over one internal request type."""
