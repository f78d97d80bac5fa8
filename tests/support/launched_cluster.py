"""A cluster of processes for tests in Python."""

import contextlib
import datetime
import http.client
import json
import os
import pathlib
import re
import socket
import subprocess
import tempfile
import time
import urllib.request

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


def started_at(pid):
    """When a process was started, in seconds since 1970, to the clock tick."""
    stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    ticks = int(stat.rsplit(")", 1)[1].split()[19])
    now_since_boot = time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.time() - now_since_boot + ticks / os.sysconf("SC_CLK_TCK")


def logged_at(line):
    """The time that begins a line of a log, in seconds since 1970."""
    return datetime.datetime.strptime(line[:23], "%Y-%m-%d %H:%M:%S.%f").timestamp()


def post(address, path, body):
    """Returns (status, answer)."""
    connection = http.client.HTTPConnection(address, timeout=PATIENCE_S)
    with contextlib.closing(connection):
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        reply = connection.getresponse()
        return reply.status, json.loads(reply.read())


def open_stream(address, **fields):
    """Starts a streaming completion and returns (connection, response)."""
    connection = http.client.HTTPConnection(address, timeout=PATIENCE_S)
    body = {"model": "atlas-moe", "prompt": "Once", "stream": True, "ignore_eos": True,
            "temperature": 0, "max_tokens": 1500} | fields
    connection.request("POST", "/v1/completions", json.dumps(body),
                       {"Content-Type": "application/json"})
    return connection, connection.getresponse()


class Cluster:
    """`fastfd launch FILE` on ports of its own."""

    def __init__(self, fastfd, *options, config="configs/quickstart.yaml", host="127.0.0.1"):
        """`host` is where HTTP is served."""
        http, control = free_ports(2)
        self.http = f"{host}:{http}"
        self.control = f"127.0.0.1:{control}"
        self.log = tempfile.NamedTemporaryFile("w+", suffix=".log")
        self.launcher = subprocess.Popen(
            [fastfd, "launch", config, "--http", self.http, "--control", self.control,
             *options],
            stdout=self.log, stderr=self.log)

    def log_text(self):
        return pathlib.Path(self.log.name).read_text()

    def wait_ready(self):
        def ready():
            if self.launcher.poll() is not None:
                raise AssertionError("the launcher ended:\n" + self.log_text())
            return f"is ready at http://{self.http}" in self.log_text()
        wait_until(ready, "readiness")

    def children(self):
        """Process ids by role and rank, from the command lines of the launcher's children."""
        found = {}
        roles = ("coordinator", "attention-server", "ffn-server", "colocated-server")
        listed = pathlib.Path(f"/proc/{self.launcher.pid}/task/{self.launcher.pid}/children")
        for pid in map(int, listed.read_text().split()):
            try:
                arguments = pathlib.Path(f"/proc/{pid}/cmdline").read_text().split("\0")
            except (FileNotFoundError, ProcessLookupError):
                continue
            if len(arguments) < 2 or arguments[1] not in roles:
                continue  # a zombie, or one that has not called exec yet
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

    def metric(self, name):
        """Sum of a metric over its labels."""
        with urllib.request.urlopen(f"http://{self.http}/metrics", timeout=PATIENCE_S) as reply:
            lines = reply.read().decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines
                   if re.match(rf"{name}[ {{]", line))

    def close(self):
        if self.launcher.poll() is None:
            self.launcher.kill()
            self.launcher.wait()
        self.log.close()
