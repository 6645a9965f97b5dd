"""Real WebSocket libraries through both engines: every message comes back equal, in order and in kind, and every tunnel ends well."""
import pytest

import wspeers


@pytest.fixture(scope="module")
def peers():
    why = wspeers.build()
    if why:
        pytest.skip(f"the WebSocket libraries could not be built: {why}")


# client, server, permessage-deflate, messages, tunnels at once: 10,000 messages on each engine
RUNS = [
    ("gorilla", "gorilla", False, 5000, 50),
    ("gorilla", "gorilla", True, 2500, 20),
    ("gorilla", "websockets", False, 500, 1),
    ("websockets", "gorilla", True, 300, 5),
    ("websockets", "websockets", False, 1500, 20),
    ("websockets", "websockets", True, 200, 4),
]


@pytest.mark.long
@pytest.mark.parametrize("client, server, deflate, messages, tunnels", RUNS, ids=lambda v: {True: "deflate", False: "plain"}.get(v) if isinstance(v, bool) else str(v))
def test_messages_come_back(peers, engine, client, server, deflate, messages, tunnels):
    result = wspeers.exchange(engine, client, server, deflate, messages, tunnels)
    assert result["ok"], result


def test_the_runs_are_10000_messages():
    assert sum(run[3] for run in RUNS) == 10000
