"""Plans without a transfer."""

from __future__ import annotations

import json
from typing import Any

from . import _ropewalk
from .errors import raised


class Plan(dict[str, Any]):
    """Who sends which bytes to whom (`transfers`), in what time (`predicted_seconds`), the least time of any plan (`bound_seconds`), and what
    sets it (`binding`): the keys of `ropewalk plan --json`, also as attributes."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"the plan has no {name}") from None


def plan(specification: str, rate: str) -> Plan:
    """Plans the transfer of a specification file's text. Nothing is reached and nothing moves.

    `rate`: speed of each host for which no row gives one, in each direction, as "10Gbit".
    """
    with raised():
        return Plan(json.loads(_ropewalk.plan(specification, rate)))
