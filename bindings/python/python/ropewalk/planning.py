"""Plans without a transfer."""

from __future__ import annotations

import json

from . import _ropewalk
from .errors import raised
from .report import Keys


class Plan(Keys):
    """Who sends which bytes to whom (`transfers`), in what time (`predicted_seconds`), the least time of any plan (`bound_seconds`), and what
    sets it (`binding`): the keys of `ropewalk plan --json`, also as attributes."""


def plan(specification: str, rate: str) -> Plan:
    """Plans the transfer of a specification file's text. Nothing is reached and nothing moves.

    `rate`: speed of each host for which no row gives one, in each direction, as "10Gbit".
    """
    with raised():
        return Plan(json.loads(_ropewalk.plan(specification, rate)))
