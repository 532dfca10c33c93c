"""The terminal face: screens, widgets and styles over `app.client`."""
