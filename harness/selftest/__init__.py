"""Checks of mtpbench itself: its client, its verdicts, its explanations, and a simulated year."""
