"""The server: translations over HTTP, by an API of its own and by that of LibreTranslate."""
