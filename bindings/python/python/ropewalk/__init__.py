"""Moves a data set from N hosts to M hosts as one transfer, over all their interfaces.

>>> import ropewalk
>>> report = ropewalk.copy(["a:/data/set", "b:/data/set"], "c:/copy")      # doctest: +SKIP
>>> report.delivered_bytes, report.seconds                                 # doctest: +SKIP

* `copy`, `copy_async`, `Copy`: files and trees between hosts, and memory of this program (`Agent.lend`).
* `Rows`: which bytes of which files go where, row by row.
* `plan`: the least time of a specification, and who sends what to whom; nothing moves.
* `Agent`: serves folders and memory of this host to transfers.
* `MessageListener`, `MessageSocket`: messages over several interfaces.
* `ByteStreamListener`, `ByteStream`, `ByteStreams`: bytes over several interfaces, with the methods of a socket.
* `RegionServer`, `Region`: memory and files of other processes, read and written one-sidedly.

What fails is an `Error`, sorted by the party that must act. Beside it calls raise, as those of Python do: `TimeoutError` when the time of a call is over
(`BlockingIOError` of a byte stream that does not wait), `BufferError` for memory that cannot be used, `TypeError` for arguments of another type, and `asyncio.CancelledError`.
A signal handler's exception, as `KeyboardInterrupt`, ends calls that wait; they leave the interpreter to other threads.

In a child of the process (`os.fork`, the start method `fork` of multiprocessing) objects that were made before are refused, and ending them there
ends nothing of the parent's. Once a process has used one of them, a child that it forks makes none, either (`InputError`): use the start methods `spawn` or
`forkserver`, which PyTorch's `DataLoader(multiprocessing_context=...)` takes, too, or fork before.
"""

from ._ropewalk import __version__
from .agent import Agent, Lent, new_token
from .errors import BugError, Error, HostError, InputError, NetworkError, PeerError
from .messages import MessageListener, MessageSocket
from .places import Place
from .planning import Plan, plan
from .regions import Get, Region, RegionServer
from .report import Report
from .streams import ByteStream, ByteStreamListener, ByteStreams
from .transfers import Copy, Rows, copy, copy_async

__all__ = [
    "Agent",
    "BugError",
    "ByteStream",
    "ByteStreamListener",
    "ByteStreams",
    "Copy",
    "Error",
    "Get",
    "HostError",
    "InputError",
    "Lent",
    "MessageListener",
    "MessageSocket",
    "NetworkError",
    "PeerError",
    "Place",
    "Plan",
    "Region",
    "RegionServer",
    "Report",
    "Rows",
    "__version__",
    "copy",
    "copy_async",
    "new_token",
    "plan",
]
