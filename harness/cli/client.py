"""The self-tests of the client: `mtpbench selftest client` and `mtpbench selftest arrivals`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from harness.cli.common import err, out
from harness.cli.group import verbs_of_a_file
from harness.selftest.client import HEADERS, LEFT, Streams, cells, check_arrivals, check_client
from harness.selftest.truth_server import Schedule
from harness.text import markdown_table, terminal_table

verbs = verbs_of_a_file()


@verbs.command()
def client(
    streams: Annotated[list[int], typer.Option(help="Concurrent streams; may be repeated.")] = [  # noqa: B006
        *(1, 64, 128, 256, 512, 1024)
    ],
    gap: Annotated[float, typer.Option(min=0.1, help="Milliseconds between the chunks of a stream.")] = 33.0,
    chunk_tokens: Annotated[list[int], typer.Option(help="Tokens a chunk; may be repeated.")] = [1, 4],  # noqa: B006
    tokens: Annotated[int, typer.Option(min=2, help="Output tokens of an answer.")] = 128,
    rounds: Annotated[int, typer.Option(min=3, help="Answers a slot; the first and the last do not count.")] = 4,
    lockstep: Annotated[
        bool | None, typer.Option("--lockstep/--out-of-step", help="All streams send at once, or not. Default: both.")
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the table as Markdown.")] = False,
) -> None:
    """Compare the client's time stamps with what a server wrote down, on this machine (5 minutes on two cores).

    The server is ours, streams on a fixed schedule, has a core of its own and is checked too: see "server late".
    On a machine that does other work besides, `chrt --fifo 10 mtpbench selftest client` keeps that out.
    """
    jitter = gap / 1e3  # as long as a step: streams then start anywhere within one
    cases = [
        Streams(count, tokens, rounds, Schedule(0.2, jitter, gap / 1e3, chunk, locked))
        for locked in ([False, True] if lockstep is None else [lockstep])
        for chunk in chunk_tokens
        for count in streams
    ]
    rows = []
    for number, case in enumerate(cases, 1):
        err.print(f"{number} of {len(cases)}: {case.label}", markup=False)
        rows.append(cells(check_client(case)))
    if markdown:
        sys.stdout.write("\n".join(markdown_table(HEADERS, rows, LEFT)) + "\n")
        return
    table = terminal_table(HEADERS, LEFT, "The client against ground truth: errors in ms")
    for row in rows:
        table.add_row(*row)
    out.print(table)


@verbs.command()
def arrivals(
    rate: Annotated[float, typer.Option(min=0.1, help="Requests a second.")] = 50.0,
    requests: Annotated[int, typer.Option(min=10)] = 1000,
    slots: Annotated[int, typer.Option(min=1, help="At most so many in flight.")] = 2048,
    ttft: Annotated[float, typer.Option(min=0.0, help="Seconds to the first token.")] = 2.0,
) -> None:
    """Check an open loop: are requests sent on schedule, and are arrivals Poisson as the server sees them?"""
    found = check_arrivals(rate, requests, slots, Schedule(ttft, 0.033, 0.033))
    late = [1e3 * float(value) for value in sorted(found.late)]
    out.print(f"sends late: {late[len(late) // 2]:.2f} ms (p50), {late[int(0.99 * (len(late) - 1))]:.2f} ms (p99)")
    out.print(f"earliest: {late[0]:.2f} ms late; most in flight: {found.most_in_flight}; failed: {found.failed}")
    out.print(f"rate: {found.seen_rate:.1f}/s of {found.asked_rate:.1f}/s asked")
    out.print(f"variation of the gaps: {found.seen_variation:.3f}, asked {found.asked_variation:.3f}")
