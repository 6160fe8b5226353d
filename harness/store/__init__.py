"""Runs on disk and in object storage: written atomically, sealed, copied, verified, read back."""
