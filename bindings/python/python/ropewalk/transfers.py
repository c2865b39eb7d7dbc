"""Copies of files and trees, and transfers of rows."""

from __future__ import annotations

import asyncio
import json
import os
import sysconfig
from collections.abc import Callable, Generator, Iterable, Iterator
from types import TracebackType
from typing import Any

from . import _ropewalk
from .agent import token_of
from .errors import Error, InputError, raised
from .places import Place, PlaceLike, place
from .report import Report
from .streams import _Turns

Progress = Callable[[dict[str, Any]], None]

_LOOK_EVERY = 0.1


def _text(value: object) -> str:
    if isinstance(value, (bytes, os.PathLike)):
        return os.fsdecode(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _all(of: PlaceLike | Iterable[PlaceLike]) -> list[Place]:
    if isinstance(of, (str, bytes, Place, os.PathLike)):
        return [place(of)]
    return [place(one) for one in of]


def _time(timeout: float | None) -> float:
    """The seconds of a wait; below 0 is none at all."""
    if timeout is None:
        return float("inf")
    if timeout != timeout:
        raise InputError("a timeout is a number of seconds, not NaN; leave it out to wait for the end")
    return max(timeout, 0.0)


class _Bar:
    """Progress of a transfer in a bar of tqdm."""

    def __init__(self) -> None:
        try:
            from tqdm.auto import tqdm
        except ImportError:
            raise InputError("progress=True needs tqdm; install it, or give a function") from None
        self._bar = tqdm(unit="B", unit_scale=True)

    def __call__(self, event: dict[str, Any]) -> None:
        if event.get("event") == "progress":
            self._show(event["delivered_bytes"], event["total_bytes"])
        elif event.get("event") == "ended":
            report = event["report"]
            # A short one has had no progress until now.
            self._show(report["delivered_bytes"], report["wanted_bytes"])
            self._bar.close()

    def _show(self, delivered: int, total: int) -> None:
        self._bar.total = total
        self._bar.update(delivered - self._bar.n)


def _handler(progress: Progress | bool | None) -> Progress:
    if progress is True:
        return _Bar()
    if progress is None or progress is False:
        return lambda _: None
    if not callable(progress):
        raise InputError(f"progress is a function of events, or True for a bar of tqdm, not {progress!r}")
    return progress


def _options(of: dict[str, object]) -> Iterator[tuple[str, str]]:
    """Options as the library has them; those that are `None` have their default."""
    for name, value in of.items():
        if value is not None:
            yield name.replace("_", "-"), _text(value)


class Copy:
    """A copy that runs in the background: `wait` for it, or `await` it.

    The first argument is a place, or a list of them, to copy from, the second likewise to copy to; both go by position, as `sources` and `destinations` are
    options, too. Sources that hold the same data are used together, and each destination gets all of it. `progress` is a function of events, or `True` for a bar of tqdm.
    These options of `ropewalk copy` exist here, with `_` for `-`; `None` is the default of each, and others are an `InputError`:

    * as texts: `verify="sink"` (or none, fragment, tree, replicas), `limit="1Gbit"`, `streams=4` (or auto), `lane="tcp"` (or auto, unix, shm),
      `rails="one"` (or auto, or "eth0,10.0.0.0/8"), `sources="replicas"` (or auto, parts), `destinations="shared"` (or copies).
    * `True` or `False`: `plain`, `archive`, `atomic`, `delete`, `delta`, `hard_links`.

    Leaving a `with` block before the end cancels it; what is safe stays for the next copy to the same place.
    """

    def __init__(
        self,
        sources: PlaceLike | Iterable[PlaceLike],
        destinations: PlaceLike | Iterable[PlaceLike],
        /,
        *,
        token: bytes | None = None,
        token_file: str | bytes | os.PathLike[str] | None = None,
        progress: Progress | bool | None = None,
        **options: object,
    ) -> None:
        self.sources = _all(sources)
        self.destinations = _all(destinations)
        secret = token_of(token, token_file)
        self._progress = _handler(progress)
        # How it ended: taken once, and kept for all that wait.
        self._report: Report | None = None
        self._failure: Error | None = None
        with raised():
            copy = _ropewalk.Copy()
            for one in self.sources:
                copy.source(one._place)
            for one in self.destinations:
                copy.destination(one._place)
            if secret is not None:
                copy.token(secret)
            for name, value in _options(options):
                copy.option(name, value)
            # The command of this package serves places of this host; without it, one in the search path.
            program = os.path.join(sysconfig.get_path("scripts"), "ropewalk")
            if os.path.exists(program):
                copy.local_program(program)
            self._running = copy.start()
        self._turns = _Turns(self._running.fileno)

    @property
    def data_sent(self) -> int:
        """Bytes that are in the destinations, checked and on stable storage."""
        return self._running.data_sent()

    def _look(self) -> None:
        for event in self._running.events():
            self._progress(json.loads(event))

    def _has_ended(self) -> bool:
        return self._report is not None or self._failure is not None

    def _step(self, seconds: float) -> Report | None:
        if not self._has_ended():
            try:
                with raised():
                    ended = self._running.wait_for(seconds)
            except Error as error:
                self._failure = error._again()
                self._turns.wake()
            else:
                if ended is not None:
                    self._report = Report(json.loads(ended))
                    self._turns.wake()
        if self._failure is not None:
            raise self._failure._again()
        return self._report

    def wait(self, timeout: float | None = None) -> Report:
        """Waits for the end. Raises `TimeoutError` after `timeout` seconds, and the copy goes on; Ctrl-C cancels it."""
        left = _time(timeout)
        try:
            while True:
                try:
                    report = self._step(min(left, _LOOK_EVERY))
                finally:
                    self._look()
                if report is not None:
                    return report
                left -= _LOOK_EVERY
                if left <= 0:
                    raise TimeoutError(f"the copy did not end within {timeout} s")
        except KeyboardInterrupt:
            self.close()
            raise

    def __await__(self) -> Generator[Any, None, Report]:
        return self._ended().__await__()

    async def _ended(self) -> Report:
        try:
            while True:
                try:
                    report = self._step(0)
                finally:
                    self._look()
                if report is not None:
                    return report
                await self._turns.news(self._has_ended)
        except asyncio.CancelledError:
            self.cancel()
            raise

    def cancel(self) -> None:
        """Ends it within a second; `wait` raises its end."""
        self._running.cancel()

    def fileno(self) -> int:
        """A descriptor that is readable when there is something to look at; -1 after `close`."""
        return self._running.fileno()

    def close(self) -> None:
        """Cancels it where it runs, and waits for that."""
        self._running.close()
        self._turns.wake()

    def __enter__(self) -> Copy:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        ends = ", ".join(map(repr, self.sources)) + " to " + ", ".join(map(repr, self.destinations))
        state = "running" if self._report is None else str(self._report)
        return f"<Copy of {ends}: {state}>"

    def _repr_html_(self) -> str:
        import html

        return html.escape(repr(self)) if self._report is None else self._report._repr_html_()


def copy(
    sources: PlaceLike | Iterable[PlaceLike],
    destinations: PlaceLike | Iterable[PlaceLike],
    /,
    **options: Any,
) -> Report:
    """Copies files or trees, and waits for the end; arguments as of `Copy`."""
    with Copy(sources, destinations, **options) as running:
        return running.wait()


async def copy_async(
    sources: PlaceLike | Iterable[PlaceLike],
    destinations: PlaceLike | Iterable[PlaceLike],
    /,
    **options: Any,
) -> Report:
    """As `copy`, for event loops: cancelling the task cancels the copy."""
    running = Copy(sources, destinations, **options)
    try:
        return await running
    finally:
        await asyncio.to_thread(running.close)


class Rows:
    """A transfer that is described row by row, as CEP's Table 1: `schedule` rows as of a specification file, `transfer` to start or continue,
    `data_sent`. After an error that may pass the same calls continue it. Rows that are scheduled while it runs join it.

    Options are `verify`, `limit`, `streams`, `lane`, `plain` and `rails`, as of `Copy`. With `master="HOST:PORT"` a running `ropewalk serve --listen` carries the rows out, with the agents' token; the job goes on when this program ends.

    >>> rows = Rows(token_file="~/token")                       # doctest: +SKIP
    >>> rows.schedule("writer a:7420 /data/half1 0 0-1023")     # doctest: +SKIP
    >>> rows.schedule("reader b:7420 /copy 0 0-1023")           # doctest: +SKIP
    >>> rows.wait()                                             # doctest: +SKIP
    """

    def __init__(
        self,
        *,
        token: bytes | None = None,
        token_file: str | bytes | os.PathLike[str] | None = None,
        over_ssh: bool = False,
        master: str | None = None,
        progress: Progress | bool | None = None,
        **options: object,
    ) -> None:
        secret = token_of(token, token_file)
        self._progress = _handler(progress)
        self._rows = _ropewalk.Rows()
        with raised():
            if secret is not None:
                self._rows.token(secret)
            if over_ssh:
                self._rows.over_ssh()
            if master is not None:
                self._rows.master(master)
            for name, value in _options(options):
                self._rows.option(name, value)

    def schedule(self, row: str) -> None:
        """Adds one row; nothing moves before `transfer`."""
        with raised():
            self._rows.schedule(row)

    def _step(self, seconds: float) -> Report | None:
        with raised():
            try:
                ended = self._rows.wait_for(seconds)
            finally:
                for event in self._rows.events():
                    self._progress(json.loads(event))
        return None if ended is None else Report(json.loads(ended))

    def transfer(self) -> Report | None:
        """Starts the transfer, or continues it, and returns at once: the report when all is delivered."""
        return self._step(0)

    def wait(self, timeout: float | None = None) -> Report:
        """As `transfer`, and waits for the end. Raises `TimeoutError` after `timeout` seconds, and the transfer goes on."""
        left = _time(timeout)
        while True:
            report = self._step(min(left, _LOOK_EVERY))
            if report is not None:
                return report
            left -= _LOOK_EVERY
            if left <= 0:
                raise TimeoutError(f"the transfer did not end within {timeout} s")

    @property
    def data_sent(self) -> int:
        """Bytes that are in the destinations, checked and on stable storage."""
        with raised():
            return self._rows.data_sent()

    def cancel(self) -> None:
        """Ends the running transfer within a second."""
        with raised():
            self._rows.cancel()

    def fileno(self) -> int:
        """A descriptor of the running transfer, readable when there is something to look at; -1 where none runs."""
        with raised():
            descriptor = self._rows.fileno()
        return -1 if descriptor is None else descriptor
