"""The long-lived process: engine workers and the HTTP surfaces."""
