"""One module for each kind of untrusted file: `prepare` loads its library, `parse` reads. Both run in a child."""
