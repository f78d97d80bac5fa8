"""The official `openai` client against a launched cluster of processes.

Usage: openai_client_cluster_test.py FASTFD, in the root of the sources. Exits with 77 (skipped)
when the `openai` package is not installed.
"""

import pathlib
import subprocess
import sys

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS / "support"))
from launched_cluster import Cluster  # noqa: E402


def main():
    cluster = Cluster(sys.argv[1])
    try:
        cluster.wait_ready()
        client = [sys.executable, TESTS / "http" / "openai_client_test.py", f"http://{cluster.http}"]
        return subprocess.run(client, check=False).returncode
    finally:
        cluster.close()


if __name__ == "__main__":
    sys.exit(main())
