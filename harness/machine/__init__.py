"""The machine that measures: its fingerprint, its GPUs' telemetry, and whether it is idle."""
