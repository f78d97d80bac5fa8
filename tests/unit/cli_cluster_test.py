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
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import unittest.mock
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from launched_cluster import PATIENCE_S, Cluster, is_alive, open_stream, wait_until  # noqa: E402

FASTFD = None


class ClusterTest(unittest.TestCase):
    @contextlib.contextmanager
    def cluster(self, *options, **places):
        cluster = Cluster(FASTFD, *options, **places)
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

    def test_a_co_located_server_answers_the_same_and_comes_back(self):
        with self.cluster() as cluster:
            expected = cluster.chat()["choices"][0]["message"]["content"]
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as config:
            text = pathlib.Path("configs/1a1f.yaml").read_text()
            config.write("topology: colocated\n" + text)
            config.flush()
            with self.cluster(config=config.name) as cluster:
                self.assertIn("on 1 co-located server;", cluster.log_text())
                self.assertEqual(set(cluster.children()), {"coordinator", "colocated-server 0"})
                self.assertEqual(cluster.chat()["choices"][0]["message"]["content"], expected)
                victim = cluster.children()["colocated-server 0"]
                os.kill(victim, signal.SIGKILL)
                wait_until(lambda: cluster.children().get("colocated-server 0", victim) != victim,
                           "new server")

                def serves():
                    try:
                        return cluster.chat()["choices"][0]["message"]["content"] == expected
                    except OSError:
                        return False
                wait_until(serves, "answer")
                pids = list(cluster.children().values())
                cluster.launcher.terminate()
                self.assertEqual(cluster.launcher.wait(timeout=PATIENCE_S), 0, cluster.log_text())
                self.assertEqual([pid for pid in pids if is_alive(pid)], [])
                self.assertNotIn("killing it", cluster.log_text())

    def test_a_role_of_the_other_topology_is_refused(self):
        refused = subprocess.run([FASTFD, "colocated-server", "--config", "configs/1a1f.yaml",
                                  "--rank", "0"], capture_output=True, text=True, check=False)
        self.assertEqual(refused.returncode, 1)
        self.assertIn("topology is disaggregated; its server commands are attention-server and "
                      "ffn-server", refused.stderr)

    def test_an_order_that_arrives_in_copies_is_one(self):
        """`timeout` signals the launcher and then its group, a terminal several processes."""
        def send_twice(cluster):
            cluster.launcher.terminate()
            cluster.launcher.send_signal(signal.SIGINT)
        self.finishes_what_runs(send_twice)

    def test_sigquit_drains_as_well(self):
        self.finishes_what_runs(lambda cluster: cluster.launcher.send_signal(signal.SIGQUIT))

    def test_a_stop_of_all_processes_at_once_drains(self):
        """systemd signals every process of a service, and the launcher passes the order on."""
        def send_to_all(cluster):
            pids = [*cluster.children().values(), cluster.launcher.pid]
            self.assertEqual(len(pids), 6)
            for pid in pids:  # the servers first: the worst order
                os.kill(pid, signal.SIGTERM)
        self.finishes_what_runs(send_to_all)

    def test_two_deliberate_orders_kill(self):
        with self.cluster("--drain-seconds", "3600") as cluster:
            pids = list(cluster.children().values())
            with self.stream(cluster, max_tokens=1500, n=16) as stream:
                stream.readline()
                cluster.launcher.send_signal(signal.SIGINT)
                time.sleep(1.2)
                self.assertIsNone(cluster.launcher.poll(), "one order drains")
                cluster.launcher.send_signal(signal.SIGINT)
                self.assertEqual(cluster.launcher.wait(timeout=PATIENCE_S), 1)
            self.assertEqual([pid for pid in pids if is_alive(pid)], [])
            self.assertIn("killing it", cluster.log_text())
            self.assertIn("killed before it had stopped", cluster.log_text())

    def test_a_server_told_to_stop_serves_on_for_the_drain_and_leaves(self):
        with self.cluster("--drain-seconds", "6") as cluster:
            victim = cluster.children()["ffn-server 0"]
            told_at = time.monotonic()
            os.kill(victim, signal.SIGTERM)
            self.assertTrue(cluster.chat()["choices"][0]["message"]["content"])
            self.assertTrue(is_alive(victim))
            wait_until(lambda: not is_alive(victim), "end of the server")
            self.assertGreater(time.monotonic() - told_at, 6.5)

    def test_nothing_is_left_of_a_launcher_that_is_killed(self):
        with tempfile.TemporaryDirectory() as folder:
            with unittest.mock.patch.dict(os.environ, TMPDIR=folder), self.cluster() as cluster:
                cluster.launcher.kill()
                cluster.launcher.wait()
            self.assertEqual(os.listdir(folder), [])

    def test_addresses_of_version_6_are_shown_in_brackets(self):
        try:
            socket.create_server(("::1", 0), family=socket.AF_INET6).close()
        except OSError:
            self.skipTest("this host has no IPv6")
        with self.cluster(host="[::1]") as cluster:  # readiness waits for the line
            self.assertIn(f"is ready at http://{cluster.http} ", cluster.log_text())

    def test_running_requests_finish_when_told_to_stop(self):
        self.finishes_what_runs(lambda cluster: cluster.launcher.terminate())

    @contextlib.contextmanager
    def stream(self, cluster, **fields):
        body = {"model": "atlas-moe", "stream": True, "ignore_eos": True,
                "messages": [{"role": "user", "content": "Hello"}]} | fields
        request = urllib.request.Request(
            f"http://{cluster.http}/v1/chat/completions", json.dumps(body).encode(),
            {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as stream:
            yield stream

    def finishes_what_runs(self, stop):
        with self.cluster("--drain-seconds", "60") as cluster:
            pids = list(cluster.children().values())
            with self.stream(cluster, max_tokens=200) as stream:
                stream.readline()
                stop(cluster)
                text = stream.read().decode()
            self.assertTrue(text.rstrip().endswith("data: [DONE]"), text[-200:])
            self.assertIn('"finish_reason":"length"', text.replace(" ", ""))
            self.assertEqual(cluster.launcher.wait(timeout=PATIENCE_S), 0, cluster.log_text())
            self.assertEqual([pid for pid in pids if is_alive(pid)], [])
            self.assertNotIn("killing it", cluster.log_text())

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
