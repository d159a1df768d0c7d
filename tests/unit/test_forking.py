"""A process that has had Kafka clients can be forked."""

from __future__ import annotations

import subprocess
import sys

import pytest

CODE = """
import gc, os, sys
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
    kept = gc.isenabled() == (sys.argv[1] == "on")
    gc.collect()
    os._exit(0 if kept else 1)
_, status = os.waitpid(child, 0)
kept = gc.isenabled() == (sys.argv[1] == "on")
os._exit(0 if status == 0 and kept else 1)
"""


@pytest.mark.parametrize("collecting", ["on", "off"])
def test_a_forked_process_leaves_its_parents_clients_alone(collecting: str) -> None:
    done = subprocess.run([sys.executable, "-c", CODE, collecting], timeout=60, check=False)
    assert done.returncode == 0
