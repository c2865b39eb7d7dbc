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
