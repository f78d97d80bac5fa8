"""The command line: help, versions, and errors that name cause and remedy.

Usage: cli_test.py FASTFD, in the root of the sources.
"""

import contextlib
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import unittest

FASTFD = None
QUICKSTART = "configs/quickstart.yaml"
COMMANDS = [["launch"], ["serve"], ["bench"], ["bench", "serve"], ["bench", "offline"], ["status"],
            ["coordinator"], ["attention-server"], ["ffn-server"]]


def fastfd(*arguments):
    return subprocess.run([FASTFD, *arguments], capture_output=True, text=True, timeout=60,
                          check=False)


@contextlib.contextmanager
def listening_socket():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def free_port():
    with listening_socket() as port:
        return port


class CliTest(unittest.TestCase):
    def assert_fails(self, arguments, status, *words):
        done = fastfd(*arguments)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        for word in words:
            self.assertIn(word, done.stdout + done.stderr)

    def test_help_everywhere(self):
        done = fastfd("--help")
        self.assertEqual(done.returncode, 0)
        for command in COMMANDS:
            self.assertIn(command[0], done.stdout)
            with self.subTest(command=command):
                own = fastfd(*command, "--help")
                self.assertEqual(own.returncode, 0, own.stderr)
                self.assertIn("--help", own.stdout)

    def test_version(self):
        done = fastfd("--version")
        self.assertEqual(done.returncode, 0)
        self.assertRegex(done.stdout, r"^fastfd \d+\.\d+\.\d+\n$")

    def test_usage_errors_have_their_own_status(self):
        self.assert_fails([], 2, "launch", "bench")
        self.assert_fails(["bench"], 2, "offline")
        self.assert_fails(["bench", "lunch"], 2, "lunch")
        self.assert_fails(["lunch"], 2, "lunch")
        self.assert_fails(["launch"], 2, "file")
        self.assert_fails(["launch", QUICKSTART, "--nonsense"], 2, "--nonsense")
        self.assert_fails(["bench", "serve", "--request-rate", "-1"], 2, "--request-rate")
        self.assert_fails(["bench", "serve", "--endpoint", "x"], 2, "--endpoint")

    def test_print_config_is_a_cluster_file(self):
        first = fastfd("launch", QUICKSTART, "--print-config")
        self.assertEqual(first.returncode, 0, first.stderr)
        with tempfile.TemporaryDirectory() as folder:
            again = pathlib.Path(folder, "again.yaml")
            again.write_text(first.stdout)
            second = fastfd("launch", str(again), "--print-config")
        self.assertEqual(second.stdout, first.stdout)

    def test_options_override_the_file(self):
        done = fastfd("launch", QUICKSTART, "--print-config", "--http", "0.0.0.0:8123", "--control",
                      "[::1]:7171", "--log-level", "debug")
        self.assertEqual(done.returncode, 0, done.stderr)
        for value in ("0.0.0.0:8123", "7171", "debug"):
            self.assertIn(value, done.stdout)
        for bad in ("8000", "host:", ":80", "host:0", "host:70000", "host:8o"):
            self.assert_fails(["launch", QUICKSTART, "--print-config", "--http", bad], 1, "--http",
                              "HOST:PORT")
        self.assert_fails(["launch", QUICKSTART, "--print-config", "--log-level", "loud"], 2,
                          "--log-level: loud")

    def test_serve_chooses_a_topology(self):
        done = fastfd("serve", "models/atlas-moe", "--print-config")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("atlas-moe", done.stdout)
        self.assert_fails(["serve", "/nonexistent"], 1, "/nonexistent")

    def test_a_missing_or_wrong_file_is_named(self):
        self.assert_fails(["launch", "/nonexistent.yaml"], 1, "/nonexistent.yaml")
        self.assert_fails(["coordinator", "--config", "/nonexistent.yaml"], 1, "/nonexistent.yaml")
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, "c.yaml")
            file.write_text("model: {path: models/atlas-moe}\natention: {servers: 1}\n")
            self.assert_fails(["launch", str(file)], 1, "c.yaml", "atention")

    def test_a_device_that_cant_be_had_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "c.yaml"
            file.write_text("model: {path: models/atlas-moe}\nattention: {device: 'cuda:0'}\n"
                            "ffn: {device: 'cuda:0'}\n",
                            encoding="utf-8")
            for arguments in (["launch", str(file)], ["bench", "offline", str(file)],
                              ["attention-server", "--config", str(file), "--rank", "0"]):
                with self.subTest(arguments=arguments):
                    self.assert_fails(arguments, 1, "attention.device: cuda:0: ",
                                      "use device: cpu")

    def test_a_taken_port_is_named_before_anything_starts(self):
        with listening_socket() as port:
            self.assert_fails(["launch", QUICKSTART, "--http", f"127.0.0.1:{port}"], 1, str(port),
                              "coordinator.http")
            self.assert_fails(["launch", QUICKSTART, "--http", f"127.0.0.1:{free_port()}",
                               "--control", f"127.0.0.1:{port}"], 1, str(port),
                              "coordinator.control")

    def test_numbers_are_checked_with_the_legal_range(self):
        for option, bad, legal in (
                ("--num-requests", "-1", "from 1 to 100000000"),
                ("--num-requests", "0", "from 1 to"), ("--num-requests", "1.5", "whole number"),
                ("--num-requests", "99999999999999999999", "from 1 to"),
                ("--concurrency", "0", "from 1 to 65536"), ("--concurrency", "-1", "from 1 to"),
                ("--request-rate", "0", "above 0"), ("--request-rate", "nan", "above 0"),
                ("--duration", "nan", "above 0"), ("--duration", "inf", "above 0"),
                ("--duration", "0", "above 0"), ("--timeout", "nan", "above 0"),
                ("--timeout", "-1", "above 0"), ("--temperature", "nan", "from 0 to 100"),
                ("--temperature", "-1", "from 0 to"), ("--warmup", "-1", "from 0 to"),
                ("--seed", "-1", "from 0 to"), ("--input-len", "0", "from 1 to"),
                ("--output-len", "-5", "from 1 to"), ("--range-ratio", "1", "from 0 to 0.999"),
                ("--vocab-size", "-1", "from 1 to")):
            with self.subTest(option=option, bad=bad):
                self.assert_fails(["bench", "serve", option, bad], 2, option, f"'{bad}'", legal)
        for option in ("--batch", "--prompt-len", "--output-len", "--repeat"):
            for bad in ("0", "-1", "nan", "1e99"):
                self.assert_fails(["bench", "offline", QUICKSTART, option, bad], 2, option,
                                  "from 1 to")
        for bad in ("nan", "-nan", "inf", "-1", "1e9", "soon"):
            self.assert_fails(["launch", QUICKSTART, "--print-config", f"--drain-seconds={bad}"], 2,
                              "--drain-seconds", "from 0 to 86400")
        self.assert_fails(["ffn-server", "--config", QUICKSTART, "--rank", "-1"], 2, "--rank",
                          "from 0 to 63")

    def test_words_are_checked_with_the_legal_ones(self):
        done = fastfd("bench", "serve", "--endpoint", "foo")
        self.assertEqual(done.returncode, 2)
        self.assertIn("--endpoint: 'foo' is not one of completions, chat\n", done.stderr)
        self.assert_fails(["bench", "serve", "--prompts", "x"], 2, "'x' is not one of auto, tokens")

    def test_a_model_can_be_made_up_and_cut(self):
        done = fastfd("launch", QUICKSTART, "--print-config", "--load-format", "dummy",
                      "--num-layers", "2")
        self.assertIn("load_format: dummy", done.stdout)
        self.assertIn("num_layers: 2", done.stdout)
        self.assert_fails(["bench", "offline", QUICKSTART, "--load-format", "gguf"], 2,
                          "'gguf' is not one of auto, dummy")
        self.assert_fails(["bench", "offline", QUICKSTART, "--num-layers", "99"], 1,
                          "num_layers asks for the first 99")

    def test_launch_needs_ports_that_can_be_told(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, "c.yaml")
            file.write_text("model: {path: models/atlas-moe}\n"
                            "coordinator: {http: '127.0.0.1:0'}\n")
            self.assert_fails(["launch", str(file)], 1, str(file), "coordinator.http: port 0",
                              "--http HOST:PORT")

    def test_a_file_that_is_none_is_refused_at_once(self):
        with tempfile.TemporaryDirectory() as folder:
            fifo = pathlib.Path(folder, "fifo")
            os.mkfifo(fifo)
            self.assert_fails(["launch", str(fifo)], 1, "can't be read as a file")
            self.assert_fails(["ffn-server", "--config", str(fifo), "--rank", "0"], 1, str(fifo))

    def test_control_characters_dont_cut_a_message(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, "c.yaml")
            file.write_text('model: {path: models/atlas-moe}\nlog_level: "a\\0b"\n')
            self.assert_fails(["launch", str(file)], 1, "'a\\x00b' is not known", "use one of trace")

    def test_ranks_are_checked(self):
        self.assert_fails(["ffn-server", "--config", QUICKSTART, "--rank", "2"], 1, "--rank 2",
                          "0 to 1")
        self.assert_fails(["attention-server", "--config", QUICKSTART], 2, "--rank")

    def test_an_unreachable_server_is_named(self):
        address = f"127.0.0.1:{free_port()}"
        self.assert_fails(["bench", "serve", "--url", f"http://{address}"], 1, address, "--url")
        self.assert_fails(["status", "--http", address, "--control", address], 1, address,
                          "fastfd launch")

    def test_bench_refuses_bad_objectives(self):
        self.assert_fails(["bench", "serve", "--slo", "ttft=fast"], 1, "ttft", "200ms")


if __name__ == "__main__":
    FASTFD = sys.argv.pop(1)
    unittest.main()
