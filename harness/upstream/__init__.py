"""Drift watch: is what we rely on in SGLang still there, and does it mean the same? Reads source, runs none.

expectations.py  what we rely on: a table        checks.py  how each kind of it is looked up
reader.py        a wheel's source                flags.py   command-line flags in it
fetch.py         wheels from the package index   drift.py   the table against wheels
"""
