"""AROUND hooks, placed once; a target that can't be found is only logged."""

import functools
import logging
import pkgutil
from enum import Enum

logger = logging.getLogger(__name__)


class HookType(Enum):
    AROUND = "around"


class HookRegistry:
    _hooks: dict = {}
    _placed: set = set()

    @classmethod
    def register(cls, target, hook, hook_type):
        cls._hooks[target] = hook

    @classmethod
    def apply_hooks(cls):
        for target, hook in cls._hooks.items():
            if target in cls._placed:
                continue
            try:
                where, name = target.rsplit(".", 1)
                owner = pkgutil.resolve_name(where)
                original = getattr(owner, name)
                setattr(owner, name, _wrap(original, hook))
                cls._placed.add(target)
            except Exception:
                logger.exception("Failed to apply hooks to %s", target)

    @classmethod
    def reset(cls):
        cls._hooks.clear()
        cls._placed.clear()


def _wrap(original, hook):
    @functools.wraps(original)
    def wrapped(*args, **kwargs):
        return hook(original, *args, **kwargs)

    return wrapped
