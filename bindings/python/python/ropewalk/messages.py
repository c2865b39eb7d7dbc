"""Messages over all the interfaces between two hosts as if they were one."""

from __future__ import annotations

import os
from collections.abc import Iterable
from types import TracebackType
from typing import Any

from . import _ropewalk
from .agent import texts_of, token_of
from .errors import raised


class MessageSocket:
    """A connection over one or more interfaces. Messages arrive once, whole and in the order they were begun.

    `fileno` is for `selectors` and event loops: readable when there may be something to receive, and quiet after `receive(timeout=0)` has raised
    `TimeoutError`. Call that until it raises.
    """

    def __init__(self, socket: _ropewalk.MessageSocket) -> None:
        self._socket = socket

    @classmethod
    def connect(
        cls,
        to: Iterable[str],
        *,
        token: bytes | None = None,
        token_file: str | bytes | os.PathLike[str] | None = None,
        plain: bool = False,
        local: Iterable[str] = (),
    ) -> MessageSocket:
        """Connects to a listener, one interface for each address, from the `local` addresses where those are given."""
        with raised():
            return cls(_ropewalk.MessageSocket.connect(texts_of(to), token_of(token, token_file), plain, texts_of(local)))

    def send(self, message: Any) -> None:
        """Sends bytes (any contiguous memory), and waits until the peer's socket has all of them."""
        with raised():
            self._socket.send(message)

    def send_start(self, message: Any) -> int:
        """Begins to send bytes, and gives the message's number."""
        with raised():
            return self._socket.send_start(message)

    def is_sent(self, number: int) -> bool:
        """Whether the peer's socket has the whole message of this number."""
        with raised():
            return self._socket.is_sent(number)

    def receive(self, most: int = 16 << 20, timeout: float | None = None) -> bytes | None:
        """The next message, of at most `most` bytes; `None`: the peer sends nothing more. A longer one stays, and is an `InputError`.

        Raises `TimeoutError` where no message was whole within `timeout` seconds; what arrived of one stays for the next call.
        """
        with raised():
            is_there, message = self._socket.receive(most, timeout)
        if not is_there:
            raise TimeoutError(f"no message arrived for {timeout} s")
        return message

    def finish_sending(self) -> None:
        """Announces that nothing more is sent, and waits until the peer has all."""
        with raised():
            self._socket.finish_sending()

    def fileno(self) -> int:
        """The descriptor, for `selectors` and event loops."""
        return self._socket.fileno()

    def close(self) -> None:
        """Closes it: what the peer does not have is given up."""
        self._socket.close()

    def __enter__(self) -> MessageSocket:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class MessageListener:
    """Waits for peers on the addresses of one or more interfaces; port 0 lets the system choose."""

    def __init__(
        self,
        listen: Iterable[str],
        *,
        token: bytes | None = None,
        token_file: str | bytes | os.PathLike[str] | None = None,
        plain: bool = False,
    ) -> None:
        with raised():
            self._listener = _ropewalk.MessageListener(texts_of(listen), token_of(token, token_file), plain)
            self.addresses: list[str] = self._listener.addresses()

    def accept(self, timeout: float | None = None) -> MessageSocket:
        """Waits for a peer. Raises `TimeoutError` where none was there for `timeout` seconds."""
        with raised():
            socket = self._listener.accept(timeout)
        if socket is None:
            raise TimeoutError(f"no peer was there for {timeout} s")
        return MessageSocket(socket)

    def fileno(self) -> int:
        """The descriptor, readable when a peer can be accepted; -1 after `close`."""
        return self._listener.fileno()

    def close(self) -> None:
        """Listens no more; sockets that were accepted stay."""
        self._listener.close()

    def __enter__(self) -> MessageListener:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
