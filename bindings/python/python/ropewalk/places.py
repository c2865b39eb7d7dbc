"""Where data is, and where it goes."""

from __future__ import annotations

import os
import re
from typing import Union

from . import _ropewalk
from .errors import InputError

_AGENT = re.compile(r"(?P<host>\[[^]]+\]|[^:/\[\]]+):(?P<port>[0-9]{1,5}):(?P<path>.*)", re.DOTALL)
_SSH = re.compile(r"(?P<target>(?:[^:/@\[\]]+@)?(?:\[[^]]+\]|[^:/@\[\]]+)):(?P<path>.*)", re.DOTALL)


class Place:
    """One end of a copy, written as for `ropewalk copy`.

    * `/data/set`, `./set`, any path object: on this host.
    * bytes, as `os.fsencode` gives: the text that `os.fsdecode` makes of them.
    * `b:/data/set`, `me@b:/data/set`: on a host that is reached over ssh.
    * `c:7420:/data/set`, `[::1]:7420:/data/set`: on a host where an agent listens.

    Memory that an `Agent` of this program is lent is a place, too: `Lent.place`.
    """

    def __init__(self, text: str | bytes | os.PathLike[str] | os.PathLike[bytes]) -> None:
        self.text = os.fsdecode(text)
        if not self.text:
            raise InputError("an empty path names nothing; write . for this folder")
        self._place = _parsed(self.text) if isinstance(text, (str, bytes)) else _here(self.text)

    @classmethod
    def buffer(cls, address: str, name: str) -> Place:
        """Memory that the agent at an address is lent under this name."""
        host, _, port = address.rpartition(":")
        place = cls.__new__(cls)
        place.text = f"{address}:buffer:{name}"
        place._place = _ropewalk.Place.buffer(host.strip("[]"), int(port), name)
        return place

    def __repr__(self) -> str:
        return f"Place({self.text!r})"


PlaceLike = Union[Place, str, bytes, "os.PathLike[str]", "os.PathLike[bytes]"]


def _here(path: str) -> _ropewalk.Place:
    return _ropewalk.Place.here(os.path.abspath(path))


def _parsed(text: str) -> _ropewalk.Place:
    if match := _AGENT.fullmatch(text):
        path = match["path"]
        if not path.startswith("/"):
            raise InputError(f"{text!r}: an agent that listens on a port takes an absolute path; write {match['host']}:{match['port']}:/path")
        if not 1 <= int(match["port"]) <= 65535:
            raise InputError(f"{text!r}: {match['port']} is not a port; ports are 1 to 65535")
        return _ropewalk.Place.at_agent(match["host"].strip("[]"), int(match["port"]), path)
    if match := _SSH.fullmatch(text):
        return _ropewalk.Place.over_ssh(match["target"], match["path"] or ".")
    return _here(text)


def place(of: PlaceLike) -> Place:
    """A place of what the caller wrote."""
    return of if isinstance(of, Place) else Place(of)
