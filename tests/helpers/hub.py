"""A local server that answers `huggingface_hub` like the hub, for the files of one dataset repository."""

import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

ABOUT = "/api/datasets/Salesforce/GiftEval"


class Request(NamedTuple):
    """A request: `path` below the repository, and the start of the byte range."""

    method: str
    path: str
    begin: int


class Hub:
    """Serves `files`, path -> bytes. Small files come directly; Arrow files, as the real hub's large ones, from
    another host that a redirect names. `breaks[path]` cuts the connection after so many bytes, once for each entry.
    """

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.breaks: dict[str, list[int]] = {}
        self.requests: list[Request] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def commit(self) -> str:
        """The commit of the files as they are."""
        every = [f"{path} {hashlib.sha1(content).hexdigest()}" for path, content in sorted(self.files.items())]
        return hashlib.sha1("\n".join(every).encode()).hexdigest()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def gets(self, path: str) -> list[int]:
        """The first byte of each download of a file."""
        return [request.begin for request in self.requests if request.method == "GET" and request.path == path]


def _entry(path: str, content: bytes) -> dict[str, object]:
    entry: dict[str, object] = {"type": "file", "path": path, "size": len(content)}
    entry["oid"] = hashlib.sha1(content).hexdigest()
    if path.endswith(".arrow"):
        entry["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}
    return entry


def _handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self._answer(body=False)

        def do_GET(self) -> None:
            self._answer(body=True)

        def _about(self) -> None:
            """What the hub knows of the repository: its commit and file names, or the size and sum of every file."""
            if "/tree/" in self.path:
                about: object = [_entry(path, content) for path, content in hub.files.items()]
            else:
                siblings = [{"rfilename": path} for path in hub.files]
                about = {"id": "Salesforce/GiftEval", "sha": hub.commit, "siblings": siblings}
            content = json.dumps(about).encode()
            self._head(200, len(content), {"Content-Type": "application/json"})
            self.wfile.write(content)

        def _answer(self, body: bool) -> None:
            if self.path.startswith(ABOUT):
                self._about()
                return
            large = self.path.startswith("/large/")
            path = re.sub(r"^/(large|datasets/Salesforce/GiftEval/resolve/\w+)/", "", self.path)
            content = hub.files.get(path)
            begin = int((re.match(r"bytes=(\d+)-", self.headers.get("Range", "")) or [0, 0])[1])
            if not large or body:
                hub.requests.append(Request(self.command, path, begin))
            if content is None:
                self._head(404, 0, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": hub.commit})
            elif path.endswith(".arrow") and not large:
                digest = hashlib.sha256(content).hexdigest()
                linked = {
                    "X-Linked-Etag": f'"{digest}"',
                    "X-Linked-Size": str(len(content)),
                    "X-Repo-Commit": hub.commit,
                }
                self._head(302, 0, {**linked, "Location": f"http://localhost:{hub.port}/large/{path}"})
            else:
                etag = {"ETag": f'"{hashlib.sha1(content).hexdigest()}"', "X-Repo-Commit": hub.commit}
                if begin:
                    etag["Content-Range"] = f"bytes {begin}-{len(content) - 1}/{len(content)}"
                self._head(206 if begin else 200, len(content) - begin, etag)
                if body:
                    self._send(path, content[begin:])

        def _head(self, status: int, length: int, headers: dict[str, str]) -> None:
            self.send_response(status)
            for name, value in {"Content-Length": str(length), **headers}.items():
                self.send_header(name, value)
            self.end_headers()

        def _send(self, path: str, content: bytes) -> None:
            if hub.breaks.get(path):
                self.wfile.write(content[: hub.breaks[path].pop(0)])
                self.close_connection = True
            else:
                self.wfile.write(content)

    return Handler
