"""A process that has had Kafka clients can be forked."""

from __future__ import annotations

import subprocess
import sys

import pytest

CODE = """
import gc, os, sys
seen = []
os.register_at_fork(after_in_child=lambda: seen.append(gc.isenabled()))  # runs before what is registered later
import tokenfeed.kafka
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

def clients():
    options = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}
    yield Consumer({**options, "group.id": "none"})
    yield Producer(options)
    yield AdminClient(options)

gc.disable()
for client in clients():
    cycle = [client]
    cycle.append(cycle)
    del client, cycle
if sys.argv[1] == "on":
    gc.enable()
child = os.fork()
if not child:
    kept = gc.isenabled() == (sys.argv[1] == "on") and seen == [False]
    gc.collect()
    os._exit(0 if kept else 1)
_, status = os.waitpid(child, 0)
kept = gc.isenabled() == (sys.argv[1] == "on")
os._exit(0 if status == 0 and kept else 1)
"""

TOGETHER = """
import concurrent.futures.thread, gc, logging, os, sys, threading  # two of them hold locks while a thread forks: first
both = threading.Barrier(2)
os.register_at_fork(before=both.wait)  # runs after what is registered later: both threads are between `before` and fork
import tokenfeed.kafka

def fork():
    child = os.fork()
    if not child:
        os._exit(0 if gc.isenabled() else 1)
    statuses.append(os.waitpid(child, 0)[1])

statuses = []
threads = [threading.Thread(target=fork) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
sys.exit(0 if gc.isenabled() and statuses == [0, 0] else 1)
"""


@pytest.mark.parametrize("collecting", ["on", "off"])
def test_a_forked_process_leaves_its_parents_clients_alone(collecting: str) -> None:
    done = subprocess.run([sys.executable, "-c", CODE, collecting], timeout=60, check=False)
    assert done.returncode == 0


def test_threads_that_fork_together_leave_the_collector_on() -> None:
    assert subprocess.run([sys.executable, "-c", TOGETHER], timeout=20, check=False).returncode == 0
