"""Regions: a named data space whose ranges are in memory or files of several nodes, read and written from any process."""

from __future__ import annotations

import os
from collections.abc import Iterable
from types import TracebackType
from typing import Any

from . import _ropewalk
from .agent import texts_of, token_of
from .errors import raised


class RegionServer:
    """Serves ranges of regions from memory and files of this process, on threads of its own, until `close` or the end of a `with` block.

    At most 256 `Region` objects, of all programs together, are connected to one at once, each with seven threads here; threads of a program share one.
    """

    def __init__(
        self,
        listen: Iterable[str] = ("127.0.0.1:0",),
        *,
        token: bytes | None = None,
        token_file: str | bytes | os.PathLike[str] | None = None,
        plain: bool = False,
    ) -> None:
        with raised():
            self._server = _ropewalk.RegionServer(texts_of(listen), token_of(token, token_file), plain)
        self.addresses: list[str] = self._server.addresses()

    def serve(self, name: str, size: int, held: Iterable[tuple[Any, ...]], *, rule: str = "all") -> None:
        """Serves ranges of a region of `size` bytes: each is `(start, end, memory)` or `(start, end, path, offset in the file)`.

        * memory: contiguous, as `Agent.lend` takes it, and the origins' until `withdraw` or `close`.
        * rule: `read-only`; `all`: a put goes to all nodes that hold the range; `owner`: to the one that owns it, which is this one. All nodes state the same.
        """
        owned = rule == "owner"
        with raised():
            self._server.serve(name, size, rule, [(one[0], one[1], one[2], one[3] if len(one) > 3 else 0, owned) for one in held])

    def withdraw(self, name: str) -> bool:
        """Serves a region no longer. `False`: there is none of this name."""
        with raised():
            return self._server.withdraw(name)

    def close(self) -> None:
        """Ends it; no thread touches the memory after this."""
        self._server.close()

    def __enter__(self) -> RegionServer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class Get:
    """A get under way. Dropping it gives it up."""

    def __init__(self, get: _ropewalk.Get) -> None:
        self._get = get

    def wait(self, timeout: float | None = None) -> bytes:
        """The bytes of all ranges, one after the other. Raises `TimeoutError` where they are not here within `timeout` seconds; it goes on then."""
        with raised():
            found = self._get.wait(timeout)
        if found is None:
            raise TimeoutError(f"the bytes are not here after {timeout} s")
        return found

    def test(self) -> bool:
        """Whether it has ended. Does not wait."""
        with raised():
            return self._get.test()


class Region:
    """A region that is read and written from this process. Ctrl-C ends calls that wait; what was begun to be written may be written all the same.

    * name: that which the nodes serve it under.
    * nodes: one entry for each: its address, or a list of those of several interfaces.
    * timeout: longest time of a call in seconds, 60 unless given.
    """

    def __init__(
        self,
        name: str,
        nodes: Iterable[str | Iterable[str]],
        *,
        token: bytes | None = None,
        token_file: str | bytes | os.PathLike[str] | None = None,
        plain: bool = False,
        timeout: float | None = None,
    ) -> None:
        lists = [[node] if isinstance(node, str) else list(node) for node in texts_of(nodes)]
        with raised():
            self._region = _ropewalk.Region.connect(name, lists, token_of(token, token_file), plain, timeout)

    @property
    def size(self) -> int:
        """Bytes of the region."""
        with raised():
            return self._region.size()

    @property
    def lost(self) -> list[tuple[list[str], str]]:
        """Nodes that take no part, by their addresses, and why."""
        with raised():
            return self._region.lost()

    def get(self, start: int, end: int) -> bytes:
        """The bytes of a range, from any node that holds it."""
        with raised():
            return self._region.get(start, end)

    def get_into(self, offset: int, memory: Any) -> None:
        """Fills writable memory (bytearray, array of bytes) with what is in the region from `offset` on."""
        with raised():
            self._region.get_into(offset, memory)

    def get_start(self, ranges: Iterable[tuple[int, int]]) -> Get:
        """Begins to get ranges; many may be under way."""
        with raised():
            return Get(self._region.get_start(list(ranges)))

    def put(self, offset: int, data: Any) -> None:
        """Writes bytes, and returns when the nodes that the rule names have them."""
        with raised():
            self._region.put(offset, data)

    def put_start(self, offset: int, data: Any) -> None:
        """Begins to write bytes, which are copied. `flush` waits for it, and raises its error; so does another `put_start` where some thousands are under way."""
        with raised():
            self._region.put_start(offset, data)

    def fence(self) -> None:
        """What is begun after it leaves when all puts begun before are complete. Does not wait."""
        with raised():
            self._region.fence()

    def flush(self) -> None:
        """Waits until all puts that were begun are complete."""
        with raised():
            self._region.flush()

    def notify(self, start: int, end: int, value: int) -> None:
        """Gives each byte of a range a value, unless it has a greater one, after all puts begun before."""
        with raised():
            self._region.notify(start, end, value)

    def wait(self, start: int, end: int, at_least: int, timeout: float | None = None) -> int:
        """Waits until some byte of a range has at least this value, and returns it. Raises `TimeoutError` where none has for `timeout` seconds."""
        with raised():
            value = self._region.wait(start, end, at_least, timeout)
        if value is None:
            raise TimeoutError(f"the range was not announced for {timeout} s")
        return value

    def close(self) -> None:
        """Closes the connections once calls of other threads, and gets that were begun, have ended. `flush` before to be sure of puts that were begun."""
        self._region.close()

    def __enter__(self) -> Region:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Without an error, puts that were begun are complete then, as those of a file."""
        try:
            if kind is None:
                self.flush()
        finally:
            self.close()
