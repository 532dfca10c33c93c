"""The terminal app: a folder per feature, over `app.client`."""
