"""Progress in bars of tqdm, which the package does not need."""

import io
import os
import pathlib
import tempfile
import unittest

import ropewalk
import tqdm
import tqdm.auto

SIZE = 3 << 20


class Bars(unittest.TestCase):
    def setUp(self) -> None:
        keep = tempfile.TemporaryDirectory()
        self.addCleanup(keep.cleanup)
        self.folder = pathlib.Path(keep.name).resolve()
        (self.folder / "from").write_bytes(os.urandom(SIZE))
        self.agent = ropewalk.Agent(roots={str(self.folder): True})
        self.addCleanup(self.agent.stop)

    def test_a_bar_is_shown(self) -> None:
        bars: list[tqdm.tqdm] = []

        class Kept(tqdm.auto.tqdm):
            def __init__(self, **options: object) -> None:
                super().__init__(file=io.StringIO(), **options)
                bars.append(self)

        own, tqdm.auto.tqdm = tqdm.auto.tqdm, Kept
        self.addCleanup(setattr, tqdm.auto, "tqdm", own)
        place = f"{self.agent.addresses[0]}:{self.folder}"
        # One that ends at once, and one that shows progress before.
        for name, limit in [("short", {}), ("long", {"limit": "50Mbit"})]:
            ropewalk.copy(f"{place}/from", f"{place}/{name}", token=self.agent.token, progress=True, **limit)
            bar = bars.pop()
            self.assertEqual((bar.n, bar.total), (SIZE, SIZE))
            self.assertTrue(bar.disable, "closed")
            self.assertIn("100%", bar.fp.getvalue())


if __name__ == "__main__":
    unittest.main()
