"""The look of every screen: colours, the row at the top, the keys at the bottom, search boxes and words for numbers."""
