"""All engines by name, and the settings that select them."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from harness.engines.attach import Attach, AttachSettings
from harness.engines.base import Engine
from harness.engines.llamacpp import LlamaCpp, LlamaCppSettings
from harness.engines.script import ScriptedSettings
from harness.engines.scripted import Scripted
from harness.engines.sglang import Sglang
from harness.engines.sglang_settings import SglangSettings

ENGINES: dict[str, Engine[Any]] = {
    "attach": Attach(),
    "llamacpp": LlamaCpp(),
    "scripted": Scripted(),
    "sglang": Sglang(),
}

AnySettings = Annotated[
    AttachSettings | LlamaCppSettings | ScriptedSettings | SglangSettings,
    Field(discriminator="engine"),
]
