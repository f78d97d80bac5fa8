"""`cmake --install` gives a fastfd that works from where it was put.

Usage: cli_install_test.py CMAKE BUILD_FOLDER, in the root of the sources.
"""

import pathlib
import subprocess
import sys
import tempfile
import unittest


class InstallTest(unittest.TestCase):
    def test_installed_program_works(self):
        with tempfile.TemporaryDirectory() as prefix:
            subprocess.run([CMAKE, "--install", BUILD, "--prefix", prefix], check=True,
                           stdout=subprocess.DEVNULL)
            program = pathlib.Path(prefix, "bin", "fastfd")
            done = subprocess.run([program, "--version"], capture_output=True, text=True,
                                  check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            configs = pathlib.Path(prefix, "share", "fastfd", "configs")
            for name in ("quickstart.yaml", "1a1f.yaml"):
                done = subprocess.run([program, "launch", configs / name, "--print-config"],
                                      capture_output=True, text=True, check=False)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertIn("atlas-moe", done.stdout)


if __name__ == "__main__":
    CMAKE, BUILD = sys.argv.pop(1), sys.argv.pop(1)
    unittest.main()
