"""A model as a folder that CTranslate2 loads, and CTranslate2 as an engine."""
