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
import urllib.error
import urllib.request

FASTFD = None
PATIENCE_S = 120  # of a loaded machine or a sanitizer; no figure of FastFD's


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in sockets]
    for listener in sockets:
        listener.close()
    return ports


def wait_until(condition, what):
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"no {what} after {PATIENCE_S} s")
        time.sleep(0.02)


def is_alive(pid):
    """Whether a process runs; a zombie that nobody reaps does not."""
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rsplit(")", 1)[1].split()[0] != "Z"


class Cluster:
    """`fastfd launch configs/quickstart.yaml` on ports of its own."""

    def __init__(self, config="configs/quickstart.yaml"):
        http, control = free_ports(2)
        self.http = f"127.0.0.1:{http}"
        self.control = f"127.0.0.1:{control}"
        self.log = tempfile.NamedTemporaryFile("w+", suffix=".log")
        self.launcher = subprocess.Popen(
            [FASTFD, "launch", config, "--http", self.http, "--control", self.control],
            stdout=self.log, stderr=self.log)

    def log_text(self):
        return pathlib.Path(self.log.name).read_text()

    def get(self, path):
        try:
            with urllib.request.urlopen(f"http://{self.http}{path}", timeout=5) as reply:
                return reply.status
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return None

    def wait_ready(self):
        def ready():
            if self.launcher.poll() is not None:
                raise AssertionError("the launcher ended:\n" + self.log_text())
            return self.get("/ready") == 200
        wait_until(ready, "readiness")

    def children(self):
        """Process ids by role and rank, from the command lines of the launcher's children."""
        found = {}
        listed = pathlib.Path(f"/proc/{self.launcher.pid}/task/{self.launcher.pid}/children")
        for pid in map(int, listed.read_text().split()):
            arguments = pathlib.Path(f"/proc/{pid}/cmdline").read_text().split("\0")
            rank = arguments[arguments.index("--rank") + 1] if "--rank" in arguments else ""
            found[(arguments[1] + " " + rank).strip()] = pid
        return found

    def chat(self):
        body = {"model": "atlas-moe", "max_tokens": 8, "temperature": 0,
                "messages": [{"role": "user", "content": "Hello"}]}
        request = urllib.request.Request(
            f"http://{self.http}/v1/chat/completions", json.dumps(body).encode(),
            {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as reply:
            return json.load(reply)

    def close(self):
        if self.launcher.poll() is None:
            self.launcher.kill()
            self.launcher.wait()
        self.log.close()


class ClusterTest(unittest.TestCase):
    @contextlib.contextmanager
    def cluster(self):
        cluster = Cluster()
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
        self.assertNotIn("killed by signal", cluster.log_text())

    def test_answers_and_stops_on_sigint(self):
        with self.cluster() as cluster:
            self.assertIn("is ready at http://" + cluster.http, cluster.log_text())
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


if __name__ == "__main__":
    FASTFD = sys.argv.pop(1)
    unittest.main()
