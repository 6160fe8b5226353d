"""Does the served model still solve problems? GSM8K, by SGLang's own evaluator in the server's interpreter."""

from __future__ import annotations

import asyncio
import os
import re
import tempfile
from collections.abc import Mapping

from harness.errors import InvalidLaunchError
from harness.model import Finding
from harness.scenario.checked import Gsm8k

_ACCURACY = re.compile(r"^Accuracy:\s*([\d.]+)\s*$", re.MULTILINE)


async def gsm8k(command: tuple[str, ...], env: Mapping[str, str], limit_s: float) -> float:
    """The share of problems solved, 0 to 1; `env` is the server's, laid over our own.

    Raises InvalidLaunchError when the evaluator fails or takes longer than `limit_s`.
    """
    with tempfile.TemporaryDirectory() as folder:  # it leaves a file where it runs
        process = await asyncio.create_subprocess_exec(
            *command,
            cwd=folder,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, **env},
        )
        try:
            output, _ = await asyncio.wait_for(process.communicate(), limit_s)
        except asyncio.TimeoutError as error:
            raise _failed("it is not done", f"Raise accuracy.gsm8k.timeout, now {limit_s:g} s.", "") from error
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    text = output.decode(errors="replace")
    found = _ACCURACY.findall(text)
    if process.returncode or not found:
        hint = "Its test questions come from the network: name a local copy with accuracy.gsm8k.data."
        raise _failed(f"exit status {process.returncode}", hint, text)
    return float(found[-1])


def _failed(why: str, hint: str, text: str) -> InvalidLaunchError:
    tail = tuple(text.splitlines()[-8:])
    return InvalidLaunchError(f"INVALID: GSM8K could not be evaluated: {why}", hint, log_tail=tail)


def accuracy_findings(accuracy: float, asked: Gsm8k) -> tuple[Finding, ...]:
    """A model that solves too little is not the model that was to be measured."""
    if accuracy >= asked.least:
        return ()
    message = f"GSM8K accuracy {accuracy:.3f} is below {asked.least:g}: the speed of a wrong model is no result"
    return (Finding("accuracy_low", message, invalid=True),)
