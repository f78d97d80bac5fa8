"""A launched cluster of processes: it becomes ready, stops on a signal, brings servers back, and
leaves no orphan behind.

Usage: cli_cluster_test.py FASTFD, in the root of the sources.
"""

import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import unittest
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from launched_cluster import PATIENCE_S, Cluster, is_alive, open_stream, wait_until  # noqa: E402

FASTFD = None


class ClusterTest(unittest.TestCase):
    @contextlib.contextmanager
    def cluster(self, *options):
        cluster = Cluster(FASTFD, *options)
        try:
            cluster.wait_ready()
            yield cluster
        finally:
            cluster.close()

    def assert_stops(self, cluster, send):
        """Sends a signal; the launcher must end with 0 and no child may be left."""
        pids = list(cluster.children().values())
        self.assertEqual(len(pids), 5)
        send()
        self.assertEqual(cluster.launcher.wait(timeout=PATIENCE_S), 0, cluster.log_text())
        self.assertEqual([pid for pid in pids if is_alive(pid)], [])
        self.assertNotIn("killing it", cluster.log_text())

    def test_answers_and_stops_on_sigint(self):
        with self.cluster() as cluster:
            answer = cluster.chat()
            self.assertTrue(answer["choices"][0]["message"]["content"])
            status = subprocess.run([FASTFD, "status", "--http", cluster.http, "--control",
                                     cluster.control], capture_output=True, text=True, check=False)
            self.assertEqual(status.returncode, 0, status.stdout + status.stderr)
            self.assertEqual(len(re.findall(r"^(attention|ffn) ", status.stdout, re.M)), 4)
            self.assert_stops(cluster, lambda: cluster.launcher.send_signal(signal.SIGINT))

    def test_log_lines_name_their_process(self):
        with self.cluster() as cluster:
            tags = ("[launcher]", "[coordinator]", "[attention 0]", "[attention 1]", "[ffn 0]",
                    "[ffn 1]")
            for line in cluster.log_text().splitlines():
                self.assertTrue(any(tag in line for tag in tags), line)
            self.assert_stops(cluster, cluster.launcher.terminate)

    def test_no_orphan_when_the_launcher_is_killed(self):
        with self.cluster() as cluster:
            pids = list(cluster.children().values())
            self.assertEqual(len(pids), 5)
            cluster.launcher.kill()
            cluster.launcher.wait()
            wait_until(lambda: not any(map(is_alive, pids)), "end of the orphans")

    def test_a_killed_ffn_server_comes_back_and_the_cluster_serves_again(self):
        self.kill_and_serve_again("ffn-server 1")

    def test_a_killed_attention_server_comes_back_and_the_cluster_serves_again(self):
        self.kill_and_serve_again("attention-server 0")

    def kill_and_serve_again(self, name):
        with self.cluster() as cluster:
            victim = cluster.children()[name]
            os.kill(victim, signal.SIGKILL)
            wait_until(lambda: cluster.children().get(name, victim) != victim, f"new {name}")

            def serves():
                try:
                    return bool(cluster.chat()["choices"][0]["message"]["content"])
                except OSError:  # refused or cut while the server is away
                    return False
            wait_until(serves, "answer")
            self.assert_stops(cluster, cluster.launcher.terminate)

    def test_running_requests_finish_when_told_to_stop(self):
        with self.cluster() as cluster:
            body = {"model": "atlas-moe", "max_tokens": 200, "stream": True, "ignore_eos": True,
                    "messages": [{"role": "user", "content": "Hello"}]}
            request = urllib.request.Request(
                f"http://{cluster.http}/v1/chat/completions", json.dumps(body).encode(),
                {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as stream:
                stream.readline()
                cluster.launcher.terminate()
                text = stream.read().decode()
            self.assertTrue(text.rstrip().endswith("data: [DONE]"), text[-200:])
            self.assertIn('"finish_reason":"length"', text.replace(" ", ""))
            self.assertEqual(cluster.launcher.wait(timeout=PATIENCE_S), 0)

    def test_requests_that_outlast_the_drain_are_told_that_the_cluster_shuts_down(self):
        with self.cluster("--drain-seconds", "0.5") as cluster, contextlib.ExitStack() as opened:
            # Several, so that none ends by itself in the time.
            streams = []
            for _ in range(4):
                connection, response = open_stream(cluster.http, max_tokens=2000)
                opened.enter_context(contextlib.closing(connection))
                self.assertEqual(response.status, 200)
                response.readline()
                streams.append(response)
            signalled_at = time.monotonic()
            self.assert_stops(cluster, lambda: cluster.launcher.send_signal(signal.SIGINT))
            self.assertLess(time.monotonic() - signalled_at, 5)
            for response in streams:
                text = response.read().decode()
                self.assertIn('"error"', text[-2000:])
                self.assertIn("the cluster is shutting down", text[-2000:])
                self.assertNotIn("was lost", text)


if __name__ == "__main__":
    FASTFD = sys.argv.pop(1)
    unittest.main()
