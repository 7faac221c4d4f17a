"""A site's SuperNode answers the tasks that it can, whatever becomes of others."""

import contextlib
import threading
from types import SimpleNamespace

from fedaccord.engines.flower import supernode


def test_a_task_whose_content_never_comes_does_not_hold_up_the_next(monkeypatch):
    tokens, never, asked, logged = iter(["stuck", "next"]), threading.Event(), threading.Event(), []

    def acquire(request):
        token = next(tokens, None)
        if token is None:
            raise SystemExit  # ends the loop, which is endless in a node
        return SimpleNamespace(token=token)

    def pull(client):
        if client.token == "stuck":
            never.wait(60)
        asked.set()
        raise RuntimeError(client.token)

    def client(address, token=""):
        return SimpleNamespace(token=token, AcquireTask=acquire, SendTaskHeartbeat=lambda _: None, close=lambda: None)

    def loop():
        with contextlib.suppress(SystemExit):
            supernode._answer_all(SimpleNamespace(log=logged.append), "localhost:1")

    monkeypatch.setattr(supernode, "_client", client)
    monkeypatch.setattr(supernode, "pull_task_input", pull)
    thread = threading.Thread(target=loop)
    thread.start()
    try:
        assert asked.wait(20)
        thread.join(20)
        assert not thread.is_alive()
        assert logged == ["a task of the server got no answer: RuntimeError: next"]
    finally:
        never.set()
