"""Flags and variables of two small versions as one table: what they share stands once."""

from __future__ import annotations

import json

from sglang_sources import Sources

from harness.upstream.flag_table import flag_table

ARGUMENTS = """
class ServerArgs:
    @staticmethod
    def add_cli_args(parser):
        parser.add_argument("--page-size", type=int, default=1)
        parser.add_argument("{flag}", type=str, default="")
"""


def version(name: str, flag: str, variable: str) -> Sources:
    return Sources(
        name,
        {
            "sglang/srt/server_args.py": ARGUMENTS.format(flag=flag),
            "sglang/srt/environ.py": f'SGLANG_USE_AITER = 1\n{variable} = 2\nMY_SGLANG_X = "SGLANG_lower"\n',
            "sglang/test/t.py": "SGLANG_ONLY_IN_A_TEST = 1\n",
        },
    )


def test_what_versions_share_stands_once_and_the_rest_by_version() -> None:
    newer, older = version("0.5.20", "--new", "SGLANG_NEW"), version("0.5.9", "--old", "SGLANG_OLD")
    table = json.loads(flag_table([newer, older]))
    assert table["versions"] == ["0.5.9", "0.5.20"]  # by number, not by letter
    assert table["flags"] == {"all": ["page-size"], "0.5.9": ["old"], "0.5.20": ["new"]}
    assert table["variables"] == {"all": ["SGLANG_USE_AITER"], "0.5.9": ["SGLANG_OLD"], "0.5.20": ["SGLANG_NEW"]}
    assert table["deprecated"] == {"0.5.9": {}, "0.5.20": {}}
