"""One widget a file. They show what they are given and post what was done to them; none talks to the service."""
