"""Memory that is lent is not copied: the most that a process has, which sends it or receives into it, is the memory and little more."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import ropewalk

GIB = 1 << 30
# An interpreter, the library, and what lanes have under way; far below what a copy would take.
BESIDE = 64 << 20

PROGRAM = """
import os, sys, ropewalk
role, address, path, token = sys.argv[1:4] + [bytes.fromhex(sys.argv[4])]
size, receives = 1 << 30, role == "receive"
# Pages that are there, or are not yet.
memory = bytearray(size) if receives else bytearray(os.urandom(1 << 20)) * 1024
with ropewalk.Agent(token) as agent, agent.lend("memory", memory, writable=receives):
    own = f"{agent.addresses[0]} buffer:memory 0 0-{size - 1}"
    rows = ropewalk.Rows(token=token)
    rows.schedule(f"reader {own}" if receives else f"writer {own}")
    rows.schedule(f"{'writer' if receives else 'reader'} {address} {path} 0 0-{size - 1}")
    assert rows.wait().delivered_bytes == size
if receives:
    assert memory[:5] == memory[size // 2 : size // 2 + 5] == b"\\0" * 5 and memory.endswith(b"the end")
with open("/proc/self/status") as status:
    peak = next(line for line in status if line.startswith("VmHWM:"))
print(int(peak.split()[1]) * 1024)
"""


class Peak(unittest.TestCase):
    def test_lent_memory_is_not_copied(self) -> None:
        token = ropewalk.new_token()
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder).resolve() / "from"
            with path.open("wb") as file:
                file.seek(GIB - 7)
                file.write(b"the end")
            with ropewalk.Agent(token, roots={str(path.parent): False}) as agent:
                for role, of in [("send", "null:"), ("receive", path)]:
                    with self.subTest(role):
                        arguments = [role, agent.addresses[0], of, token.hex()]
                        child = subprocess.run(
                            [sys.executable, "-c", PROGRAM, *map(str, arguments)], stdout=subprocess.PIPE, check=True
                        )
                        beside = int(child.stdout) - GIB
                        print(f"{role}: 1 GiB and {beside / (1 << 20):.1f} MiB", file=sys.stderr)
                        self.assertGreater(beside, 0)
                        self.assertLess(beside, BESIDE)


if __name__ == "__main__":
    unittest.main()
