"""Engines: one file each. A newcomer adds one with a file and an entry in `registry.py`."""
