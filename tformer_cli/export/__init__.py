"""A trained model in the formats of other programs: exactly the same function, or a refusal."""
