"""Arrays of numpy, which the package does not need: run in the environment that `scripts/python-wheel` makes."""

import pathlib
import sys
import tempfile
import unittest

import numpy
import ropewalk


class Hidden:
    """An array that shows no buffer, as a tensor."""

    def __init__(self, array: numpy.ndarray) -> None:
        self.array = array

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()

    def __dlpack__(self, **options: object) -> object:
        return self.array.__dlpack__(**options)


class Arrays(unittest.TestCase):
    def test_arrays_by_dlpack(self) -> None:
        values = numpy.arange(300_000, dtype="float32").reshape(3, 100, 1000)
        back = numpy.zeros_like(values)
        unused = sys.getrefcount(values), sys.getrefcount(back)
        with ropewalk.Agent() as own:
            with own.lend("values", Hidden(values)) as source, own.lend("back", Hidden(back), writable=True) as sink:
                self.assertGreater(sys.getrefcount(back), unused[1])
                ropewalk.copy(source.place, sink.place, token=own.token)
            self.assertTrue((values == back).all())
            del source, sink
            self.assertEqual((sys.getrefcount(values), sys.getrefcount(back)), unused)
            for gaps in (values[:, :, ::2], values.T, values[:, ::-1]):
                with self.assertRaisesRegex(BufferError, "gaps"):
                    own.lend("gaps", Hidden(gaps))
            with own.lend("one", Hidden(values[1])) as source, own.lend("back", Hidden(back[0]), writable=True) as sink:
                ropewalk.copy(source.place, sink.place, token=own.token)
            self.assertTrue((values[1] == back[0]).all())
            values.flags.writeable = False
            with self.assertRaises(BufferError):
                own.lend("fixed", Hidden(values), writable=True)

    def test_elements_that_hold_pointers_are_refused(self) -> None:
        token = ropewalk.new_token()
        objects = numpy.array([1, "two", None], dtype=object)
        rows = numpy.zeros(3, dtype=[("number", "i4"), ("O", object)])
        with ropewalk.Agent(token) as own, ropewalk.RegionServer(token=token) as server:
            for array in (objects, rows, rows["O"], objects[:1]):
                for memory in (array, memoryview(array)):
                    with self.assertRaisesRegex(BufferError, "hold pointers"):
                        own.lend("objects", memory)
                    with self.assertRaisesRegex(BufferError, "hold pointers"):
                        server.serve("objects", array.nbytes, [(0, array.nbytes, memory)])
            for values in (numpy.zeros(3, "complex128"), numpy.zeros(3, [("O", "i4"), ("P", "complex64")]), numpy.zeros(3, "U5")):
                own.lend("values", values).end()

    def test_any_contiguous_memory_is_taken(self) -> None:
        token = ropewalk.new_token()
        kinds = [numpy.array(2.5), numpy.zeros((0, 3)), numpy.arange(4).astype("datetime64[s]")]
        try:
            import ml_dtypes
        except ImportError:
            pass
        else:
            kinds += [numpy.arange(10).astype(kind) for kind in (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn)]
            mixed = numpy.zeros(2, dtype=[("small", ml_dtypes.bfloat16), ("object", object)])
        with ropewalk.Agent(token) as own, ropewalk.RegionServer(token=token) as server:
            for number, array in enumerate(kinds):
                with self.subTest(array.dtype):
                    own.lend("values", array, writable=True).end()
                    if array.nbytes == 0:
                        continue
                    back = numpy.zeros_like(array)
                    server.serve(f"{number}", array.nbytes, [(0, array.nbytes, back)])
                    region = ropewalk.Region(f"{number}", server.addresses, token=token)
                    region.put(0, array)
                    server.withdraw(f"{number}")
                    self.assertTrue((back == array).all())
                    array.flags.writeable = False
                    with self.assertRaises(BufferError):
                        own.lend("fixed", array, writable=True)
                    if array.ndim > 0:
                        with self.assertRaises(BufferError):
                            own.lend("gaps", array[::2])
            if len(kinds) > 3:
                with self.assertRaisesRegex(BufferError, "hold pointers"):
                    own.lend("mixed", mixed)

    def test_arrays_are_sources_and_destinations(self) -> None:
        values = numpy.arange(300_000, dtype="float64").reshape(300, 1000)
        back = numpy.zeros_like(values)
        token = ropewalk.new_token()
        with tempfile.TemporaryDirectory() as folder, ropewalk.Agent(token) as own:
            path = pathlib.Path(folder).resolve()
            with ropewalk.Agent(token, roots={str(path): True}) as other:
                place = f"{other.addresses[0]}:{path / 'values'}"
                with own.lend("values", values) as lent:
                    ropewalk.copy(lent.place, place, token=token)
                with own.lend("back", back, writable=True) as lent:
                    ropewalk.copy(place, lent.place, token=token)
            self.assertTrue((values == back).all())
            with self.assertRaises(BufferError):
                own.lend("gaps", values[:, ::2])


if __name__ == "__main__":
    unittest.main()
