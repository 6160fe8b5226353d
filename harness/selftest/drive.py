"""The load client alone, as a command: what each request sent and received, in a file. For comparisons with others.

python -m harness.selftest.drive URL STREAMS COUNT TOKENS OUT
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from harness.load.workers import LoadJob, Workers
from harness.selftest.client import request


def main() -> None:
    url, out = sys.argv[1], Path(sys.argv[5])
    streams, count, tokens = map(int, sys.argv[2:5])
    job = LoadJob(url, "openai", tuple(request(n, tokens) for n in range(count)), streams, False, 600.0)
    with Workers(streams) as workers:
        result = asyncio.run(workers.run(job))
    rows = [(r.index, r.t_send, [event.t for event in r.events]) for r in result.requests if r.ok]
    out.write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
