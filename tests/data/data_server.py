"""A server of files on this machine, to download from."""

import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Server:
    """What the server answers: files by path, and how many bytes too many it announces."""

    url: str
    files: dict[str, bytes] = field(default_factory=dict)
    missing_bytes: int = 0
    requests: list[str] = field(default_factory=list)


@contextmanager
def serving():
    """A running server without files."""
    answers = Server(url="")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            answers.requests.append(self.path)
            content = answers.files.get(self.path)
            self.send_response(404 if content is None else 200)
            announced = len(content or b"") + answers.missing_bytes
            self.send_header("Content-Length", str(announced))
            self.end_headers()
            self.wfile.write(content or b"")

        def log_message(self, format, *args):  # noqa: A002
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    answers.url = f"http://127.0.0.1:{http.server_port}"
    try:
        yield answers
    finally:
        http.shutdown()
        http.server_close()
        thread.join(10)
