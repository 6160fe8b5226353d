"""Why TPOT changed: what was observed, what of it changed, which hypotheses that bears out."""
