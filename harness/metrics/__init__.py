"""Raw events → the numbers that are reported: TTFT, TPOT, ITL, accept length, and the account of TPOT."""
