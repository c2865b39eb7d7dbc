"""Byte streams over all the interfaces between two hosts: what a TCP connection is to a program."""

from __future__ import annotations

import asyncio
import errno
import io
import os
import socket
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, TypeVar

from . import _ropewalk
from .agent import texts_of, token_of
from .errors import Error, InputError, raised

T = TypeVar("T")


class _Turns:
    """Tasks that wait for one descriptor: one for each way."""

    def __init__(self, fileno: Callable[[], int]) -> None:
        self._fileno = fileno
        self._waiting: set[bool] = set()
        self._asleep: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()

    async def until(self, call: Callable[[], T | None], *, writes: bool = False) -> T:
        """Calls what does not wait whenever there is news, until it gives something."""
        if writes in self._waiting:
            raise InputError(f"another task {'writes' if writes else 'reads or accepts'} here already")
        self._waiting.add(writes)
        try:
            while True:
                with raised():
                    done = call()
                if done is not None:
                    return done
                await self.news(writes=writes)
        finally:
            self._waiting.discard(writes)

    async def news(self, is_over: Callable[[], bool] = lambda: False, *, writes: bool = False) -> None:
        """Waits until a call may find something, unless all is over meanwhile. Any number of tasks may wait so."""
        loop, news = asyncio.get_running_loop(), asyncio.Event()
        one = (loop, news)
        self._asleep.add(one)
        try:
            # Closed since: the next call says so.
            if (shared := self._fileno()) == -1 or is_over():
                return
            # One of its own: that of what is closed meanwhile may be another file by then.
            descriptor = os.dup(shared)
            try:
                (loop.add_writer if writes else loop.add_reader)(descriptor, news.set)
                try:
                    await news.wait()
                finally:
                    (loop.remove_writer if writes else loop.remove_reader)(descriptor)
            finally:
                os.close(descriptor)
        finally:
            self._asleep.discard(one)

    def wake(self) -> None:
        """Wakes all tasks, for what the descriptor does not say: that it was closed, or that another call has taken the news. From any thread."""
        for loop, news in list(self._asleep):
            try:
                loop.call_soon_threadsafe(news.set)
            except RuntimeError:
                # The loop has ended, and the task with it.
                pass


class _File(io.RawIOBase):
    """A stream below the buffers of `makefile`."""

    def __init__(self, stream: ByteStream, reads: bool, writes: bool) -> None:
        self._stream = stream
        self._reads = reads
        self._writes = writes

    def readable(self) -> bool:
        return self._reads

    def writable(self) -> bool:
        return self._writes

    def readinto(self, buffer: Any) -> int | None:
        try:
            return self._stream.recv_into(buffer)
        except BlockingIOError:
            return None

    def write(self, data: Any) -> int | None:
        try:
            return self._stream.send(data)
        except BlockingIOError:
            return None

    def fileno(self) -> int:
        return self._stream.fileno()


class ByteStream:
    """Bytes in order, both ways, over one or more interfaces: the methods are those of `socket.socket`, and failures are an `Error`.

    An interface that fails takes nothing with it. `fileno` is for `selectors`: readable and writable as a socket's, and quiet after a call that does not
    wait (`setblocking(False)`) has raised `BlockingIOError`. In tasks of asyncio there are `recv_async`, `recv_into_async`, `sendall_async`
    and `async with`. A `with` that an exception leaves resets the stream: the peer must not take a part for the whole.
    """

    def __init__(self, stream: _ropewalk.ByteStream) -> None:
        self._stream = stream
        self._timeout: float | None = None
        self._turns = _Turns(stream.fileno)

    @classmethod
    def connect(
        cls,
        to: Iterable[str],
        *,
        token: bytes | None = None,
        token_file: str | bytes | os.PathLike[str] | None = None,
        plain: bool = False,
        local: Iterable[str] = (),
    ) -> ByteStream:
        """Connects to a listener, one interface for each address, from the `local` addresses where those are given."""
        with raised():
            return cls(_ropewalk.ByteStream.connect(texts_of(to), token_of(token, token_file), plain, texts_of(local)))

    @classmethod
    async def connect_async(cls, to: Iterable[str], **options: Any) -> ByteStream:
        """As `connect`, for event loops."""
        return await asyncio.to_thread(lambda: cls.connect(to, **options))

    def open_beside(self, greeting: bytes = b"") -> ByteStream:
        """Opens another stream to the same peer, over the same connection: the way in which the end that listens opens streams.

        The peer has it from `ByteStreams.accept`, or from its listener; one that accepts none resets it.
        """
        with raised():
            return ByteStream(self._stream.open_beside(greeting))

    @property
    def greeting(self) -> bytes:
        """What the end that opened the stream says it is for."""
        with raised():
            return self._stream.greeting()

    def settimeout(self, timeout: float | None) -> None:
        """How many seconds later calls wait before they raise `TimeoutError`; 0: they do not wait, and raise `BlockingIOError`; `None`: no bound."""
        if timeout is not None and not timeout >= 0:
            raise InputError("a time is a number of seconds, and not negative; None is without end")
        self._timeout = timeout

    def gettimeout(self) -> float | None:
        """What `settimeout` set; no bound at first."""
        return self._timeout

    def setblocking(self, flag: bool) -> None:
        """As `settimeout`, with no bound or 0."""
        self._timeout = None if flag else 0.0

    def _in_time(self, done: T | None, doing: str) -> T:
        if done is not None:
            return done
        if self._timeout == 0:
            raise BlockingIOError(errno.EAGAIN, f"{doing} would wait")
        raise TimeoutError(f"{doing} took more than {self._timeout} s")

    def recv(self, bufsize: int) -> bytes:
        """Reads what is there, at least one byte and at most `bufsize`; nothing at the end."""
        with raised():
            return self._in_time(self._stream.recv(bufsize, self._timeout), "reading")

    def recv_into(self, buffer: Any, nbytes: int = 0) -> int:
        """Reads what is there into memory, at most `nbytes` (0: as much as it holds), and says how much; 0 at the end."""
        with raised():
            return self._in_time(self._stream.recv_into(buffer, nbytes, self._timeout), "reading")

    def send(self, data: Any) -> int:
        """Writes some of the bytes, and says how many: they are on their way."""
        with raised():
            return self._in_time(self._stream.send(data, self._timeout), "writing")

    def sendall(self, data: Any) -> None:
        """Writes all bytes. Where it raises, some may have been written."""
        with raised():
            _, is_all = self._stream.sendall(data, 0, self._timeout)
            self._in_time(is_all or None, "writing")

    async def recv_async(self, bufsize: int) -> bytes:
        """As `recv`, for event loops. A task that is cancelled has read nothing."""
        return await self._turns.until(lambda: self._stream.recv(bufsize, 0))

    async def recv_into_async(self, buffer: Any, nbytes: int = 0) -> int:
        """As `recv_into`, for event loops."""
        return await self._turns.until(lambda: self._stream.recv_into(buffer, nbytes, 0))

    async def sendall_async(self, data: Any) -> None:
        """As `sendall`, for event loops. When a task is cancelled, some bytes may have been written."""
        sent = 0

        def step() -> bool | None:
            nonlocal sent
            sent, is_all = self._stream.sendall(data, sent, 0)
            return is_all or None

        await self._turns.until(step, writes=True)

    def shutdown(self, how: int = socket.SHUT_WR) -> None:
        """Ends writing: the peer reads to the end, and reading goes on. Further calls do nothing."""
        if how != socket.SHUT_WR:
            raise InputError("only writing ends by itself (socket.SHUT_WR); close() ends both")
        with raised():
            self._in_time(self._stream.shutdown(self._timeout) or None, "ending")

    def finish(self, timeout: float | None = None) -> None:
        """Ends writing, and waits until the peer's host has all that was written. Raises `TimeoutError` after `timeout` seconds; it may be called again."""
        with raised():
            if not self._stream.finish(timeout):
                raise TimeoutError(f"the peer's host did not have everything within {timeout} s")

    def reset(self, text: str = "") -> None:
        """Gives the stream up, both ways: what is on its way is thrown away, and the peer's calls raise a `PeerError` with this text."""
        with raised():
            self._stream.reset(text)

    def close(self) -> None:
        """Closes it: the peer reads to the end, and what it writes fails.

        As no kernel delivers what is on its way when the program ends, this waits for that as long as other calls wait (`settimeout`), and raises no error of it:
        call `finish` before to be sure. In a child of the process (`os.fork`) this does nothing: the stream is its parent's.
        """
        if self._stream.fileno() == -1:
            return
        try:
            with raised():
                self._stream.finish(self._timeout)
        except Error:
            pass
        finally:
            self._stream.close()
            self._turns.wake()

    def _give_up(self) -> None:
        """Of a program that failed: what it has written is not all, and the peer must not take it for that."""
        if self._stream.fileno() == -1:
            return
        try:
            with raised():
                self._stream.reset("the program at the other end failed")
        except Error:
            pass
        finally:
            self._stream.close()
            self._turns.wake()

    async def close_async(self) -> None:
        """As `close`, for event loops."""
        await asyncio.to_thread(self.close)

    def fileno(self) -> int:
        """The descriptor, for `selectors` and event loops; -1 after `close`. Nothing can be read from it or written to it."""
        return self._stream.fileno()

    def makefile(
        self,
        mode: str = "r",
        buffering: int = -1,
        *,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
    ) -> Any:
        """A file object over it, with a mode of `r`, `w` and `b` and arguments as of `socket.makefile`. Closing that leaves the stream open."""
        if not mode or not set(mode) <= set("rwb"):
            raise InputError(f"{mode!r} is no mode; write r, w, rw, rb, wb or rwb")
        reads, writes = "r" in mode or "w" not in mode, "w" in mode
        raw = _File(self, reads, writes)
        if buffering == 0:
            if "b" not in mode:
                raise InputError("text needs a buffer; add b to the mode")
            return raw
        size = buffering if buffering > 1 else io.DEFAULT_BUFFER_SIZE
        buffer: Any
        if reads and writes:
            buffer = io.BufferedRWPair(raw, raw, size)
        else:
            buffer = io.BufferedReader(raw, size) if reads else io.BufferedWriter(raw, size)
        if "b" in mode:
            return buffer
        return io.TextIOWrapper(buffer, encoding, errors, newline, line_buffering=buffering == 1)

    def __enter__(self) -> ByteStream:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self.close()
        else:
            self._give_up()

    async def __aenter__(self) -> ByteStream:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            await self.close_async()
        else:
            self._give_up()

    def __repr__(self) -> str:
        return f"<ByteStream fileno={self.fileno()}>"


class ByteStreams:
    """One connection over one or more interfaces to a listener, for up to 1024 byte streams, none of which slows another.

    Both ends open streams: this one with `open`, the listening one with `ByteStream.open_beside`.
    """

    def __init__(self, streams: _ropewalk.ByteStreams) -> None:
        self._streams = streams
        self._turns = _Turns(streams.fileno)

    @classmethod
    def connect(
        cls,
        to: Iterable[str],
        *,
        token: bytes | None = None,
        token_file: str | bytes | os.PathLike[str] | None = None,
        plain: bool = False,
        local: Iterable[str] = (),
    ) -> ByteStreams:
        """As `ByteStream.connect`."""
        with raised():
            return cls(_ropewalk.ByteStreams.connect(texts_of(to), token_of(token, token_file), plain, texts_of(local)))

    def open(self, greeting: bytes = b"") -> ByteStream:
        """Opens a stream, with up to 1 KiB that says what it is for. Does not wait for the end that accepts it."""
        with raised():
            return ByteStream(self._streams.open(greeting))

    def accept(self, timeout: float | None = None) -> ByteStream:
        """Waits for a stream that the listening end opens. Raises `TimeoutError` where none was there for `timeout` seconds."""
        with raised():
            stream = self._streams.accept(timeout)
        if stream is None:
            raise TimeoutError(f"no byte stream was there for {timeout} s")
        return ByteStream(stream)

    async def accept_async(self) -> ByteStream:
        """As `accept`, for event loops."""
        return ByteStream(await self._turns.until(lambda: self._streams.accept(0)))

    def fileno(self) -> int:
        """The descriptor, readable when a stream can be accepted; -1 after `close`."""
        return self._streams.fileno()

    def close(self) -> None:
        """Opens and accepts no more streams; those that are open stay."""
        self._streams.close()
        self._turns.wake()

    def __enter__(self) -> ByteStreams:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class ByteStreamListener:
    """Waits for byte streams on the addresses of one or more interfaces, from any number of peers; port 0 lets the system choose."""

    def __init__(
        self,
        listen: Iterable[str],
        *,
        token: bytes | None = None,
        token_file: str | bytes | os.PathLike[str] | None = None,
        plain: bool = False,
    ) -> None:
        with raised():
            self._listener = _ropewalk.ByteStreamListener(texts_of(listen), token_of(token, token_file), plain)
            self.addresses: list[str] = self._listener.addresses()
        self._turns = _Turns(self._listener.fileno)

    def accept(self, timeout: float | None = None) -> ByteStream:
        """Waits for a stream. Raises `TimeoutError` where none was there for `timeout` seconds."""
        with raised():
            stream = self._listener.accept(timeout)
        if stream is None:
            raise TimeoutError(f"no byte stream was there for {timeout} s")
        return ByteStream(stream)

    async def accept_async(self) -> ByteStream:
        """As `accept`, for event loops."""
        return ByteStream(await self._turns.until(lambda: self._listener.accept(0)))

    def fileno(self) -> int:
        """The descriptor, readable when a stream can be accepted; -1 after `close`."""
        return self._listener.fileno()

    def close(self) -> None:
        """Listens no more; streams that were accepted stay."""
        self._listener.close()
        self._turns.wake()

    def __enter__(self) -> ByteStreamListener:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
