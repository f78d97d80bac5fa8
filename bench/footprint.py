"""What the quickstart cluster costs: time from launch to readiness, resident memory of all its
processes, CPU while idle and while serving.

Usage: footprint.py FASTFD [--idle SECONDS], in the root of the sources.
"""

import argparse
import os
import pathlib
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests" / "support"))
from launched_cluster import Cluster  # noqa: E402

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def memory_mib(pid):
    """Resident and proportional memory; the proportional counts shared windows and code once."""
    resident = proportional = 0
    for line in pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Rss:"):
            resident = int(line.split()[1])
        elif line.startswith("Pss:"):
            proportional = int(line.split()[1])
    return resident / 1024, proportional / 1024


def measure(processes, seconds, work=None):
    """CPU shares (of one core) by process over `seconds`, or while `work` runs."""
    before = {name: cpu_seconds(pid) for name, pid in processes.items()}
    start = time.monotonic()
    if work is None:
        time.sleep(seconds)
    else:
        work()
    wall = time.monotonic() - start
    return {name: (cpu_seconds(pid) - before[name]) / wall for name, pid in processes.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("fastfd")
    parser.add_argument("--idle", type=float, default=10, help="seconds to watch the idle cluster")
    options = parser.parse_args()

    start = time.monotonic()
    cluster = Cluster(options.fastfd)
    try:
        cluster.wait_ready()
        ready_s = time.monotonic() - start
        processes = {"launcher": cluster.launcher.pid} | cluster.children()

        def load():
            subprocess.run([options.fastfd, "bench", "serve", "--url", f"http://{cluster.http}",
                            "--duration", "5", "--concurrency", "32"],
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
        busy = measure(processes, 0, load)
        time.sleep(1)
        idle = measure(processes, options.idle)
        memory = {name: memory_mib(pid) for name, pid in processes.items()}
    finally:
        cluster.close()

    print(f"ready after {ready_s:.2f} s")
    print(f"{'process':22}{'resident MiB':>14}{'proportional':>14}{'CPU idle':>10}{'serving':>10}")
    for name in processes:
        print(f"{name:22}{memory[name][0]:14.1f}{memory[name][1]:14.1f}{idle[name]:10.2%}"
              f"{busy[name]:10.1%}")
    print(f"{'all':22}{sum(m[0] for m in memory.values()):14.1f}"
          f"{sum(m[1] for m in memory.values()):14.1f}{sum(idle.values()):10.2%}"
          f"{sum(busy.values()):10.1%}")


if __name__ == "__main__":
    main()
