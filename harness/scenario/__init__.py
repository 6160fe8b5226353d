"""A question as a YAML file: its format, what is wrong with it, its prompts and its launches."""
