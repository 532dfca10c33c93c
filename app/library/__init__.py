"""The models that are here: names, files, and where they lie."""
