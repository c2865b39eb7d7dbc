"""Arrays of numpy, which the package does not need: run in the environment that `scripts/python-wheel` makes."""

import pathlib
import tempfile
import unittest

import numpy
import ropewalk


class Arrays(unittest.TestCase):
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
