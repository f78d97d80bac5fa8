#!/usr/bin/env python3
"""A cluster of GPU server processes through its endpoint: the answers of transformers, a chat, load,
and a server that goes in mid-step: killed, or under MPS, where a kill takes everybody's context,
told to stop. scripts/gpu-bundle puts it beside what it needs; usage there: bin/endpoint_test
"""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time
import unittest
import urllib.error
import urllib.request

BUNDLE = pathlib.Path(__file__).resolve().parents[1]
FASTFD = BUNDLE / "bin" / "fastfd"
MODEL = BUNDLE / "share" / "atlas-moe"
URL = "http://127.0.0.1:8000"
PATIENCE_S = 120
UNDER_MPS = "CUDA_MPS_PIPE_DIRECTORY" in os.environ


def post(path, body):
    request = urllib.request.Request(URL + path, json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    return urllib.request.urlopen(request, timeout=PATIENCE_S)


class Cluster:
    def __init__(self, edit=lambda text: text):
        """`edit`: what is changed in h200-2a2f.yaml."""
        text = edit((BUNDLE / "share" / "h200-2a2f.yaml").read_text())
        self.config = BUNDLE / "share" / "here.yaml"
        self.config.write_text(text.replace("models/atlas-moe", str(MODEL)))
        self.log_path = BUNDLE / "share" / "cluster.log"
        environment = dict(os.environ, LD_LIBRARY_PATH=str(BUNDLE / "lib"))
        with self.log_path.open("w", encoding="utf-8") as log:
            self.launcher = subprocess.Popen([FASTFD, "launch", self.config], stdout=log,
                                             stderr=log, env=environment)

    def log(self):
        return self.log_path.read_text(encoding="utf-8")

    def wait_ready(self):
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            if self.launcher.poll() is not None:
                raise AssertionError("the cluster ended:\n" + self.log())
            try:
                with urllib.request.urlopen(URL + "/ready", timeout=5):
                    return
            except (urllib.error.URLError, OSError):
                time.sleep(0.05)
        raise AssertionError("the cluster is not ready:\n" + self.log())

    def pids(self, role, rank=None):
        pattern = f"{role} --config.*" + (f"--rank {rank}$" if rank is not None else "")
        listed = subprocess.run(["pgrep", "-P", str(self.launcher.pid), "-f", pattern],
                                capture_output=True, text=True, check=False).stdout
        return [int(pid) for pid in listed.split()]

    def stop(self):
        self.launcher.send_signal(signal.SIGTERM)
        return self.launcher.wait(timeout=PATIENCE_S)


class EndpointTest(unittest.TestCase):
    def start(self, **options):
        self.cluster = Cluster(**options)
        self.addCleanup(self.cluster.launcher.kill)
        self.cluster.wait_ready()

    def expect_golden(self):
        result = subprocess.run(
            [sys.executable, BUNDLE / "share" / "golden_client.py", "--url", URL, "--model-dir",
             MODEL], capture_output=True, text=True, check=False)
        print(result.stdout.strip())
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr + self.cluster.log())

    def test_answers_and_carries_load(self):
        self.start()
        self.expect_golden()
        with post("/v1/chat/completions", {
                "model": "atlas-moe", "max_tokens": 20, "temperature": 0,
                "messages": [{"role": "user", "content": "What is the capital of France?"}]}) as answer:
            self.assertIn("Paris", json.load(answer)["choices"][0]["message"]["content"])
        bench = subprocess.run(
            [FASTFD, "bench", "serve", "--url", URL, "--num-requests", "400", "--concurrency", "32",
             "--json", "-"], capture_output=True, text=True, check=True,
            env=dict(os.environ, LD_LIBRARY_PATH=str(BUNDLE / "lib")))
        figures = json.loads(bench.stdout)
        self.assertEqual((figures["num_ok"], figures["num_failed"]), (400, 0))
        self.assertEqual(self.cluster.stop(), 0, self.cluster.log())

    def test_co_located_ranks_answer_the_same(self):
        for ranks in (1, 2):
            self.start(edit=lambda text, ranks=ranks: "topology: colocated\n" +
                       text.replace("servers: 2", f"servers: {ranks}"))
            self.assertEqual(len(self.cluster.pids("colocated-server")), ranks)
            self.expect_golden()
            self.assertEqual(self.cluster.stop(), 0, self.cluster.log())

    def test_a_server_that_goes_in_mid_step_takes_nobody_along(self):
        self.start()
        attention = self.cluster.pids("attention-server")
        self.assertEqual(len(attention), 2)

        def ask():
            try:
                with post("/v1/completions", {"model": "atlas-moe", "prompt": "Once upon a time",
                                              "max_tokens": 1500, "ignore_eos": True}) as answer:
                    answer.read()
            except (urllib.error.URLError, OSError):
                pass  # what was running ends with an error that names the server

        asking = threading.Thread(target=ask)
        asking.start()
        time.sleep(0.5)
        (ffn,) = self.cluster.pids("ffn-server", 1)
        os.kill(ffn, signal.SIGTERM if UNDER_MPS else signal.SIGKILL)
        deadline = time.monotonic() + PATIENCE_S
        while self.cluster.pids("ffn-server", 1) in ([ffn], []):
            self.assertLess(time.monotonic(), deadline, self.cluster.log())
            time.sleep(0.05)
        self.cluster.wait_ready()
        asking.join()
        # The others are the processes that they were, and their contexts work.
        self.assertEqual(self.cluster.pids("attention-server"), attention)
        self.expect_golden()
        self.assertEqual(self.cluster.stop(), 0, self.cluster.log())
        log = self.cluster.log()
        self.assertRegex(log, r"\[attention 0\] epoch 1 ends: FFN server 1 was lost")
        idle_ms = [float(ms) for ms in re.findall(r"epoch 1: the GPU was idle ([0-9.]+) ms", log)]
        print(f"{'TERM' if UNDER_MPS else 'kill -9'} of FFN server 1: the others' GPU work ended "
              f"within {max(idle_ms)} ms")


if __name__ == "__main__":
    unittest.main(verbosity=2)
