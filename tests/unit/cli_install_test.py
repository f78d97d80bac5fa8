"""`cmake --install` gives a fastfd that works from where it was put.

Usage: cli_install_test.py CMAKE BUILD_FOLDER, in the root of the sources.
"""

import pathlib
import signal
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from launched_cluster import PATIENCE_S, Cluster, is_alive, post  # noqa: E402


class InstallTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.prefix = pathlib.Path(folder.name)
        subprocess.run([CMAKE, "--install", BUILD, "--prefix", self.prefix], check=True,
                       stdout=subprocess.DEVNULL)
        self.program = self.prefix / "bin" / "fastfd"
        self.configs = self.prefix / "share" / "fastfd" / "configs"

    def test_installed_program_reads_the_installed_configurations(self):
        done = subprocess.run([self.program, "--version"], capture_output=True, text=True,
                              check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        for name in ("quickstart.yaml", "1a1f.yaml"):
            done = subprocess.run([self.program, "launch", self.configs / name, "--print-config"],
                                  capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("atlas-moe", done.stdout)

    def test_installed_cluster_answers_and_stops(self):
        cluster = Cluster(self.program, config=self.configs / "1a1f.yaml")
        self.addCleanup(cluster.close)
        cluster.wait_ready()
        children = cluster.children()
        self.assertEqual(len(children), 3, children)
        for name, pid in children.items():
            self.assertEqual(pathlib.Path(f"/proc/{pid}/exe").resolve(), self.program.resolve(),
                             name)
        status, answer = post(cluster.http, "/v1/completions",
                              {"model": "atlas-moe", "prompt": "Once", "max_tokens": 8,
                               "ignore_eos": True})
        self.assertEqual(status, 200, answer)
        self.assertEqual(answer["usage"]["completion_tokens"], 8)
        cluster.launcher.send_signal(signal.SIGINT)
        self.assertEqual(cluster.launcher.wait(timeout=PATIENCE_S), 0, cluster.log_text())
        self.assertEqual([name for name, pid in children.items() if is_alive(pid)], [])
        self.assertNotIn("killing it", cluster.log_text())


if __name__ == "__main__":
    CMAKE, BUILD = sys.argv.pop(1), sys.argv.pop(1)
    unittest.main()
