"""Screens and dialogs shared by the features. Feature widgets are in their feature's folder."""
