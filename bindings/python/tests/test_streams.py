"""Byte streams in an interpreter, over two addresses of this host."""

import asyncio
import os
import selectors
import socket
import subprocess
import sys
import threading
import unittest
from collections.abc import Callable
from typing import Any

import ropewalk

MIB = 1 << 20
PATIENCE = 60


class Streams(unittest.TestCase):
    """A listener, and pairs of ends."""

    def setUp(self) -> None:
        self.token = ropewalk.new_token()
        self.listener = ropewalk.ByteStreamListener(["127.0.0.1:0", "127.0.0.2:0"], token=self.token)
        self.addCleanup(self.listener.close)

    def pair(self) -> tuple[ropewalk.ByteStream, ropewalk.ByteStream]:
        own = ropewalk.ByteStream.connect(self.listener.addresses, token=self.token)
        ends = own, self.listener.accept(PATIENCE)
        for end in ends:
            end.settimeout(PATIENCE)
            self.addCleanup(end.close)
        return ends

    def beside(self, work: Callable[[], Any]) -> Callable[[], Any]:
        """Runs in a thread; what is returned waits for the end, and raises what it raised."""
        done: list[Any] = []

        def run() -> None:
            try:
                done.append((work(), None))
            except BaseException as error:
                done.append((None, error))

        thread = threading.Thread(target=run, daemon=True)
        thread.start()

        def join() -> Any:
            thread.join(PATIENCE)
            self.assertTrue(done, "the thread has not ended")
            result, error = done[0]
            if error is not None:
                raise error
            return result

        return join


def echo(stream: ropewalk.ByteStream) -> None:
    while data := stream.recv(100_000):
        stream.sendall(data)
    stream.shutdown()


class Calls(Streams):
    def test_bytes_go_around(self) -> None:
        own, other = self.pair()
        serving = self.beside(lambda: echo(other))
        data = os.urandom(3 * MIB + 7)

        def write() -> None:
            self.assertEqual(own.send(data[:1]), 1)
            own.sendall(memoryview(data)[1:])
            own.shutdown()

        writing = self.beside(write)
        answer = bytearray(len(data))
        view, at = memoryview(answer), 0
        while count := own.recv_into(view[at:]) if at < len(data) else len(own.recv(1)):
            at += count
        writing()
        serving()
        self.assertTrue(answer == data)
        self.assertEqual(own.recv(10), b"")

    def test_times(self) -> None:
        own, other = self.pair()
        other.settimeout(0.01)
        self.assertEqual(other.gettimeout(), 0.01)
        with self.assertRaises(TimeoutError):
            other.recv(10)
        other.setblocking(False)
        with self.assertRaises(BlockingIOError):
            other.recv_into(bytearray(10))
        own.settimeout(0.01)
        with self.assertRaises(TimeoutError):
            own.sendall(bytes(MIB))
        own.setblocking(False)
        with self.assertRaises(BlockingIOError):
            own.send(b"x")
        with self.assertRaises(TimeoutError):
            self.listener.accept(0)
        for wrong in (-1, float("nan")):
            with self.assertRaises(ropewalk.InputError):
                own.settimeout(wrong)
        with ropewalk.ByteStreams.connect(self.listener.addresses, token=self.token) as streams:
            for endless in (float("inf"), 1e300):
                with streams.open() as near, self.listener.accept(endless) as far:
                    near.settimeout(endless)
                    far.settimeout(endless)
                    near.sendall(b"x")
                    self.assertEqual(far.recv(1), b"x")
                    near.finish(endless)

    def test_one_thread_serves_both_ends(self) -> None:
        own, other = self.pair()
        data = os.urandom(2 * MIB)
        sent, held, answer = 0, b"", bytearray()
        for end in (own, other):
            end.setblocking(False)
        with selectors.DefaultSelector() as selector:
            selector.register(own, selectors.EVENT_READ | selectors.EVENT_WRITE)
            selector.register(other, selectors.EVENT_READ)
            while len(answer) < len(data):
                events = selector.select(PATIENCE)
                self.assertTrue(events, "no event")
                for key, event in events:
                    try:
                        if key.fileobj is other and not held:
                            held = other.recv(50_000)
                            selector.modify(other, selectors.EVENT_WRITE)
                        elif key.fileobj is other:
                            held = held[other.send(held) :]
                            if not held:
                                selector.modify(other, selectors.EVENT_READ)
                        elif event & selectors.EVENT_READ:
                            answer += own.recv(70_000)
                        else:
                            sent += own.send(data[sent:])
                            if sent == len(data):
                                selector.modify(own, selectors.EVENT_READ)
                    except BlockingIOError:
                        pass
        self.assertTrue(answer == data)

    def test_files(self) -> None:
        own, other = self.pair()
        with own.makefile("w", encoding="utf-8") as lines:
            lines.write("one\n" + "two" * 10_000 + "\nthr\u00e9e")
        own.shutdown()
        with other.makefile(encoding="utf-8") as lines:
            self.assertEqual([len(line) for line in lines], [4, 30_001, 5])
        with other.makefile("wb", buffering=0) as raw:
            self.assertEqual(raw.write(b"answer"), 6)
        with other.makefile("rwb") as both:
            both.write(b"more")
            self.assertEqual(both.read(), b"")
        other.shutdown()
        self.assertEqual(own.makefile("rb").read(), b"answermore")
        for mode, buffering in [("a", -1), ("r", 0)]:
            with self.assertRaises(ropewalk.InputError):
                own.makefile(mode, buffering)

    def test_streams_share_a_connection(self) -> None:
        with ropewalk.ByteStreams.connect(self.listener.addresses, token=self.token) as streams:
            first, second = streams.open(b"first"), streams.open()
            self.addCleanup(first.close)
            self.addCleanup(second.close)
            with self.assertRaisesRegex(ropewalk.InputError, "1025 bytes"):
                streams.open(bytes(1025))
        with self.assertRaisesRegex(ropewalk.InputError, "closed"):
            streams.open()
        ends = [self.listener.accept(PATIENCE), self.listener.accept(PATIENCE)]
        self.assertEqual([end.greeting for end in ends], [b"first", b""])
        # One that nothing is read from does not stop the other.
        first.setblocking(False)
        with self.assertRaises(BlockingIOError):
            first.sendall(bytes(MIB))
        second.sendall(b"still")
        ends[1].settimeout(PATIENCE)
        self.assertEqual(ends[1].recv(10), b"still")
        for end in ends:
            end.close()


    def test_the_listening_end_opens_streams(self) -> None:
        with ropewalk.ByteStreams.connect(self.listener.addresses, token=self.token) as streams:
            first = streams.open()
            self.addCleanup(first.close)
            other = self.listener.accept(PATIENCE)
            self.addCleanup(other.close)
            with self.assertRaises(TimeoutError):
                streams.accept(0)
            opened = other.open_beside(b"news")
            self.addCleanup(opened.close)
            with selectors.DefaultSelector() as selector:
                selector.register(streams, selectors.EVENT_READ)
                self.assertTrue(selector.select(PATIENCE), "no event")
            arrived = streams.accept(PATIENCE)
            self.addCleanup(arrived.close)
            self.assertEqual(arrived.greeting, b"news")
            opened.sendall(b"around")
            opened.shutdown()
            serving = self.beside(lambda: echo(arrived))
            self.assertEqual(opened.makefile("rb").read(), b"around")
            serving()
            # From the other end it arrives at the listener.
            first.open_beside(b"more").close()
            self.assertEqual(self.listener.accept(PATIENCE).greeting, b"more")
        refused = other.open_beside()
        self.addCleanup(refused.close)
        refused.settimeout(PATIENCE)
        with self.assertRaisesRegex(ropewalk.PeerError, "not accepted here"):
            refused.recv(1)
        with self.assertRaisesRegex(ropewalk.InputError, "was closed"):
            streams.accept(0)
        self.assertEqual(streams.fileno(), -1)


class Ends(Streams):
    def test_each_way_ends_by_itself(self) -> None:
        own, other = self.pair()
        own.sendall(b"question")
        own.shutdown()
        own.shutdown(socket.SHUT_WR)
        own.finish(PATIENCE)
        with self.assertRaisesRegex(ropewalk.InputError, "closed on this side"):
            own.send(b"x")
        with self.assertRaises(ropewalk.InputError):
            own.shutdown(socket.SHUT_RD)
        self.assertEqual(other.recv(100), b"question")
        self.assertEqual(other.recv(100), b"")
        other.sendall(b"answer")
        self.assertEqual(own.recv(100), b"answer")
        own.close()
        own.close()
        with self.assertRaisesRegex(ropewalk.PeerError, "reads nothing more|closed its socket"):
            while True:
                other.send(b"x")
        self.assertEqual(own.fileno(), -1)
        with self.assertRaisesRegex(ropewalk.InputError, "was closed"):
            own.recv(1)

    def test_one_that_is_given_up_says_why(self) -> None:
        own, other = self.pair()
        own.reset("no such table")
        with self.assertRaisesRegex(ropewalk.PeerError, "no such table"):
            other.recv(1)

    def test_programs_that_fail_give_up(self) -> None:
        own, other = self.pair()
        with self.assertRaisesRegex(ValueError, "half way"), own:
            own.sendall(b"part")
            raise ValueError("half way")
        with self.assertRaisesRegex(ropewalk.PeerError, "the program at the other end failed"):
            while other.recv(100):
                pass

    def test_closing_ends_calls_of_other_threads(self) -> None:
        own, _other = self.pair()
        own.settimeout(None)
        begun = threading.Event()

        def read() -> bytes:
            begun.set()
            return own.recv(1)

        reading = self.beside(read)
        begun.wait(PATIENCE)
        own.close()
        with self.assertRaisesRegex(ropewalk.InputError, "was closed"):
            reading()

    def test_what_was_written_outlives_the_program(self) -> None:
        program = (
            "import ropewalk, os\n"
            f"token = bytes.fromhex({self.token.hex()!r})\n"
            f"with ropewalk.ByteStream.connect({self.listener.addresses!r}, token=token) as stream:\n"
            "    stream.sendall(bytes(60_000))\n"
            "os._exit(0)\n"
        )
        for _ in range(5):
            child = subprocess.Popen([sys.executable, "-c", program])
            with self.listener.accept(PATIENCE) as other:
                other.settimeout(PATIENCE)
                self.assertEqual(len(other.makefile("rb").read()), 60_000)
                # A peer that is gone has nothing to be waited for.
                other.setblocking(False)
            self.assertEqual(child.wait(PATIENCE), 0)

    def test_memory_is_checked(self) -> None:
        own, _ = self.pair()
        for wrong, error in [(b"123", BufferError), (memoryview(bytearray(9))[::2], BufferError), (5, TypeError)]:
            with self.subTest(wrong), self.assertRaises(error):
                own.recv_into(wrong)
        with self.assertRaisesRegex(ropewalk.InputError, "has 3 bytes"):
            own.recv_into(bytearray(3), 4)
        self.assertEqual(own.recv_into(bytearray()), 0)
        with self.assertRaises(TypeError):
            own.send("text")
        own.sendall(b"")


class Tasks(Streams):
    def run_in_time(self, main: Any) -> Any:
        return asyncio.run(asyncio.wait_for(main, PATIENCE))

    def test_tasks_read_and_write(self) -> None:
        data = os.urandom(2 * MIB)

        async def serve() -> None:
            async with await self.listener.accept_async() as stream:
                while part := await stream.recv_async(60_000):
                    await stream.sendall_async(part)
            self.assertEqual(stream.fileno(), -1)

        async def main() -> bytes:
            serving = asyncio.create_task(serve())
            async with await ropewalk.ByteStream.connect_async(self.listener.addresses, token=self.token) as own:
                writing = asyncio.create_task(own.sendall_async(data))
                answer = bytearray(len(data))
                view, at = memoryview(answer), 0
                while at < len(data):
                    at += await own.recv_into_async(view[at:], min(5_000, len(data) - at))
                await writing
                own.shutdown()
                self.assertEqual(await own.recv_async(1), b"")
                await serving
                return bytes(answer)

        self.assertTrue(self.run_in_time(main()) == data)

    def test_a_task_that_is_cancelled_has_read_nothing(self) -> None:
        own, other = self.pair()

        async def main() -> bytes:
            first = asyncio.create_task(other.recv_async(10))
            await asyncio.sleep(0)
            with self.assertRaisesRegex(ropewalk.InputError, "another task reads"):
                await other.recv_async(10)
            first.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await first
            await own.sendall_async(b"for the next")
            return await other.recv_async(100)

        self.assertEqual(self.run_in_time(main()), b"for the next")

    def test_tasks_accept_streams_of_the_listening_end(self) -> None:
        with ropewalk.ByteStreams.connect(self.listener.addresses, token=self.token) as streams:
            first = streams.open()
            self.addCleanup(first.close)
            other = self.listener.accept(PATIENCE)
            self.addCleanup(other.close)

            async def main() -> bytes:
                accepting = asyncio.create_task(streams.accept_async())
                await asyncio.sleep(0)
                opened = other.open_beside(b"news")
                self.addCleanup(opened.close)
                async with await accepting as arrived:
                    return arrived.greeting

            self.assertEqual(self.run_in_time(main()), b"news")

    def test_closing_ends_calls_of_other_tasks(self) -> None:
        own, _other = self.pair()
        streams = ropewalk.ByteStreams.connect(self.listener.addresses, token=self.token)

        async def main() -> None:
            cases: list[tuple[Any, Any]] = [
                (own, lambda: own.recv_async(1)),
                (streams, streams.accept_async),
                (self.listener, self.listener.accept_async),
            ]
            for closed, call in cases:
                task = asyncio.create_task(call())
                await asyncio.sleep(0)
                await asyncio.to_thread(closed.close)
                with self.assertRaisesRegex(ropewalk.InputError, "was closed"):
                    await task

        self.run_in_time(main())


if __name__ == "__main__":
    unittest.main()
