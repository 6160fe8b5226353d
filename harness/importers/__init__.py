"""Readers of other tools' result files, one a file: a Document in, points out. See docs/importing.md."""
