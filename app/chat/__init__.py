"""Conversations: kept, branched, searched, exported and imported. Knows neither engine nor service nor screen."""
