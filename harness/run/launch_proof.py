"""What a launch proves before it is measured: which kernel serves it, and that it says what the other arms say."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace

from harness.checks.gsm8k import accuracy_findings, gsm8k
from harness.checks.kernel_evidence import check_evidence, read_evidence
from harness.checks.same_answers import check_outputs, fixed_prompts
from harness.engines.base import Engine, LaunchContext
from harness.engines.registry import AnySettings
from harness.errors import InvalidLaunchError
from harness.http import ControlClient
from harness.model import Finding, LaunchRecord
from harness.scenario.format import Scenario
from harness.store.runs import RunStore
from kernel.source import source_hash

_EVIDENCE_S = 3.0  # processes write what they captured within a second


class Proof:
    """Of one launch; saves the launch's record whenever it learns something."""

    def __init__(self, scenario: Scenario, store: RunStore, record: LaunchRecord, context: LaunchContext) -> None:
        self._scenario, self._store, self._record, self._context = scenario, store, record, context
        self._of_text: tuple[Finding, ...] = ()
        self._handed_over = source_hash(context.plugin_dir / "kernel") if context.plugin_dir else ""

    async def collect(
        self, engine: Engine[AnySettings], settings: AnySettings, http: ControlClient, say: Callable[[str], None]
    ) -> LaunchRecord:
        """The completed record. Raises InvalidLaunchError: nothing may be measured on this server."""
        await self._early_evidence()
        self._refuse_invalid()
        if engine.meaningful_output(settings):
            say("the same answers as the other arms")
            await self._ask(engine, settings, http)
            self._refuse_invalid()
        if asked := self._scenario.accuracy.gsm8k:
            accuracy = self._evaluated()
            if accuracy is None:
                say(f"GSM8K, {asked.questions} problems")
                command = engine.gsm8k(settings, self._context, asked.questions, asked.parallel, asked.data)
                accuracy = await gsm8k(command, settings.env, asked.timeout)
            found = accuracy_findings(accuracy, asked)
            self._of_text += found
            self._save(replace(self._record, accuracy=accuracy, findings=(*self._record.findings, *found)))
            self._refuse_invalid()
        return self._record

    def _evaluated(self) -> float | None:
        """What an earlier launch of this arm reached: once is enough."""
        mine = (self._record.arm, self._record.tp)
        earlier = (other for other in self._store.launches() if (other.arm, other.tp) == mine)
        return next((other.accuracy for other in earlier if other.accuracy is not None), None)

    def refuse(self, why: str) -> None:
        """Nothing was measured on this server."""
        self._save(replace(self._record, status=why))

    def finish(self) -> None:
        """Calls after the start may be rejected too: what the processes wrote last counts."""
        if self._record.verify:
            self._read_evidence()

    async def _early_evidence(self) -> None:
        """Graphs are captured by now."""
        deadline = time.monotonic() + _EVIDENCE_S
        while self._record.verify:
            self._read_evidence()
            if not any(f.invalid for f in self._record.findings) or time.monotonic() > deadline:
                return
            await asyncio.sleep(_EVIDENCE_S / 10)

    def _read_evidence(self) -> None:
        assert self._context.evidence_dir is not None
        evidence = read_evidence(self._context.evidence_dir)
        concurrency = max(level.concurrency for level in self._scenario.levels())
        found = check_evidence(evidence, self._record.verify, self._record.tp, self._handed_over, concurrency)
        self._save(replace(self._record, evidence=evidence, findings=(*found, *self._of_text)))

    async def _ask(self, engine: Engine[AnySettings], settings: AnySettings, http: ControlClient) -> None:
        check = self._scenario.output_check
        prompts = await fixed_prompts(lambda text: engine.tokenize(settings, http, text), check)
        outputs = await engine.answer(settings, http, prompts, check.output_tokens)
        record = replace(self._record, outputs=outputs)
        others = [other for other in self._store.launches() if other.slug != record.slug]
        self._of_text = check_outputs(self._scenario, [*others, record]).get(record.slug, ())
        self._save(replace(record, findings=(*record.findings, *self._of_text)))

    def _save(self, record: LaunchRecord) -> None:
        self._record = record
        self._store.save_launch(record)

    def _refuse_invalid(self) -> None:
        invalid = next((finding for finding in self._record.findings if finding.invalid), None)
        if invalid:
            raise InvalidLaunchError(f"INVALID: {invalid.message}", "Nothing is measured on such a server.")
