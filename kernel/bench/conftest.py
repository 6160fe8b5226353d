"""Without torch or Triton there is nothing to time."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("torch") and find_spec("triton") else ["test_bench.py"]
