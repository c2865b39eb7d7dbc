"""Objects that have DLPack and no buffer protocol, made by hand: what their capsules say, and that each is given back once."""

import ctypes
import gc
import os
import unittest
from typing import Any

import ropewalk

CPU, CUDA = 1, 2
READ_ONLY, IS_COPIED = 1, 2


class Described(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_kind", ctypes.c_int32),
        ("device_number", ctypes.c_int32),
        ("dimensions", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Plain(ctypes.Structure):
    _fields_ = [("tensor", Described), ("context", ctypes.c_void_p), ("deleter", DELETER)]


class WithVersion(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", DELETER),
        ("flags", ctypes.c_uint64),
        ("tensor", Described),
    ]


new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype = ctypes.py_object
new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class Tensor:
    """Elements of two bytes; `given` and `deleted` count its capsules."""

    def __init__(
        self,
        memory: bytearray,
        shape: tuple[int, ...],
        strides: tuple[int, ...] | None = None,
        *,
        version: tuple[int, int] | None = (1, 1),
        flags: int = 0,
        device: int = CPU,
        bits: int = 16,
        offset: int = 0,
    ) -> None:
        self.memory = (ctypes.c_char * len(memory)).from_buffer(memory)
        self.shape = (ctypes.c_int64 * len(shape))(*shape)
        self.strides = None if strides is None else (ctypes.c_int64 * len(strides))(*strides)
        self.version, self.flags, self.device, self.bits, self.offset = version, flags, device, bits, offset
        self.given, self.deleted = 0, 0
        self.names = (b"dltensor", b"dltensor_versioned")

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device, 0

    def _described(self) -> Described:
        shape = ctypes.cast(self.shape, ctypes.POINTER(ctypes.c_int64))
        strides = ctypes.cast(self.strides, ctypes.POINTER(ctypes.c_int64))
        return Described(ctypes.addressof(self.memory), self.device, 0, len(self.shape), 1, self.bits, 1, shape, strides, self.offset)

    def _delete(self, _: object) -> None:
        self.deleted += 1

    def __dlpack__(self, *, max_version: tuple[int, int] | None = None, copy: bool | None = None) -> Any:
        self.deleter = DELETER(self._delete)
        self.given += 1
        if self.version is None:
            self.plain = Plain(self._described(), None, self.deleter)
            return new_capsule(ctypes.addressof(self.plain), self.names[0], None)
        assert max_version == (1, 0) and copy is False
        self.versioned = WithVersion(*self.version, None, self.deleter, self.flags, self._described())
        return new_capsule(ctypes.addressof(self.versioned), self.names[1], None)


class Old(Tensor):
    """One that knows no versions, nor the arguments."""

    def __init__(self, memory: bytearray, shape: tuple[int, ...], strides: tuple[int, ...] | None = None) -> None:
        super().__init__(memory, shape, strides, version=None)

    def __dlpack__(self) -> Any:  # type: ignore[override]
        return super().__dlpack__()


class Tensors(unittest.TestCase):
    def setUp(self) -> None:
        self.token = ropewalk.new_token()
        self.own = ropewalk.Agent(self.token)
        self.addCleanup(self.own.stop)

    def assert_given_back(self, *tensors: Tensor) -> None:
        gc.collect()
        for tensor in tensors:
            self.assertEqual(tensor.deleted, tensor.given)

    def test_tensors_are_sources_and_destinations(self) -> None:
        data = bytearray(os.urandom(2_000_000))
        shapes = [((1000, 1000), (1000, 1)), ((1000, 1, 1000), (1000, 7, 1)), ((1_000_000,), None)]
        for shape, strides in shapes:
            for kind in (Old, Tensor):
                with self.subTest(shape=shape, kind=kind):
                    space = bytearray(len(data))
                    source, sink = kind(data, shape, strides), kind(space, shape, strides)
                    with self.own.lend("source", source) as one, self.own.lend("sink", sink, writable=True) as other:
                        self.assertEqual((source.given, source.deleted), (1, 0))
                        ropewalk.copy(one.place, other.place, token=self.token)
                        self.assertEqual(other.written, [(0, len(data))])
                    self.assertTrue(space == data)
                    self.assertEqual((source.given, sink.given), (1, 1))
                    self.assert_given_back(source, sink)

    def test_a_part_begins_at_its_offset(self) -> None:
        data, space = bytearray(os.urandom(1000)), bytearray(998)
        part = Tensor(data, (499,), offset=2)
        with self.own.lend("part", part) as one, self.own.lend("space", space, writable=True) as other:
            ropewalk.copy(one.place, other.place, token=self.token)
        self.assertEqual(space, data[2:])
        self.assert_given_back(part)

    def test_what_is_no_memory_of_this_host_is_refused(self) -> None:
        memory = bytearray(48)
        cases = [
            (Tensor(memory, (2, 3), device=CUDA), False, "device"),
            (Tensor(memory, (2, 3), (1, 2)), False, "gaps"),
            (Tensor(memory, (2, 3), (6, 1)), False, "gaps"),
            (Tensor(memory, (2, 3), (-3, 1)), False, "gaps"),
            (Tensor(memory, (2, 3), bits=4), False, "4 bits"),
            (Tensor(memory, (2, -3)), False, "shape"),
            (Tensor(memory, (1 << 40, 1 << 40)), False, "shape"),
            (Tensor(memory, (2, 3), version=(2, 0)), False, "DLPack 2.0"),
            (Tensor(memory, (2, 3), flags=READ_ONLY), True, "cannot be written"),
            (Tensor(memory, (2, 3), flags=IS_COPIED), True, "copy of its memory"),
        ]
        for tensor, writable, text in cases:
            with self.subTest(text), self.assertRaisesRegex(BufferError, text):
                self.own.lend("memory", tensor, writable=writable)
            self.assert_given_back(tensor)
        self.assertEqual(cases[0][0].given, 0)
        used = Tensor(memory, (2, 3))
        used.names = (b"used_dltensor", b"used_dltensor_versioned")
        with self.assertRaisesRegex(TypeError, "unused"):
            self.own.lend("used", used)
        read_only = Tensor(memory, (2, 3), flags=READ_ONLY | IS_COPIED)
        with self.own.lend("read", read_only):
            pass
        self.assert_given_back(read_only)

    def test_regions_and_streams_take_tensors(self) -> None:
        data, space = bytearray(os.urandom(2000)), bytearray(2000)
        source, sink = Tensor(data, (1000,)), Tensor(space, (1000,))
        with ropewalk.RegionServer(token=self.token) as server:
            server.serve("region", 2000, [(0, 2000, source)])
            region = ropewalk.Region("region", [server.addresses], token=self.token, timeout=60)
            region.get_into(0, sink)
            self.assertEqual(space, data)
            region.put(0, Tensor(bytearray(b"ab"), (1,)))
            self.assertEqual(data[:2], b"ab")
        with ropewalk.ByteStreamListener(["127.0.0.1:0"], token=self.token) as listener:
            with ropewalk.ByteStream.connect(listener.addresses, token=self.token) as near:
                near.sendall(source)
                with listener.accept(60) as far:
                    far.settimeout(60)
                    self.assertEqual(far.recv_into(sink), 2000)
        self.assertEqual(space, data)
        del region
        self.assert_given_back(source, sink)


if __name__ == "__main__":
    unittest.main()
