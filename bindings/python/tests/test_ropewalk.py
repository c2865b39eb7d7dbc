"""The package in an interpreter: real transfers between agents of this process."""

import array
import asyncio
import contextlib
import ctypes
import mmap
import os
import pathlib
import selectors
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import unittest.mock
from collections.abc import Callable, Iterator

import ropewalk

MIB = 1 << 20
PATIENCE = 60


def interrupt_soon(test: unittest.TestCase) -> None:
    """As Ctrl-C does, in 0.3 s."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    test.addCleanup(signal.signal, signal.SIGALRM, before)
    signal.setitimer(signal.ITIMER_REAL, 0.3)


class Folder(unittest.TestCase):
    """A folder that two agents serve, which lend memory, too."""

    def setUp(self) -> None:
        self.keep = tempfile.TemporaryDirectory()
        self.addCleanup(self.keep.cleanup)
        self.folder = pathlib.Path(self.keep.name).resolve()
        self.token = ropewalk.new_token()
        self.own = ropewalk.Agent(self.token, roots={str(self.folder): True})
        self.addCleanup(self.own.stop)
        self.other = ropewalk.Agent(self.token, roots={str(self.folder): True})
        self.addCleanup(self.other.stop)
        # Where the agents serve "from", and "to".
        self.source = f"{self.own.addresses[0]}:{self.folder / 'from'}"
        self.copy = self.at("to")

    def at(self, name: str) -> str:
        return f"{self.other.addresses[0]}:{self.folder / name}"

    def file(self, name: str, length: int) -> bytes:
        contents = os.urandom(length)
        (self.folder / name).write_bytes(contents)
        return contents


class Copies(Folder):
    def test_a_file_is_copied(self) -> None:
        contents = self.file("from", 3 * MIB + 1)
        report = ropewalk.copy(self.source, self.copy, token=self.token, verify="sink")
        self.assertEqual((self.folder / "to").read_bytes(), contents)
        self.assertEqual((report.outcome, report.delivered_bytes), ("done", len(contents)))
        self.assertIn("3.146 MB", str(report))
        self.assertIn("<td>done</td>", report._repr_html_())

    def test_paths_may_be_bytes(self) -> None:
        contents = self.file("from", 1000)
        folder = os.fsencode(self.folder)
        not_utf8 = folder + b"/\xff"
        secret = self.folder / "secret"
        secret.touch(mode=0o600)
        secret.write_text(self.token.hex())
        with ropewalk.Agent(roots={folder: True}, token_file=os.fsencode(secret)) as agent:
            at = agent.addresses[0].encode() + b":"
            ropewalk.copy(at + folder + b"/from", at + not_utf8, token_file=os.fsencode(secret))
            ropewalk.copy([at + not_utf8], [at + folder + b"/to"], token=self.token)
        for copied in (not_utf8, folder + b"/to"):
            with open(copied, "rb") as file:
                self.assertEqual(file.read(), contents)
        with os.scandir(folder) as entries:
            for entry in entries:
                self.assertEqual(ropewalk.Place(entry).text, os.fsdecode(entry.path))
        self.assertEqual(ropewalk.Place(b"./\xff").text, os.fsdecode(b"./\xff"))
        with self.assertRaises(ropewalk.InputError):
            ropewalk.Place(b"")

    def test_progress_is_reported(self) -> None:
        self.file("from", MIB)
        seen: list[dict] = []
        ropewalk.copy([self.source], [self.copy], token=self.token, progress=seen.append)
        self.assertEqual(seen[-1]["event"], "ended")
        self.assertIn("planned", [event["event"] for event in seen])

    def test_errors_name_what_failed(self) -> None:
        with self.assertRaises(ropewalk.InputError) as raised:
            ropewalk.copy(self.source, self.copy, token=self.token)
        self.assertIn(str(self.folder / "from"), raised.exception.message)
        self.assertFalse(raised.exception.is_retryable)
        self.assertFalse((self.folder / "to").exists())
        wrong: list[tuple[dict, str]] = [({"verify": "no"}, "is no value of verify"), ({"fast": True}, "fast"), ({"progress": "bar"}, "progress is a function")]
        for options, text in wrong:
            with self.assertRaisesRegex(ropewalk.InputError, text):
                ropewalk.copy(self.source, self.copy, token=self.token, **options)

    def test_the_options_that_are_named_exist(self) -> None:
        contents = self.file("from", 1000)
        every = {
            "verify": "sink",
            "limit": "1Gbit",
            "streams": 4,
            "lane": "tcp",
            "rails": "auto",
            "plain": True,
            "archive": False,
            "atomic": True,
            "delete": False,
            "delta": True,
            "hard_links": True,
            "sources": "auto",
            "destinations": "copies",
        }
        assert ropewalk.Copy.__doc__ is not None and ropewalk.Rows.__doc__ is not None
        for options in (every, dict.fromkeys(every)):
            ropewalk.copy(self.source, self.copy, token=self.token, progress=None, **options)
            self.assertEqual((self.folder / "to").read_bytes(), contents)
        for name in every:
            self.assertIn(f"`{name}", ropewalk.Copy.__doc__)
        of_rows = {name: every[name] for name in ("verify", "limit", "streams", "lane", "plain", "rails")}
        for rows in (of_rows, dict.fromkeys(of_rows)):
            ropewalk.Rows(token=self.token, **rows)
        for name in of_rows:
            self.assertIn(f"`{name}`", ropewalk.Rows.__doc__)

    def test_an_event_loop_goes_on_meanwhile(self) -> None:
        contents = self.file("from", 4 * MIB)

        async def main() -> tuple[ropewalk.Report, int]:
            turns = 0

            async def count() -> None:
                nonlocal turns
                while True:
                    turns += 1
                    await asyncio.sleep(0)

            counting = asyncio.create_task(count())
            report = await ropewalk.copy_async(self.source, self.copy, token=self.token)
            counting.cancel()
            return report, turns

        report, turns = asyncio.run(main())
        self.assertEqual(report.outcome, "done")
        self.assertGreater(turns, 10)
        self.assertEqual((self.folder / "to").read_bytes(), contents)

    def test_a_cancelled_copy_goes_on_with_the_next(self) -> None:
        contents = self.file("from", 96 * MIB)
        copy = ropewalk.Copy(self.source, self.copy, token=self.token, limit="200Mbit")
        with self.assertRaises(TimeoutError):
            copy.wait(0.1)
        while copy.data_sent < 8 * MIB:
            with self.assertRaises(TimeoutError):
                copy.wait(0.1)
        copy.cancel()
        # However often it is asked for.
        for _ in range(2):
            with self.assertRaises(ropewalk.InputError):
                copy.wait(PATIENCE)
        self.assertFalse((self.folder / "to").exists())
        report = ropewalk.copy(self.source, self.copy, token=self.token)
        self.assertEqual((self.folder / "to").read_bytes(), contents)
        self.assertEqual(report.outcome, "done")

    def test_odd_timeouts_end_no_copy(self) -> None:
        contents = self.file("from", MIB)
        copy = ropewalk.Copy(self.source, self.copy, token=self.token, limit="4Mbit")
        rows = ropewalk.Rows(token=self.token, limit="4Mbit")
        rows.schedule(f"writer {self.own.addresses[0]} {self.folder / 'from'} 0 0-{len(contents) - 1}")
        rows.schedule(f"reader {self.other.addresses[0]} {self.folder / 'rows'} 0 0-{len(contents) - 1}")
        for transfer in (copy, rows):
            for timeout in (-1, -0.001, 0, float("-inf")):
                with self.subTest(timeout), self.assertRaises(TimeoutError):
                    transfer.wait(timeout)
            with self.assertRaisesRegex(ropewalk.InputError, "NaN"):
                transfer.wait(float("nan"))
            with self.assertRaises(TypeError):
                transfer.wait("soon")
            self.assertEqual(transfer.wait(float("inf")).outcome, "done")
        for name in ("to", "rows"):
            self.assertEqual((self.folder / name).read_bytes(), contents)

    def test_tasks_wait_for_one_copy(self) -> None:
        contents = self.file("from", 4 * MIB)

        async def main() -> list[ropewalk.Report]:
            copy = ropewalk.Copy(self.source, self.copy, token=self.token)

            async def ended() -> ropewalk.Report:
                return await copy

            return await asyncio.wait_for(asyncio.gather(ended(), ended(), ended()), PATIENCE)

        reports = asyncio.run(main())
        self.assertEqual([report.outcome for report in reports], ["done"] * 3)
        self.assertEqual((self.folder / "to").read_bytes(), contents)

    def test_all_that_wait_have_the_failure(self) -> None:
        self.file("from", 16 * MIB)

        async def main() -> list[object]:
            copy = ropewalk.Copy(self.source, self.copy, token=self.token, limit="20Mbit")

            async def ended() -> ropewalk.Report:
                return await copy

            tasks = [asyncio.create_task(ended()) for _ in range(2)]
            thread = asyncio.create_task(asyncio.to_thread(copy.wait, PATIENCE))
            await asyncio.sleep(0.2)
            copy.cancel()
            return await asyncio.wait_for(asyncio.gather(*tasks, thread, return_exceptions=True), PATIENCE)

        ends = asyncio.run(main())
        self.assertEqual([type(end) for end in ends], [ropewalk.InputError] * 3)
        self.assertEqual(len(set(map(str, ends))), 1)

    def test_a_copy_that_was_closed(self) -> None:
        contents = self.file("from", MIB)

        async def ended(copy: ropewalk.Copy) -> ropewalk.Report:
            return await copy

        with ropewalk.Copy(self.source, self.copy, token=self.token) as copy:
            report = copy.wait(PATIENCE)
        self.assertEqual((copy.data_sent, copy.fileno()), (len(contents), -1))
        copy.cancel()
        copy.close()
        self.assertIs(copy.wait(), report)
        self.assertIs(asyncio.run(ended(copy)), report)
        with ropewalk.Copy(self.source, self.at("other"), token=self.token, limit="2Mbit") as copy:
            pass
        self.assertLess(copy.data_sent, len(contents))
        with self.assertRaisesRegex(ropewalk.InputError, "was closed"):
            copy.wait(PATIENCE)
        with self.assertRaisesRegex(ropewalk.InputError, "was closed"):
            asyncio.run(ended(copy))

    def test_interrupts_end_a_copy(self) -> None:
        self.file("from", 64 * MIB)
        program = (
            "import ropewalk, sys\n"
            "seen = lambda event: print(event['event'], flush=True)\n"
            f"token = bytes.fromhex({self.token.hex()!r})\n"
            f"ropewalk.copy({self.source!r}, {self.copy!r}, token=token, limit='20Mbit', progress=seen)\n"
        )
        child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert child.stdout is not None
        for line in child.stdout:
            if line.strip() == "planned":
                break
        child.send_signal(signal.SIGINT)
        child.stdout.close()
        self.assertNotEqual(child.wait(30), 0)
        self.assertFalse((self.folder / "to").exists())


class Named(ctypes.Structure):
    """Names of fields are no formats."""

    _fields_ = [("O", ctypes.c_int), ("P", ctypes.c_double)]


class Memory(Folder):
    def test_memory_is_a_source(self) -> None:
        self.file("mapped", 5 * MIB)
        with (self.folder / "mapped").open("r+b") as opened, mmap.mmap(opened.fileno(), 0) as mapped:
            for name, memory in {
                "bytes": os.urandom(2 * MIB),
                "bytearray": bytearray(os.urandom(MIB + 3)),
                "array": array.array("d", range(1000)),
                "view": memoryview(bytearray(os.urandom(MIB)))[10:1000],
                "mmap": mapped,
                "empty": b"",
                "ctypes": (ctypes.c_double * 100)(1, 2, 3),
                "fields": Named(1, 2),
                "scalar": ctypes.c_int(5),
            }.items():
                with self.subTest(name), self.own.lend(name, memory) as lent:
                    ropewalk.copy(lent.place, self.at(name), token=self.token)
                    self.assertEqual((self.folder / name).read_bytes(), bytes(memory))

    def test_memory_is_a_destination(self) -> None:
        contents = self.file("from", 8 * MIB + 5)
        memory = bytearray(len(contents))
        with self.own.lend("space", memory, writable=True) as lent:
            rows = ropewalk.Rows(token=self.token)
            last = len(contents) - 1
            rows.schedule(f"writer {self.other.addresses[0]} {self.folder / 'from'} 0 0-{last}")
            rows.schedule(f"reader {self.own.addresses[0]} buffer:space 0 0-{last}")
            self.assertEqual(rows.wait().outcome, "done")
            self.assertEqual(rows.data_sent, len(contents))
            self.assertEqual(lent.written, [(0, len(contents))])
            self.assertFalse(lent.is_busy)
        self.assertEqual(memory, contents)

    def test_what_cannot_be_lent(self) -> None:
        with self.assertRaisesRegex(BufferError, "cannot be written"):
            self.own.lend("bytes", b"abc", writable=True)
        with self.assertRaisesRegex(BufferError, "gaps"):
            self.own.lend("gaps", memoryview(bytearray(10))[::2])
        with self.assertRaises(TypeError):
            self.own.lend("number", 5)

        class Row(ctypes.Structure):
            _fields_ = [("O", ctypes.c_int), ("at", ctypes.c_void_p)]

        for pointers in [
            (ctypes.py_object * 2)([], {}),
            (ctypes.c_void_p * 2)(),
            (ctypes.c_char_p * 2)(),
            (ctypes.c_wchar_p * 2)(),
            (ctypes.POINTER(ctypes.c_int) * 2)(),
            Row(),
        ]:
            with self.subTest(pointers), self.assertRaisesRegex(BufferError, "hold pointers"):
                self.own.lend("pointers", pointers, writable=True)
        memory = bytearray(10)
        with self.own.lend("memory", memory):
            with self.assertRaises(ropewalk.InputError):
                self.own.lend("memory", memory)
            with self.assertRaises(BufferError):
                memory.append(1)
        memory.append(1)

    def test_memory_is_lent_until_it_is_taken_back(self) -> None:
        contents = bytearray(os.urandom(MIB))
        self.own.lend("kept", contents)
        place = ropewalk.Place.buffer(self.own.addresses[0], "kept")
        ropewalk.copy(place, self.at("kept"), token=self.token)
        self.assertEqual((self.folder / "kept").read_bytes(), contents)
        with self.assertRaises(BufferError):
            contents.append(1)
        first = self.own.lend("other", contents)
        first.end()
        second = self.own.lend("other", bytearray(b"second"))
        # It is not the first one's any more.
        first.end()
        ropewalk.copy(second.place, self.at("other"), token=self.token)
        self.assertEqual((self.folder / "other").read_bytes(), b"second")
        self.own.stop()
        contents.append(1)
        second.memory.append(1)

    def test_a_buffer_that_is_too_short(self) -> None:
        self.file("from", 1000)
        with self.own.lend("short", bytearray(10), writable=True):
            rows = ropewalk.Rows(token=self.token)
            rows.schedule(f"writer {self.other.addresses[0]} {self.folder / 'from'} 0 0-999")
            rows.schedule(f"reader {self.own.addresses[0]} buffer:short 0 0-999")
            with self.assertRaisesRegex(ropewalk.Error, "short"):
                rows.wait()


class StandingMaster(Folder):
    def setUp(self) -> None:
        super().setUp()
        program = os.environ.get("ROPEWALK_PROGRAM") or shutil.which("ropewalk")
        token = self.folder / "token"
        token.touch(mode=0o600)
        token.write_text(self.token.hex())
        home = {name: str(self.folder) for name in ("HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR")}
        serve = subprocess.Popen(
            [program, "serve", "--listen", "127.0.0.1:0", "--token-file", token],
            stdout=subprocess.PIPE,
            env=os.environ | home,
            text=True,
        )
        self.addCleanup(serve.stdout.close)
        self.addCleanup(serve.wait)
        self.addCleanup(serve.kill)
        serve.stdout.readline()
        self.master = serve.stdout.readline().removeprefix("listening on ").strip()

    def test_rows_are_handed_over(self) -> None:
        contents = self.file("from", MIB)
        rows = ropewalk.Rows(token=self.token, master=self.master, verify="sink")
        rows.schedule(f"writer {self.other.addresses[0]} {self.folder / 'from'} 0 0-{MIB - 1}")
        rows.schedule(f"reader {self.own.addresses[0]} {self.folder / 'to'} 0 0-{MIB - 1}")
        report = rows.wait()
        self.assertEqual((report.outcome, report.delivered_bytes, rows.data_sent), ("done", MIB, MIB))
        self.assertEqual((self.folder / "to").read_bytes(), contents)

    def test_another_token_is_refused(self) -> None:
        rows = ropewalk.Rows(token=ropewalk.new_token(), master=self.master)
        rows.schedule(f"writer {self.other.addresses[0]} {self.folder / 'from'} 0 0-1")
        rows.schedule(f"reader {self.own.addresses[0]} {self.folder / 'to'} 0 0-1")
        with self.assertRaisesRegex(ropewalk.InputError, "another token"):
            rows.wait()
        with self.assertRaises(ropewalk.InputError):
            ropewalk.Rows(master="nowhere")


class Messages(unittest.TestCase):
    def pair(self) -> tuple[ropewalk.MessageSocket, ropewalk.MessageSocket]:
        token = ropewalk.new_token()
        listener = ropewalk.MessageListener(["127.0.0.1:0", "127.0.0.2:0"], token=token)
        accepted: list[ropewalk.MessageSocket] = []
        waiting = threading.Thread(target=lambda: accepted.append(listener.accept(30)))
        waiting.start()
        own = ropewalk.MessageSocket.connect(listener.addresses, token=token)
        waiting.join()
        self.addCleanup(own.close)
        self.addCleanup(accepted[0].close)
        return own, accepted[0]

    def test_messages_arrive_whole_and_in_order(self) -> None:
        own, other = self.pair()
        messages = [b"", b"a", os.urandom(3 * MIB), bytes(100)]
        sending = threading.Thread(target=lambda: [own.send(message) for message in messages] and own.finish_sending())
        sending.start()
        received = []
        while (message := other.receive(4 * MIB, timeout=30)) is not None:
            received.append(message)
        sending.join()
        self.assertEqual(received, messages)

    def test_deadlines_and_limits(self) -> None:
        own, other = self.pair()
        with self.assertRaises(TimeoutError):
            other.receive(timeout=0)
        own.send(bytes(100))
        with self.assertRaises(ropewalk.InputError):
            other.receive(10, timeout=30)
        # Memory is taken for what comes, not for what may.
        self.assertEqual(other.receive(sys.maxsize, timeout=30), bytes(100))
        with self.assertRaises(TimeoutError):
            ropewalk.MessageListener(["127.0.0.1:0"], token=ropewalk.new_token()).accept(0)

    def test_any_contiguous_memory_is_sent(self) -> None:
        own, other = self.pair()
        numbers = array.array("d", range(1000))
        own.send(numbers)
        own.send_start(memoryview(numbers)[10:20])
        for expected in (bytes(numbers), bytes(numbers[10:20])):
            self.assertEqual(other.receive(timeout=PATIENCE), expected)
        # Bytes with gaps are gathered: they are copied anyway.
        own.send(memoryview(b"abcd")[::2])
        self.assertEqual(other.receive(timeout=PATIENCE), b"ac")
        for wrong, error in [(memoryview(numbers)[::2], BufferError), ("text", TypeError)]:
            with self.assertRaises(error):
                own.send(wrong)

    def test_a_listener_is_closed(self) -> None:
        with ropewalk.MessageListener(["127.0.0.1:0"]) as listener:
            with ropewalk.MessageSocket.connect(listener.addresses) as own, listener.accept(PATIENCE) as other:
                listener.close()
                own.send_start(b"still")
                self.assertEqual(other.receive(timeout=PATIENCE), b"still")
        self.assertEqual(listener.fileno(), -1)
        with self.assertRaisesRegex(ropewalk.InputError, "was closed"):
            listener.accept(0)

    def test_event_loops_sleep_while_nothing_is_there(self) -> None:
        own, other = self.pair()
        with selectors.DefaultSelector() as selector:
            selector.register(other, selectors.EVENT_READ)
            # Once or twice there is other news than a message.
            for _ in range(100):
                with self.assertRaises(TimeoutError):
                    other.receive(timeout=0)
                if not selector.select(0):
                    break
            else:
                self.fail("it is always readable")
            messages = [b"news", b"", os.urandom(MIB)]
            for message in messages:
                own.send_start(message)
            received: list[bytes | None] = []
            while len(received) < len(messages):
                self.assertTrue(selector.select(PATIENCE), "no event")
                with contextlib.suppress(TimeoutError):
                    while True:
                        received.append(other.receive(timeout=0))
            self.assertEqual(received, messages)

    def slow_path(self, to: str) -> str:
        """An address that leads to another one at 5 MB/s."""
        listener = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(listener.close)
        host, _, port = to.rpartition(":")

        def carry(source: socket.socket, sink: socket.socket, pause: float) -> None:
            with contextlib.suppress(OSError):
                while data := source.recv(50_000):
                    sink.sendall(data)
                    time.sleep(pause)
            for end in (source, sink):
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

        def serve() -> None:
            accepted, _ = listener.accept()
            with accepted, socket.create_connection((host, int(port))) as other:
                back = threading.Thread(target=carry, args=(other, accepted, 0))
                back.start()
                carry(accepted, other, 0.01)
                back.join()

        thread = threading.Thread(target=serve)
        thread.start()
        self.addCleanup(thread.join)
        return f"127.0.0.1:{listener.getsockname()[1]}"

    def test_slow_messages_arrive(self) -> None:
        token = ropewalk.new_token()
        listener = ropewalk.MessageListener(["127.0.0.1:0"], token=token)
        with ropewalk.MessageSocket.connect([self.slow_path(listener.addresses[0])], token=token) as own:
            with listener.accept(PATIENCE) as other:
                # In parts of a call, and in any number of short calls.
                for timeout in (PATIENCE, 0.03):
                    message = os.urandom(2 * MIB)
                    # It begins while the other end waits for it.
                    sending = threading.Timer(0.3, own.send, [message])
                    sending.start()
                    received, begun = None, time.monotonic()
                    while received is None and time.monotonic() - begun < PATIENCE:
                        with contextlib.suppress(TimeoutError):
                            received = other.receive(timeout=timeout)
                    self.assertTrue(received == message)
                    sending.join()

    def test_interrupts_end_a_connect(self) -> None:
        # It accepts and never answers.
        with socket.create_server(("127.0.0.1", 0)) as silent:
            to = [f"127.0.0.1:{silent.getsockname()[1]}"]
            token = ropewalk.new_token()
            for connect in (
                lambda: ropewalk.MessageSocket.connect(to, token=token),
                lambda: ropewalk.ByteStream.connect(to, token=token),
                lambda: ropewalk.Region("r", [to], token=token),
            ):
                interrupt_soon(self)
                with self.assertRaises(KeyboardInterrupt):
                    connect()

    def test_interrupts_end_a_send(self) -> None:
        own, other = self.pair()
        interrupt_soon(self)
        # At some point the peer keeps no more for a program that does not receive.
        with self.assertRaises(KeyboardInterrupt):
            while True:
                own.send(bytes(8 * MIB))
        for _ in range(4):
            own.send_start(bytes(8 * MIB))
        interrupt_soon(self)
        with self.assertRaises(KeyboardInterrupt):
            own.finish_sending()
        self.assertEqual(other.receive(8 * MIB, timeout=30), bytes(8 * MIB))


class Regions(Folder):
    def test_threads_serve_at_once(self) -> None:
        with ropewalk.RegionServer(token=ropewalk.new_token()) as server:

            def serve(number: int) -> None:
                for at in range(100):
                    server.serve(f"{number}-{at}", 100, [(0, 100, bytearray(100))])
                    server.withdraw(f"{number}-{at}")

            # One that waits for ever would keep the interpreter from ending, too.
            threads = [threading.Thread(target=serve, args=(number,), daemon=True) for number in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
                self.assertFalse(thread.is_alive())

    def test_ranges_are_read_and_written(self) -> None:
        token = ropewalk.new_token()
        data = os.urandom(2 * MIB)
        path = os.path.join(str(self.folder), "held")
        with open(path, "wb") as file:
            file.write(b"1234" + data[:MIB])
        memory = bytearray(data)
        with ropewalk.RegionServer(token=token) as one, ropewalk.RegionServer(token=token) as two:
            one.serve("table", 2 * MIB, [(0, 2 * MIB, memory)])
            two.serve("table", 2 * MIB, [(0, MIB, path, 4)])
            region = ropewalk.Region("table", [one.addresses[0], two.addresses], token=token, timeout=60)
            self.assertEqual(region.size, 2 * MIB)
            self.assertEqual(region.get(0, 2 * MIB), data)
            into = bytearray(100)
            region.get_into(MIB - 50, into)
            self.assertEqual(into, data[MIB - 50 : MIB + 50])
            under_way = [region.get_start([(at, at + 8), (at + 100, at + 108)]) for at in range(0, 5000, 5)]
            for at, get in zip(range(0, 5000, 5), under_way):
                self.assertEqual(get.wait(30), data[at : at + 8] + data[at + 100 : at + 108])
            region.put(5, b"both")
            region.put_start(20, bytearray(b"begun"))
            region.fence()
            for _ in range(4):
                self.assertEqual(region.get(5, 25), b"both" + data[9:20] + b"begun")
            region.flush()
            with self.assertRaises(TimeoutError):
                region.wait(0, 10, 2, timeout=0)
            waiting: list[int] = []
            thread = threading.Thread(target=lambda: waiting.append(region.wait(0, 10, 2, timeout=30)))
            thread.start()
            region.notify(4, 30, 7)
            thread.join()
            self.assertEqual(waiting, [7])
            with self.assertRaisesRegex(ropewalk.InputError, "not in the region"):
                region.get(2 * MIB - 1, 2 * MIB + 1)
            with self.assertRaises(BufferError):
                region.get_into(0, bytes(3))
            with self.assertRaisesRegex(ropewalk.InputError, "has 3 bytes"):
                one.serve("short", 10, [(0, 10, bytearray(3))])
            self.assertTrue(one.withdraw("table"))
            self.assertEqual(bytes(memory[5:9]), b"both")
            memory.extend(b"it is ours again")
            self.assertEqual(region.get(5, 9), b"both")
            with self.assertRaisesRegex(ropewalk.NetworkError, "are lost"):
                region.get(MIB, MIB + 1)
            self.assertEqual(region.lost[0][0], one.addresses)


    def test_a_region_is_closed(self) -> None:
        with ropewalk.RegionServer() as server:
            server.serve("table", 3, [(0, 3, b"abc")], rule="read-only")
            with ropewalk.Region("table", server.addresses) as region:
                begun = region.get_start([(0, 3)])
            self.assertEqual(begun.wait(PATIENCE), b"abc")
            server.serve("box", 1 << 20, [(0, 1 << 20, bytearray(1 << 20))])
            with ropewalk.Region("box", server.addresses) as box:
                for at in range(16):
                    box.put_start(at << 16, b"x" * (1 << 16))
            self.assertEqual(ropewalk.Region("box", server.addresses).get(0, 1 << 20), b"x" * (1 << 20))
            for call in (lambda: region.get(0, 3), region.flush, region.fence, lambda: region.wait(0, 1, 1, timeout=0), lambda: region.size):
                with self.assertRaisesRegex(ropewalk.InputError, "was closed"):
                    call()


class Refused(Folder):
    def test_one_text_is_no_list_of_addresses(self) -> None:
        for call in (
            lambda: ropewalk.Agent(listen="127.0.0.1:0"),
            lambda: ropewalk.RegionServer("127.0.0.1:0"),
            lambda: ropewalk.Region("table", "127.0.0.1:1"),
            lambda: ropewalk.MessageListener("127.0.0.1:0"),
            lambda: ropewalk.MessageSocket.connect("127.0.0.1:1"),
            lambda: ropewalk.MessageSocket.connect(["127.0.0.1:1"], local="127.0.0.1"),
            lambda: ropewalk.ByteStreamListener("127.0.0.1:0"),
            lambda: ropewalk.ByteStream.connect("127.0.0.1:1"),
            lambda: ropewalk.ByteStreams.connect("127.0.0.1:1"),
        ):
            with self.assertRaisesRegex(ropewalk.InputError, r"a list.*\['127.0.0.1"):
                call()

    def test_errors_name_what_a_program_can_do(self) -> None:
        self.own.lend("twice", b"abc")
        with self.assertRaisesRegex(ropewalk.InputError, "take it back first"):
            self.own.lend("twice", b"abc")
        self.file("from", 10)
        with self.assertRaisesRegex(ropewalk.Error, "token_file"):
            ropewalk.copy(self.source, self.copy)


class Stopped(unittest.TestCase):
    """A peer that is stopped: Ctrl-C ends calls all the same, and they go on later."""

    PEER = (
        "import ropewalk, sys\n"
        "token = bytes.fromhex(sys.argv[1])\n"
        "server = ropewalk.RegionServer(token=token)\n"
        "server.serve('table', 1 << 25, [(0, 1 << 25, bytearray(1 << 25))])\n"
        "listener = ropewalk.ByteStreamListener(['127.0.0.1:0'], token=token)\n"
        "print(server.addresses[0], listener.addresses[0], flush=True)\n"
        "sys.stdin.read()\n"
    )
    # Operations that may be begun before one waits.
    FEW = 3800

    def setUp(self) -> None:
        self.token = ropewalk.new_token()
        command = [sys.executable, "-c", self.PEER, self.token.hex()]
        self.peer = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.peer.stdin is not None and self.peer.stdout is not None
        for cleanup in (self.peer.stdin.close, self.peer.stdout.close, self.peer.wait, self.peer.kill):
            self.addCleanup(cleanup)
        self.region_at, self.streams_at = self.peer.stdout.readline().split()

    def region(self) -> ropewalk.Region:
        return ropewalk.Region("table", [self.region_at], token=self.token)

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        self.peer.send_signal(signal.SIGSTOP)
        os.waitpid(self.peer.pid, os.WUNTRACED)
        try:
            yield
        finally:
            self.peer.send_signal(signal.SIGCONT)

    def assert_interrupted(self, call: Callable[[], object]) -> None:
        interrupt_soon(self)
        begun = time.monotonic()
        with self.assertRaises(KeyboardInterrupt):
            call()
        # Long before a peer that says nothing is given up.
        self.assertLess(time.monotonic() - begun, 10)

    def test_gets(self) -> None:
        region = self.region()
        memory = bytearray(20 * MIB)
        for call in (lambda: region.get(0, MIB), lambda: region.get_into(0, memory)):
            with self.stopped():
                self.assert_interrupted(call)
        region.put(0, b"first")
        region.put(20 * MIB - 4, b"last")
        # Nothing writes it any more, or has it.
        memory.append(1)
        region.get_into(0, memory)
        self.assertEqual((memory[:5], memory[-5:]), (b"first", b"last\0"))

    def test_gets_that_were_begun(self) -> None:
        region = self.region()
        with self.stopped():
            begun = [region.get_start([(0, 8)]) for _ in range(self.FEW)]

            def more() -> None:
                while True:
                    begun.append(region.get_start([(0, 8)]))

            self.assert_interrupted(more)
        for get in begun:
            self.assertEqual(get.wait(PATIENCE), bytes(8))
        self.assertEqual(region.get(0, 8), bytes(8))

    def test_puts_that_were_begun(self) -> None:
        region = self.region()
        with self.stopped():
            for at in range(self.FEW):
                region.put_start(at, b"x")

            def more() -> None:
                while True:
                    region.put_start(self.FEW, b"y")

            self.assert_interrupted(more)
            self.assert_interrupted(region.flush)
        region.flush()
        self.assertEqual(region.get(0, self.FEW), b"x" * self.FEW)

    def test_notifications(self) -> None:
        region = self.region()
        with self.stopped():
            self.assert_interrupted(lambda: region.notify(0, 10, 1))
        region.notify(0, 10, 2)
        self.assertEqual(region.wait(0, 10, 2, timeout=PATIENCE), 2)

    def test_streams(self) -> None:
        with ropewalk.ByteStreams.connect([self.streams_at], token=self.token) as streams:
            with self.stopped():

                def more() -> None:
                    while True:
                        streams.open()

                self.assert_interrupted(more)
            with streams.open(b"later") as stream:
                self.assertEqual(stream.greeting, b"later")


class Forks(Folder):
    def test_a_child_ends_nothing_of_its_parent(self) -> None:
        contents = self.file("from", 2 * MIB)
        program = (
            "import os, ropewalk, signal, sys\n"
            "token, source, sink = bytes.fromhex(sys.argv[1]), *sys.argv[2:]\n"
            "listener = ropewalk.ByteStreamListener(['127.0.0.1:0'], token=token)\n"
            "server = ropewalk.RegionServer(token=token)\n"
            "server.serve('table', 6, [(0, 6, bytearray(b'region'))])\n"
            "region = ropewalk.Region('table', server.addresses, token=token)\n"
            "get = region.get_start([(0, 6)])\n"
            "rows = ropewalk.Rows(token=token)\n"
            "with ropewalk.Agent(token) as agent, agent.lend('lent', b'memory') as lent, \\\n"
            "        ropewalk.Copy(source, sink, token=token, limit='40Mbit') as copy, \\\n"
            "        ropewalk.ByteStream.connect(listener.addresses, token=token) as stream, \\\n"
            "        listener.accept(60) as other:\n"
            "    if os.fork() == 0:\n"
            # One that hangs ends, too.
            "        signal.alarm(60)\n"
            # Through all of the `with` blocks, and the end of the interpreter.
            "        sys.exit(7)\n"
            "    assert os.waitstatus_to_exitcode(os.wait()[1]) == 7\n"
            "    stream.sendall(b'stream')\n"
            "    assert other.recv(100) == b'stream'\n"
            "    assert get.wait(60) == region.get(0, 6) == b'region'\n"
            "    assert copy.wait(60).outcome == 'done'\n"
            "    assert ropewalk.copy(lent.place, sink + '.lent', token=token).outcome == 'done'\n"
        )
        ended = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", program, self.token.hex(), self.source, self.copy],
            stderr=subprocess.PIPE,
            text=True,
            timeout=4 * PATIENCE,
        )
        # The child says nothing, either.
        self.assertEqual((ended.returncode, ended.stderr), (0, ""))
        self.assertEqual((self.folder / "to").read_bytes(), contents)
        self.assertEqual((self.folder / "to.lent").read_bytes(), b"memory")


    def run_program(self, program: str) -> str:
        """What a program prints whose first argument is a token; `in_child` runs a function in a child and gives what that returns."""
        before = (
            "import os, pickle, ropewalk, signal, sys\n"
            "token = bytes.fromhex(sys.argv[1])\n"
            "def in_child(call):\n"
            "    reading, writing = os.pipe()\n"
            "    if os.fork() == 0:\n"
            "        signal.alarm(60)\n"
            "        os.write(writing, pickle.dumps(call()))\n"
            "        os._exit(0)\n"
            "    os.close(writing)\n"
            "    with open(reading, 'rb') as file:\n"
            "        answer = file.read()\n"
            "    assert os.waitstatus_to_exitcode(os.wait()[1]) == 0\n"
            "    return pickle.loads(answer)\n"
            "def refusals(*calls):\n"
            "    texts = []\n"
            "    for call in calls:\n"
            "        try:\n"
            "            texts.append(repr(call()))\n"
            "        except ropewalk.InputError as error:\n"
            "            texts.append(error.message)\n"
            "    return texts\n"
            "MADE_BEFORE = 'this was made before a fork, and belongs to the process that made it'\n"
        )
        ended = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", before + program, self.token.hex()],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            timeout=4 * PATIENCE,
        )
        self.assertEqual((ended.returncode, ended.stderr), (0, ""))
        return ended.stdout

    def test_a_child_cannot_use_a_region_of_its_parent(self) -> None:
        said = self.run_program(
            "server = ropewalk.RegionServer(token=token)\n"
            "server.serve('table', 8000, [(0, 8000, bytearray(range(250)) * 32)])\n"
            "region = ropewalk.Region('table', server.addresses, token=token)\n"
            "begun = region.get_start([(0, 100)])\n"
            "calls = [\n"
            "    lambda: region.get(1000, 1004), lambda: region.get_start([(0, 1)]), lambda: region.get_into(0, bytearray(4)),\n"
            "    lambda: region.put(500, b'child'), lambda: region.put_start(500, b'child'), region.fence, region.flush,\n"
            "    lambda: region.notify(0, 1, 5), lambda: region.wait(0, 1, 1, timeout=5),\n"
            "    lambda: region.size, lambda: region.lost, lambda: server.withdraw('table') or begun.wait(),\n"
            "]\n"
            "texts = in_child(lambda: refusals(*calls))\n"
            "assert texts == [MADE_BEFORE] * len(calls), texts\n"
            # Answers to the child's requests would be found here.
            "assert begun.wait(60) == bytes(range(100))\n"
            "for at in range(100):\n"
            "    assert region.get(at, at + 4) == bytes(range(at, at + 4))\n"
            "assert region.get(500, 505) == bytes(range(5))\n"
            "print('done')\n"
        )
        self.assertEqual(said, "done\n")

    def test_a_child_cannot_use_a_message_socket_of_its_parent(self) -> None:
        said = self.run_program(
            "import threading\n"
            "listener = ropewalk.MessageListener(['127.0.0.1:0'], token=token)\n"
            "own = ropewalk.MessageSocket.connect(listener.addresses, token=token)\n"
            "other = listener.accept(60)\n"
            "calls = [\n"
            "    lambda: own.send_start(b'child'), lambda: own.send(b'child'), lambda: own.finish_sending(), lambda: own.is_sent(0),\n"
            "    lambda: own.receive(timeout=5), lambda: other.receive(timeout=5), lambda: listener.accept(5),\n"
            "]\n"
            "texts = in_child(lambda: refusals(*calls))\n"
            "assert texts == [MADE_BEFORE] * len(calls), texts\n"
            "for sender, receiver in [(own, other), (other, own)]:\n"
            "    for at in range(100):\n"
            "        sender.send_start(b'%d' % at)\n"
            "        assert receiver.receive(timeout=60) == b'%d' % at\n"
            "own.close()\n"
            "print('done')\n"
        )
        self.assertEqual(said, "done\n")

    def test_a_child_makes_nothing_where_its_parent_has(self) -> None:
        said = self.run_program(
            "def make(to):\n"
            "    rows = ropewalk.Rows(token=token)\n"
            "    rows.schedule('writer 127.0.0.1:1 null: 0 0-1')\n"
            "    rows.schedule('reader 127.0.0.1:2 null: 0 0-1')\n"
            "    return refusals(\n"
            "        lambda: ropewalk.Agent(token), lambda: ropewalk.RegionServer(token=token), lambda: ropewalk.Region('t', [to], token=token),\n"
            "        lambda: ropewalk.MessageListener(['127.0.0.1:0']), lambda: ropewalk.MessageSocket.connect([to], token=token),\n"
            "        lambda: ropewalk.ByteStreamListener(['127.0.0.1:0']), lambda: ropewalk.ByteStream.connect([to], token=token),\n"
            "        lambda: ropewalk.ByteStreams.connect([to], token=token), lambda: ropewalk.Copy('/nothing', '/copy'), rows.transfer,\n"
            "    )\n"
            "def first():\n"
            "    with ropewalk.RegionServer(token=token) as server:\n"
            "        server.serve('t', 3, [(0, 3, b'abc')], rule='read-only')\n"
            "        return ropewalk.Region('t', server.addresses, token=token).get(0, 3)\n"
            # The parent has used nothing yet.
            "assert in_child(first) == b'abc'\n"
            "listener = ropewalk.MessageListener(['127.0.0.1:0'], token=token)\n"
            "texts = in_child(lambda: make(listener.addresses[0]))\n"
            "assert len(texts) == 10 and all('forkserver' in text for text in texts), texts\n"
            "assert in_child(lambda: ropewalk.plan('writer a:1 /data 0 0-1023\\nreader b:2 /copy 0 0-1023', '1Gbit').binding) == ['a:1', 'b:2']\n"
            "assert first() == b'abc'\n"
            "print('done')\n"
        )
        self.assertEqual(said, "done\n")


class Others(Folder):
    def test_plans(self) -> None:
        plan = ropewalk.plan("writer a:1 /data 0 0-1023\nreader b:2 /copy 0 0-1023", "1Gbit")
        self.assertEqual(plan.binding, ["a:1", "b:2"])
        self.assertEqual(plan.transfers[0]["end"], 1024)
        with self.assertRaisesRegex(ropewalk.InputError, "line 1"):
            ropewalk.plan("author a:1 /data 0 0-1023", "1Gbit")

    def test_places(self) -> None:
        for text in ["", "c:70000:/x", "c:7420:relative"]:
            with self.subTest(text), self.assertRaises(ropewalk.InputError):
                ropewalk.Place(text)
        self.assertEqual(repr(ropewalk.Place("b:/x")), "Place('b:/x')")

    def test_tokens(self) -> None:
        path = self.folder / "token"
        path.touch(mode=0o600)
        path.write_text(ropewalk.new_token().hex())
        with ropewalk.Agent(token_file=path) as agent:
            self.assertEqual(len(agent.token), 32)
        with unittest.mock.patch.dict(os.environ, {"HOME": str(self.folder)}):
            for at_home in ("~/token", b"~/token", pathlib.Path("~/token")):
                with ropewalk.Agent(token_file=at_home) as own:
                    self.assertEqual(own.token, agent.token)
                ropewalk.Rows(token_file=at_home)
        path.chmod(path.stat().st_mode | stat.S_IROTH)
        with self.assertRaises(ropewalk.HostError):
            ropewalk.Agent(token_file=path)
        with self.assertRaises(ropewalk.InputError):
            ropewalk.Agent(token=b"short")


if __name__ == "__main__":
    unittest.main()
