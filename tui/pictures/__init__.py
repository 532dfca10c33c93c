"""Pictures in the terminal: what it can show, bounded previews, and the widget."""
