"""What a cluster of processes does when things go wrong: servers that start in any order or don't
fit, ports that are taken, clients that leave, servers that die in mid-stream.

Usage: cluster_faults_test.py FASTFD, in the root of the sources.
"""

import contextlib
import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from launched_cluster import (PATIENCE_S, Cluster, free_ports, logged_at,  # noqa: E402
                              open_stream, post, started_at, wait_until)

FASTFD = None
MODEL = pathlib.Path("models/atlas-moe")
HYBRID_MODEL = pathlib.Path("tests/reference/models/qwen3.5-moe")  # full attention and gated delta nets


class Processes:
    """Role processes that the test starts by itself, in an order of its own."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory()
        http, control = free_ports(2)
        self.http = f"127.0.0.1:{http}"
        self.control = f"127.0.0.1:{control}"
        self.running = {}

    def config(self, name, model=MODEL, **scheduler):
        values = {"max_batched_tokens": 512, "prefill_chunk": 256, "max_sequences": 64} | scheduler
        text = (f"model: {{path: {model}}}\n"
                f"coordinator: {{http: \"{self.http}\", control: \"{self.control}\"}}\n"
                "attention: {servers: 1}\nffn: {servers: 1}\n"
                "scheduler: {" + ", ".join(f"{k}: {v}" for k, v in values.items()) + "}\n")
        path = pathlib.Path(self.folder.name) / f"{name}.yaml"
        path.write_text(text)
        return str(path)

    def start(self, role, config, rank=None):
        arguments = [FASTFD, role, "--config", config]
        if rank is not None:
            arguments += ["--rank", str(rank)]
        log = open(pathlib.Path(self.folder.name) / f"{role}.log", "w", encoding="utf-8")
        self.running[role] = subprocess.Popen(arguments, stdout=log, stderr=log)
        log.close()

    def log(self, role):
        return (pathlib.Path(self.folder.name) / f"{role}.log").read_text()

    def is_ready(self):
        connection = http.client.HTTPConnection(self.http, timeout=PATIENCE_S)
        with contextlib.closing(connection):
            try:
                connection.request("GET", "/ready")
                return connection.getresponse().status == 200
            except OSError:
                return False

    def close(self):
        for process in self.running.values():
            if process.poll() is None:
                process.kill()
            process.wait()
        self.folder.cleanup()


def kill_in_mid_stream(test, cluster, name, said):
    """Kills a server while it works for a client, which must be told; returns when the cluster answers again."""
    connection, response = open_stream(cluster.http)
    with contextlib.closing(connection):
        response.readline()
        os.kill(cluster.children()[name], signal.SIGKILL)
        text = response.read().decode()
    test.assertIn('"error"', text[-2000:])
    test.assertIn(said, text[-2000:])

    def serves():
        try:
            return bool(cluster.chat()["choices"])
        except OSError:
            return False
    wait_until(serves, "answer after the restart")


class StartTest(unittest.TestCase):
    def setUp(self):
        self.processes = Processes()
        self.addCleanup(self.processes.close)

    def start_in_order(self, *roles):
        config = self.processes.config("cluster")
        for role in roles:
            self.processes.start(role, config, None if role == "coordinator" else 0)
        wait_until(self.processes.is_ready, "readiness")
        status, answer = post(self.processes.http, "/v1/completions",
                              {"model": "atlas-moe", "prompt": "Once", "max_tokens": 3})
        self.assertEqual(status, 200, answer)

    def test_servers_first(self):
        self.start_in_order("ffn-server", "attention-server", "coordinator")

    def test_coordinator_first(self):
        self.start_in_order("coordinator", "attention-server", "ffn-server")

    def test_servers_outlive_their_coordinator_and_register_again(self):
        self.start_in_order("coordinator", "attention-server", "ffn-server")
        coordinator = self.processes.running["coordinator"]
        coordinator.kill()
        coordinator.wait()
        self.start_coordinator_again()

    def start_coordinator_again(self):
        self.processes.start("coordinator", self.processes.config("cluster"))
        wait_until(self.processes.is_ready, "readiness with the old servers")
        for role in ("attention-server", "ffn-server"):
            self.assertIsNone(self.processes.running[role].poll(), self.processes.log(role))
        status, answer = post(self.processes.http, "/v1/completions",
                              {"model": "atlas-moe", "prompt": "Once", "max_tokens": 3})
        self.assertEqual(status, 200, answer)

    def test_the_first_request_does_not_wait_for_a_second(self):
        self.start_in_order("coordinator", "ffn-server", "attention-server")

    def test_requests_before_readiness_are_told_what_is_missing(self):
        self.processes.start("coordinator", self.processes.config("cluster"))

        def answers():
            try:
                status, answer = post(self.processes.http, "/v1/completions",
                                      {"model": "atlas-moe", "prompt": "Once"})
            except OSError:
                return False
            self.assertEqual(status, 503, answer)
            return "attention server 0" in answer["error"]["message"]
        wait_until(answers, "answer that names the missing server")

    def test_a_server_with_other_limits_is_refused_with_both_values(self):
        self.processes.start("coordinator", self.processes.config("cluster"))
        other = self.processes.config("other", max_batched_tokens=256)
        self.processes.start("ffn-server", other, 0)
        status = self.processes.running["ffn-server"].wait(timeout=PATIENCE_S)
        self.assertNotEqual(status, 0)
        log = self.processes.log("ffn-server")
        self.assertIn("512", log)
        self.assertIn("256", log)

    def model_with_a_broken_tokenizer(self):
        folder = pathlib.Path(self.processes.folder.name) / "atlas-moe"
        folder.mkdir()
        for file in MODEL.resolve().iterdir():
            if file.name != "tokenizer.json":
                (folder / file.name).symlink_to(file)
        (folder / "tokenizer.json").write_text('{"model": ')
        return folder

    def test_a_taken_port_is_named_before_the_model_is_read(self):
        config = self.processes.config("cluster", model=self.model_with_a_broken_tokenizer())

        def said_at_the_end():
            self.processes.start("coordinator", config)
            status = self.processes.running["coordinator"].wait(timeout=PATIENCE_S)
            self.assertEqual(status, 1)
            return self.processes.log("coordinator")
        host, port = self.processes.http.split(":")
        with socket.create_server((host, int(port))):
            said = said_at_the_end()
            self.assertIn(port, said)
            self.assertNotIn("tokenizer", said)
        # With the port free it is the model that it stumbles over.
        self.assertIn("tokenizer.json", said_at_the_end())


class ServingTest(unittest.TestCase):
    def setUp(self):
        self.cluster = Cluster(FASTFD)
        self.addCleanup(self.cluster.close)
        self.cluster.wait_ready()

    def test_all_processes_load_side_by_side(self):
        def joined_lines():
            lines = self.cluster.log_text().splitlines()
            return [line for line in lines if " joined (pid " in line]
        wait_until(lambda: len(joined_lines()) == 4, "word of all four servers")
        joined = joined_lines()
        pids = [int(re.search(r"\(pid (\d+)", line)[1]) for line in joined]
        self.assertEqual(sorted(pids + [self.cluster.children()["coordinator"]]),
                         sorted(self.cluster.children().values()))
        first_joined = min(map(logged_at, joined))
        for name, pid in self.cluster.children().items():
            self.assertLess(started_at(pid), first_joined, name)

    def free_pages(self):
        return (self.cluster.metric("fastfd_kv_free_pages") +
                self.cluster.metric("fastfd_kv_cached_pages"))

    def is_idle(self, pages):
        return (self.cluster.metric("fastfd_running_requests") == 0 and
                self.cluster.metric("fastfd_queued_requests") == 0 and self.free_pages() == pages)

    def test_pages_of_clients_that_leave_come_back(self):
        pages = self.free_pages()
        streams = [open_stream(self.cluster.http) for _ in range(8)]
        for _, response in streams:
            self.assertEqual(response.status, 200)
            response.readline()
        for connection, response in streams[:4]:
            response.close()
            connection.close()
        # Two that leave before their first token, while others run.
        for _ in range(2):
            with contextlib.closing(http.client.HTTPConnection(self.cluster.http)) as connection:
                connection.request("POST", "/v1/completions", json.dumps(
                    {"model": "atlas-moe", "prompt": "Once", "max_tokens": 500}))
        for connection, response in streams[4:]:
            response.close()
            connection.close()
        wait_until(lambda: self.is_idle(pages), "return of all pages")
        self.assertTrue(self.cluster.chat()["choices"][0]["message"]["content"])

    def test_chat_answers_are_those_of_transformers(self):
        golden = json.loads((MODEL / "golden.json").read_text())
        for prompt in golden["prompts"]:
            if "messages" not in prompt or prompt["gap"]["value"] < 0.1:
                continue
            status, answer = post(self.cluster.http, "/v1/chat/completions", {
                "model": "atlas-moe", "messages": prompt["messages"], "temperature": 0,
                "max_tokens": golden["max_new_tokens"]})
            self.assertEqual(status, 200, answer)
            text = prompt["output_text"].removesuffix("<|im_end|>")
            self.assertEqual(answer["choices"][0]["message"]["content"], text, prompt["id"])
            self.assertEqual(answer["choices"][0]["finish_reason"], prompt["finish"])

    def test_clients_of_a_lost_ffn_server_are_told_which(self):
        kill_in_mid_stream(self, self.cluster, "ffn-server 0", "FFN server 0")

    def test_clients_of_a_lost_attention_server_are_told_which(self):
        kill_in_mid_stream(self, self.cluster, "attention-server 0", "attention server 0")
        kill_in_mid_stream(self, self.cluster, "attention-server 1", "attention server 1")


class RecurrentStateTest(unittest.TestCase):
    """A model with recurrent state: random, so that its answers mean nothing, but they must not change."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        folder = pathlib.Path(self.folder.name)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(MODEL / name, folder)
        config = json.loads((HYBRID_MODEL / "config.json").read_text())
        config |= {key: json.loads((MODEL / "config.json").read_text())[key]
                   for key in ("vocab_size", "max_position_embeddings", "eos_token_id", "bos_token_id")}
        (folder / "config.json").write_text(json.dumps(config))
        cluster = folder / "cluster.yaml"
        cluster.write_text(
            f"model: {{path: {folder}, served_name: atlas-moe, load_format: dummy}}\n"
            "attention: {servers: 1}\nffn: {servers: 2}\nscheduler: {max_sequences: 8, plan_ahead: 3}\n")
        self.cluster = Cluster(FASTFD, config=str(cluster))
        self.addCleanup(self.cluster.close)
        self.cluster.wait_ready()

    def answers(self):
        texts = []
        for prompt in ("Once upon a time", "The lighthouse", "A list of rivers and what they carry"):
            status, answer = post(self.cluster.http, "/v1/completions", {
                "model": "atlas-moe", "prompt": prompt, "temperature": 0, "max_tokens": 40,
                "ignore_eos": True, "logprobs": 1})
            self.assertEqual(status, 200, answer)
            texts.append(answer["choices"][0]["logprobs"]["token_logprobs"])
        return texts

    def test_states_that_a_lost_ffn_server_left_behind_are_not_used(self):
        before = self.answers()
        self.assertNotEqual(before[0], before[1])
        kill_in_mid_stream(self, self.cluster, "ffn-server 1", "FFN server 1")
        self.assertEqual(self.answers(), before)
        self.assertIn("the prefix cache is off", self.cluster.log_text())
        self.assertIn("recurrent state up to", self.cluster.log_text())


if __name__ == "__main__":
    FASTFD = sys.argv.pop(1)
    unittest.main()
