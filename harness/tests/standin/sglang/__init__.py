"""A stand-in for SGLang: the places that the plug-in and the harness touch, in the same shape, and no model.

Written for tests that show what happens when such a place is missing or different.
"""
