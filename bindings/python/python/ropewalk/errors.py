"""Why a call failed, by the party that must act."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator

from . import _ropewalk
from .report import Report


class Error(Exception):
    """A failed call.

    * `message`: what failed, where, and what to do.
    * `kind`: of a transfer, which kind of error: an object as `error_kind` of `--json`, with the nodes and ranges it concerns.
    * `is_retryable`: the same call may succeed later.
    * `report`: of a transfer that had begun, what it did until then.
    """

    def __init__(
        self,
        message: str,
        kind: object = None,
        is_retryable: bool = False,
        report: Report | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.kind = kind
        self.is_retryable = is_retryable
        self.report = report

    def _again(self) -> Error:
        """The same, for another call: one that was raised keeps what its call had."""
        return type(self)(self.message, self.kind, self.is_retryable, self.report)


class InputError(Error):
    """The caller has to act: what was asked for is wrong, is refused, or was cancelled."""


class HostError(Error):
    """The operator of this host: an address, a folder, a limit of the system."""


class PeerError(Error):
    """The operator of another host: its disk, its files, its agent."""


class NetworkError(Error):
    """The operator of the network: the same call may succeed later."""


class BugError(Error):
    """The authors of Ropewalk: please report it."""


_PARTIES: dict[str, type[Error]] = {
    "input": InputError,
    "host": HostError,
    "peer": PeerError,
    "network": NetworkError,
    "bug": BugError,
}


@contextlib.contextmanager
def raised() -> Iterator[None]:
    """Raises failures of the extension as an `Error`."""
    try:
        yield
    except _ropewalk.Failed as failed:
        party, message, kind, is_retryable, report = failed.args
        raise _PARTIES[party](
            message,
            None if kind is None else json.loads(kind),
            is_retryable,
            None if report is None else Report(json.loads(report)),
        ) from None
