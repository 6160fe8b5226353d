"""Loads plug-ins as SGLang does: whatever fails is logged and forgotten."""

import logging
from importlib.metadata import entry_points

from sglang.srt.plugins.hook_registry import HookRegistry

logger = logging.getLogger(__name__)


def load_plugins():
    for entry in entry_points(group="sglang.srt.plugins"):
        try:
            entry.load()()
        except Exception:
            logger.exception("Failed to load plugin %s", entry.name)
    HookRegistry.apply_hooks()
