"""What several rooms of `app` need and none of them owns."""
