#!/usr/bin/env python3
"""Carries QQ over crawfish's webhook: NapCat (or any OneBot v11 program) posts events here, answers go to its HTTP API.

Standard library only. crawfish speaks OneBot itself (docs/channels/onebot.md): take this as a pattern for platforms that it
does not speak.

    NapCat --POST /onebot--> this --POST--> crawfish
    NapCat <--send_msg------ this <--POST /answers-- crawfish

Environment:
    BRIDGE_URL      crawfish's address of the channel   (http://127.0.0.1:3002/channels/webhook/qq)
    BRIDGE_SECRET   its secret, whsec_…                 (needed)
    BRIDGE_LISTEN   where this listens                  (127.0.0.1:8099)
    ONEBOT_API      NapCat's HTTP server                (http://127.0.0.1:3000)
    ONEBOT_TOKEN    its token; also signs what it posts (needed: whoever reaches /onebot would be believed otherwise)
"""
import base64
import collections
import hashlib
import hmac
import http.server
import json
import os
import socketserver
import sys
import threading
import time
import urllib.error
import urllib.request

URL = os.environ.get("BRIDGE_URL", "http://127.0.0.1:3002/channels/webhook/qq")
KEY = base64.b64decode(os.environ["BRIDGE_SECRET"].removeprefix("whsec_"))
API = os.environ.get("ONEBOT_API", "http://127.0.0.1:3000").rstrip("/")
TOKEN = os.environ["ONEBOT_TOKEN"]
HOST, PORT = os.environ.get("BRIDGE_LISTEN", "127.0.0.1:8099").rsplit(":", 1)
LONGEST = 1 << 20
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
LOCK = threading.Lock()
# Answers that were shown. crawfish repeats one whose receipt was lost, under the same id. A real bridge keeps a table.
SHOWN: "collections.OrderedDict[str, bool]" = collections.OrderedDict()


def signature(message_id: str, timestamp: str, body: bytes) -> str:
    mac = hmac.new(KEY, f"{message_id}.{timestamp}.".encode() + body, hashlib.sha256)
    return "v1," + base64.b64encode(mac.digest()).decode()


def post(url: str, body: bytes, headers: dict, timeout: float = 30) -> bytes:
    request = urllib.request.Request(url, body, {"Content-Type": "application/json", **headers})
    with OPENER.open(request, timeout=timeout) as response:
        return response.read(LONGEST)


def message_of(event: dict):
    """An event as crawfish's message; None for what is no message to answer."""
    if event.get("post_type") != "message":
        return None
    me, user = str(event.get("self_id", "")), str(event.get("user_id", ""))
    if not user or user == me:
        return None
    group = event.get("group_id") if event.get("message_type") == "group" else None
    parts, text, mentioned, reply = event.get("message"), "", group is None, None
    if isinstance(parts, str):
        # CQ strings are not taken apart here: set NapCat's message format to "array".
        parts = [{"type": "text", "data": {"text": parts}}]
    attachments = []
    for part in parts if isinstance(parts, list) else []:
        kind, data = part.get("type"), part.get("data") or {}
        if kind == "text":
            text += str(data.get("text", ""))
        elif kind == "at":
            mentioned = mentioned or str(data.get("qq")) == me
        elif kind == "reply":
            reply = {"id": str(data.get("id", ""))}
        elif kind in ("image", "record", "video") and str(data.get("url", "")).startswith("http"):
            name = {"image": "image", "record": "audio", "video": "video"}[kind]
            attachments.append({"kind": name, "url": data["url"]})
    message = {
        "v": 1,
        "id": f"qq-{me}-{event.get('message_id')}",
        "conversation": {"id": f"group:{group}" if group else f"user:{user}", "type": "group" if group else "direct"},
        "sender": {"id": user, "name": str((event.get("sender") or {}).get("nickname", ""))[:100]},
        "text": text.strip(),
        "mentioned": mentioned,
        "attachments": attachments,
    }
    if reply:
        message["reply_to"] = reply
    return message if message["text"] or attachments else None


def hand_over(message: dict) -> None:
    """Returns once crawfish has stored it; raises when it did not."""
    body, timestamp = json.dumps(message).encode(), str(int(time.time()))
    for attempt in range(6):
        try:
            post(URL, body, {
                "webhook-id": message["id"], "webhook-timestamp": timestamp,
                "webhook-signature": signature(message["id"], timestamp, body),
            })
            return
        except urllib.error.HTTPError as error:
            if error.code not in (429, 503):
                # Refused for good: the same again would be refused again.
                print(f"crawfish refused {message['id']}, which is not answered: HTTP {error.code}", file=sys.stderr, flush=True)
                return
            why, pause = f"HTTP {error.code}", min(int(error.headers.get("Retry-After", "1")), 5)
        except OSError as error:
            why, pause = getattr(error, "reason", error), min(2 ** attempt, 5)
        print(f"crawfish did not take {message['id']} ({why}); next try in {pause} s", file=sys.stderr, flush=True)
        time.sleep(pause)
        timestamp = str(int(time.time()))
    raise OSError(f"crawfish did not take {message['id']}: it is lost, unless the OneBot side posts it again")


def show(answer: dict) -> None:
    """One message in QQ. An array, so that no text of a model is taken for a CQ code."""
    kind, _, number = answer["conversation"]["id"].partition(":")
    call = {
        "message_type": "group" if kind == "group" else "private",
        "group_id" if kind == "group" else "user_id": int(number),
        "message": [{"type": "text", "data": {"text": answer.get("text", "")}}],
    }
    answered = json.loads(post(f"{API}/send_msg", json.dumps(call).encode(), {"Authorization": f"Bearer {TOKEN}"}))
    if answered.get("retcode") not in (0, None):
        raise OSError(f"send_msg: retcode {answered.get('retcode')}")


class Bridge(http.server.BaseHTTPRequestHandler):
    timeout = 30

    def do_POST(self):
        try:
            length = int(self.headers.get("Content-Length", "-1"))
        except ValueError:
            length = -1
        if not 0 <= length <= LONGEST:
            return self.answer(413)
        body = self.rfile.read(length)
        if self.path == "/onebot":
            return self.answer(self.event(body))
        if self.path == "/answers":
            return self.answer(self.callback(body))
        self.answer(404)

    def event(self, body: bytes) -> int:
        wanted = "sha1=" + hmac.new(TOKEN.encode(), body, hashlib.sha1).hexdigest()
        if not hmac.compare_digest(wanted, self.headers.get("X-Signature", "")):
            return 401
        try:
            message = message_of(json.loads(body))
        except (ValueError, AttributeError, TypeError):
            return 400
        if message is None:
            return 204
        try:
            hand_over(message)
        except OSError as error:
            print(error, file=sys.stderr, flush=True)
            return 503
        return 204

    def callback(self, body: bytes) -> int:
        message_id, timestamp = self.headers.get("webhook-id", ""), self.headers.get("webhook-timestamp", "")
        given = self.headers.get("webhook-signature", "").split()
        wanted = signature(message_id, timestamp, body)
        if not any(hmac.compare_digest(wanted, one) for one in given):
            return 401
        if not timestamp.isdigit() or abs(time.time() - int(timestamp)) > 300:
            return 401
        answer = json.loads(body)
        if answer.get("type") not in ("message", "error"):
            return 204
        with LOCK:
            if message_id in SHOWN:
                return 204
            try:
                show(answer)
            except (OSError, ValueError, KeyError) as error:
                # crawfish tries again later, under the same id.
                print(error, file=sys.stderr, flush=True)
                return 503
            SHOWN[message_id] = True
            while len(SHOWN) > 10_000:
                SHOWN.popitem(last=False)
        return 204

    def answer(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        """Says nothing of requests: their addresses and bodies are people's."""


class Server(http.server.ThreadingHTTPServer):
    def server_bind(self):
        # Without the look-up of the machine's full name, which may take its time.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]


if __name__ == "__main__":
    server = Server((HOST, int(PORT)), Bridge)
    print(f"listening on {server.server_address[0]}:{server.server_address[1]}", flush=True)
    server.serve_forever()
