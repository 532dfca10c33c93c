"""Jobs of the service, its log, and quitting while jobs run."""
