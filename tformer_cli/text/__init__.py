"""Text to ids and back: strings and ids only, no model and no files of sentences."""
