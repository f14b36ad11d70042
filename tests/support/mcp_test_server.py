"""An MCP server in a hundred lines of standard library, so that it starts at once, with tools that misbehave.

The marker in its command line makes its processes easy to find.
"""

import base64
import json
import os
import signal
import subprocess
import sys
import time

COUNT = {"calls": 0}
TEXT = {"type": "object", "properties": {}}


def add(a, b=1):
    return str(a + b)


def count():
    COUNT["calls"] += 1
    return str(COUNT["calls"])


def sleep(seconds):
    time.sleep(seconds)
    return "slept"


def die(code):
    sys.stderr.write("about to die\n")
    sys.stderr.flush()
    os._exit(code)


def hang():
    while True:
        time.sleep(1000)


def flood(length):
    return "x" * length


def spawn(marker):
    # A session of its own, deaf to signals: out of reach of whoever kills the server or its group.
    program = "import signal, time\nfor n in (1, 2, 15): signal.signal(n, signal.SIG_IGN)\ntime.sleep(1000)"
    child = subprocess.Popen([sys.executable, "-I", "-S", "-c", program, marker], start_new_session=True)
    return str(child.pid)


def environment():
    return " ".join(sorted(os.environ))


def chatter():
    print("Loading the model ...", flush=True)
    return "done"


def binary():
    return b"\xff\xfe.".decode(errors="surrogateescape")


def fail():
    raise RuntimeError("no luck")


def refuse():
    raise PermissionError("not for you")


def show():
    return [
        {"type": "text", "text": "a"},
        {"type": "image", "data": base64.b64encode(b"x").decode(), "mimeType": "image/png"},
        {"type": "resource", "resource": {"uri": "memo://1", "text": "b"}},
        {"type": "resource_link", "uri": "memo://2", "name": "two"},
    ]


NUMBER, INTEGER, STRING = {"type": "number"}, {"type": "integer"}, {"type": "string"}
TOOLS = {
    "add": (add, {"type": "object", "properties": {"a": INTEGER, "b": INTEGER}, "required": ["a"]}),
    "count": (count, TEXT),
    "sleep": (sleep, {"type": "object", "properties": {"seconds": NUMBER}, "required": ["seconds"]}),
    "die": (die, {"type": "object", "properties": {"code": INTEGER}, "required": ["code"]}),
    "hang": (hang, TEXT),
    "flood": (flood, {"type": "object", "properties": {"length": INTEGER}, "required": ["length"]}),
    "spawn": (spawn, {"type": "object", "properties": {"marker": STRING}, "required": ["marker"]}),
    "environment": (environment, TEXT),
    "fail": (fail, TEXT),
    "refuse": (refuse, TEXT),
    "show": (show, TEXT),
    "chatter": (chatter, TEXT),
    "binary": (binary, TEXT),
    "odd": (count, {"type": "object", "properties": {"x": {"type": "nonsense"}}}),
    "elsewhere": (count, {"type": "object", "properties": {"x": {"$ref": "http://localhost:1/schema"}}}),
}


def call(params):
    function = TOOLS[params["name"]][0]
    try:
        said = function(**params.get("arguments", {}))
    except PermissionError:
        raise
    except Exception as error:
        return {"content": [{"type": "text", "text": str(error)}], "isError": True}
    return {"content": said if isinstance(said, list) else [{"type": "text", "text": said}]}


def listed(params):
    """Three tools a page."""
    start = int((params or {}).get("cursor") or 0)
    names = list(TOOLS)[start : start + 3]
    page = [{"name": name, "description": f"The tool\n  {name}.", "inputSchema": TOOLS[name][1]} for name in names]
    return {"tools": page} | ({"nextCursor": str(start + 3)} if start + 3 < len(TOOLS) else {})


def initialize(params):
    return {
        "protocolVersion": params["protocolVersion"],
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "test", "version": "1"},
    }


METHODS = {"initialize": initialize, "tools/list": listed, "tools/call": call}


def answered(message):
    """Return the bytes of the answer to a message."""
    answer = {"jsonrpc": "2.0", "id": message["id"]}
    try:
        if message["method"] not in METHODS:
            answer["error"] = {"code": -32601, "message": "Method not found"}
        else:
            answer["result"] = METHODS[message["method"]](message.get("params"))
    except PermissionError as error:
        answer["error"] = {"code": -32602, "message": str(error)}
    return json.dumps(answer, ensure_ascii=False).encode(errors="surrogateescape")


def serve():
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message:
            sys.stdout.buffer.write(answered(message) + b"\n")
            sys.stdout.buffer.flush()


def serve_http(port):
    from http.server import BaseHTTPRequestHandler, HTTPServer

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            if self.headers["X-Key"] != "1":
                self.send_error(401)
                return
            message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            body = answered(message) if "id" in message else b""
            self.send_response(200 if body else 202)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    HTTPServer(("127.0.0.1", port), Handler).serve_forever()


if __name__ == "__main__":
    if "--broken" in sys.argv:
        sys.exit("cannot find the database")
    if "--mute" in sys.argv:
        hang()
    if "--once" in sys.argv:  # starts once only: the file says whether it has
        path = sys.argv[sys.argv.index("--once") + 1]
        if os.path.exists(path):
            sys.exit("will not start twice")
        open(path, "w").close()
    if "--deaf" in sys.argv:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "--http" in sys.argv:
        serve_http(int(sys.argv[sys.argv.index("--http") + 1]))
    serve()
    if "--deaf" in sys.argv:
        hang()
