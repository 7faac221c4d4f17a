"""A site's SuperNode, which answers with FedAccord's own ClientApp and never runs the app that the server sends.

    python -m fedaccord.engines.flower.supernode SITE_FOLDER

Flower's SuperNode would install the app of a run and import it, so whoever controls the server could run code here.
With `--isolation=process` it starts nothing and only hands out tasks. This process takes them: it neither installs nor
imports the app of the run, and rejects it if its code is not that of the installed FedAccord.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import httpx
from flwr.app import Error, Message
from flwr.common.constant import ErrorCode, SubStatus
from flwr.proto.runtime_pb2 import AcquireTaskRequest, SendTaskHeartbeatRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, RuntimeVersionHttpInterceptor
from flwr.supercore.protobuf.client import ProtobufClientInterceptor
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.cli.flower_supernode import flower_supernode
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

from fedaccord.engines.flower.client import app
from fedaccord.engines.flower.site_folder import SiteFolder

_POLL = 0.2  # seconds between two requests for a task
_OURS = resources.files("fedaccord") / "deployment/templates/server/app"


def main() -> None:
    """Run the SuperNode of a site until a signal ends it."""
    folder = SiteFolder.open(Path(sys.argv[1]))
    link = json.loads((folder.path / "link.json").read_text(encoding="utf-8"))
    sys.argv = [
        "flower-supernode",
        f"--superlink={link['address']}",
        f"--root-certificates={folder.path / 'tls/ca.crt'}",
        f"--auth-supernode-private-key={folder.path / 'node.key'}",
        "--isolation=process",
        "--host=127.0.0.1",
        f"--port={link['port']}",
        f"--node-config=site={json.dumps(str(folder.path))}",
    ]
    threading.Thread(target=_answer_all, args=(folder, f"127.0.0.1:{link['port']}"), daemon=True).start()
    flower_supernode()


def _answer_all(folder: SiteFolder, address: str) -> None:
    request = AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP, TaskType.AGENT_APP])
    rejected: set[str] = set()
    with contextlib.closing(_client(address)) as client:
        while True:
            with _logged(folder):
                token = client.AcquireTask(request).token
                if token:
                    # A message of a run that ends while it is received stays a task, and its content never comes.
                    # Waiting for it here would leave every later task without an answer.
                    threading.Thread(target=_answer, args=(folder, address, token, rejected), daemon=True).start()
            time.sleep(_POLL)


@contextlib.contextmanager
def _logged(folder: SiteFolder) -> Iterator[None]:
    """Log an error instead of raising it: Flower reports to the server that there is no answer."""
    try:
        yield
    except httpx.ConnectError:  # the SuperNode is starting
        pass
    except Exception as error:
        folder.log(f"a task of the server got no answer: {type(error).__name__}: {error}")


def _answer(folder: SiteFolder, address: str, token: str, rejected: set[str]) -> None:
    """Answer a task with FedAccord's ClientApp; log each rejected app once."""
    with _logged(folder), contextlib.closing(_client(address, token)) as client, _heartbeat(client):
        message, context, _, fab = pull_task_input(client)
        foreign = foreign_code(fab.content)
        if foreign:
            sentence = f"rejected the app that the server sent, because {foreign[0]} is not part of FedAccord"
            if fab.hash_str not in rejected:
                folder.log(sentence)
            rejected.add(fab.hash_str)
            reply = Message(Error(ErrorCode.INVALID_FAB, f"the site {sentence}"), reply_to=message)
        else:
            try:
                reply = app(message, context)
            except Exception as error:
                reason = f"{type(error).__name__}: {error}"
                reply = Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message)
        push_message(client, reply, context)
        push_task_output(client, context, SubStatus.COMPLETED, "")


def foreign_code(fab: bytes) -> list[str]:
    """Return the Python files of an app that differ from those of the installed FedAccord, without running them."""
    with zipfile.ZipFile(io.BytesIO(fab)) as files:
        return sorted(info.filename for info in files.infolist() if not _is_ours(files, info))


def _is_ours(files: zipfile.ZipFile, info: zipfile.ZipInfo) -> bool:
    if not info.filename.endswith(".py"):
        return True
    ours = _OURS / f"{info.filename}.in"
    # The size comes first, so that a huge file is not unpacked.
    return ours.is_file() and info.file_size == len(ours.read_bytes()) and files.read(info) == ours.read_bytes()


def _client(address: str, token: str = "") -> RuntimeHttpClient:
    interceptors: list[ProtobufClientInterceptor] = [RuntimeVersionHttpInterceptor(component_name="flwr-clientapp")]
    if token:
        interceptors.append(RuntimeTokenHttpInterceptor(token))
    return RuntimeHttpClient.from_server_address(address, True, None, interceptors)


@contextlib.contextmanager
def _heartbeat(client: RuntimeHttpClient) -> Iterator[None]:
    """Tell Flower meanwhile that the task is in progress."""

    def beat() -> bool:
        with contextlib.suppress(httpx.HTTPError):
            client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
        return True

    sender = HeartbeatSender(beat)
    sender.start()
    try:
        yield
    finally:
        sender.stop()


if __name__ == "__main__":
    main()
