"""An agent in this process: serves folders, and memory of this program, to transfers."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any

from . import _ropewalk
from .errors import InputError, raised
from .places import Place


def new_token() -> bytes:
    """A fresh secret for agents and those that use them."""
    return bytes(_ropewalk.new_token())


def token_of(token: bytes | None, token_file: str | bytes | os.PathLike[str] | None) -> list[int] | None:
    """A secret, given or in a file that `ropewalk agent --new-token FILE` made; `~` at its beginning is the home folder."""
    if token is not None and token_file is not None:
        raise InputError("give token or token_file, not both")
    if token_file is not None:
        with raised():
            return list(_ropewalk.read_token(os.path.expanduser(os.fsdecode(token_file))))
    if token is not None and len(token) != 32:
        raise InputError(f"a token has 32 bytes, not {len(token)}")
    return None if token is None else list(token)


def texts_of(given: Iterable[str]) -> list[str]:
    """A list of addresses. One text would be a list of its letters."""
    if isinstance(given, (str, bytes)):
        raise InputError(f"addresses are a list, one for each interface: write [{os.fsdecode(given)!r}]")
    return list(given)


class Lent:
    """Memory that an agent is lent, until `end`, the end of a `with` block, or the end of the agent; also where this object is not kept."""

    def __init__(self, lent: _ropewalk.Lent, agent: Agent, name: str, memory: Any) -> None:
        self._lent = lent
        self._agent = agent
        self.name = name
        self.memory = memory

    @property
    def place(self) -> Place:
        """Its place, for `copy`."""
        return Place.buffer(self._agent.addresses[0], self.name)

    @property
    def written(self) -> list[tuple[int, int]]:
        """Ranges that transfers have delivered, checked."""
        with raised():
            return self._lent.written()

    @property
    def is_busy(self) -> bool:
        """Whether a transfer writes it."""
        with raised():
            return self._lent.is_busy()

    def end(self) -> None:
        """Takes the memory back: no thread touches it after this, and a transfer that needs it fails."""
        self._agent._withdraw(self.name, self._lent)
        self._lent.end()

    def __enter__(self) -> Lent:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.end()


class Agent:
    """Serves until `stop` or the end of a `with` block.

    * `token`: the secret that transfers must prove to know; `new_token()` unless given.
    * `listen`: addresses, with port 0 for any.
    * `roots`: folders, and whether transfers may write there.
    """

    def __init__(
        self,
        token: bytes | None = None,
        listen: Iterable[str] = ("127.0.0.1:0",),
        roots: Mapping[str | bytes | os.PathLike[str], bool] | None = None,
        *,
        token_file: str | bytes | os.PathLike[str] | None = None,
    ) -> None:
        secret = token_of(token, token_file) or list(new_token())
        self.token = bytes(secret)
        with raised():
            self._agent = _ropewalk.Agent(texts_of(listen), secret, [(os.fsdecode(path), may) for path, may in (roots or {}).items()])
        self.addresses: list[str] = self._agent.addresses()
        # By name. Not the objects that users have: these have the agent.
        self._lent: dict[str, _ropewalk.Lent] = {}

    def lend(self, name: str, memory: Any, *, writable: bool = False) -> Lent:
        """Has the agent serve memory as `buffer:NAME`: bytes, bytearray, memoryview, mmap, numpy array, tensor of the CPU. What has no buffer
        protocol is taken by `__dlpack__`. It must be contiguous, of any kind of element but such as hold pointers (`dtype=object`), else `BufferError`;
        nothing is copied as a whole.

        With `writable`, transfers write it: do not touch it until the transfer has ended. Else do not change it. It is lent until `Lent.end`, or
        until the agent ends.
        """
        with raised():
            lent = self._agent.lend(name, memory, writable)
        self._lent[name] = lent
        return Lent(lent, self, name, memory)

    def _withdraw(self, name: str, lent: _ropewalk.Lent) -> None:
        # The name may be that of other memory by now.
        if self._lent.get(name) is lent:
            del self._lent[name]
            self._agent.withdraw(name)

    def stop(self) -> None:
        """Stops all transfers and waits until their files are in order. Memory that it was lent is the program's again."""
        try:
            with raised():
                self._agent.stop()
        finally:
            lent, self._lent = self._lent, {}
            for one in lent.values():
                one.end()

    def __enter__(self) -> Agent:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()
