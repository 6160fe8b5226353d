"""Time the kernel and its peers on a GPU: ``python -m kernel.bench --shape c16 --output out.json``.

A package and not a module, so that ``pytest kernel/bench`` runs the same cases under
pytest-benchmark.  Every arm is checked against fp32 before it is timed.
"""
