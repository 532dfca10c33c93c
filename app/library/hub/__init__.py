"""The hub and the catalogue: references, repositories, search, recommendations."""
