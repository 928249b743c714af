#!/usr/bin/env python3
"""Carries Feishu over crawfish's webhook: Feishu posts events here, answers go to its message API.

Standard library only, so no encryption (leave the console's Encrypt Key empty): the verification token proves the caller.
crawfish speaks Feishu itself (docs/channels/feishu.md), encrypted and without a public address: take this as a pattern.

Environment:
    BRIDGE_URL      crawfish's address of the channel   (http://127.0.0.1:3002/channels/webhook/feishu)
    BRIDGE_SECRET   its secret, whsec_…                 (needed)
    BRIDGE_LISTEN   where this listens                  (127.0.0.1:8098)
    FEISHU_API      the open platform                   (https://open.feishu.cn)
    FEISHU_APP_ID, FEISHU_APP_SECRET, FEISHU_VERIFICATION_TOKEN, FEISHU_BOT_OPEN_ID   (needed)
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

URL = os.environ.get("BRIDGE_URL", "http://127.0.0.1:3002/channels/webhook/feishu")
KEY = base64.b64decode(os.environ["BRIDGE_SECRET"].removeprefix("whsec_"))
API = os.environ.get("FEISHU_API", "https://open.feishu.cn").rstrip("/")
APP_ID, APP_SECRET = os.environ["FEISHU_APP_ID"], os.environ["FEISHU_APP_SECRET"]
VERIFICATION = os.environ["FEISHU_VERIFICATION_TOKEN"]
BOT = os.environ["FEISHU_BOT_OPEN_ID"]
HOST, PORT = os.environ.get("BRIDGE_LISTEN", "127.0.0.1:8098").rsplit(":", 1)
LONGEST = 1 << 20
# crawfish is near and reached directly; Feishu as the environment says.
NEAR = urllib.request.build_opener(urllib.request.ProxyHandler({}))
FAR = urllib.request.build_opener()
LOCK = threading.Lock()
SHOWN: "collections.OrderedDict[str, bool]" = collections.OrderedDict()
TOKEN = {"value": "", "until": 0.0}


def signature(message_id: str, timestamp: str, body: bytes) -> str:
    mac = hmac.new(KEY, f"{message_id}.{timestamp}.".encode() + body, hashlib.sha256)
    return "v1," + base64.b64encode(mac.digest()).decode()


def call(path: str, content: dict, token: str = "") -> dict:
    headers = {"Content-Type": "application/json; charset=utf-8"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    request = urllib.request.Request(API + path, json.dumps(content).encode(), headers)
    with FAR.open(request, timeout=20) as response:
        answer = json.loads(response.read(LONGEST))
    if answer.get("code") != 0:
        raise OSError(f"{path.split('?')[0]}: {answer.get('code')} {answer.get('msg')}")
    return answer


def tenant_token() -> str:
    if time.monotonic() >= TOKEN["until"]:
        answer = call("/open-apis/auth/v3/tenant_access_token/internal", {"app_id": APP_ID, "app_secret": APP_SECRET})
        TOKEN["value"] = answer["tenant_access_token"]
        TOKEN["until"] = time.monotonic() + max(int(answer.get("expire", 0)) - 300, 60)
    return TOKEN["value"]


def message_of(event: dict):
    """An event as crawfish's message; None for what is no message to answer."""
    header, inside = event.get("header") or {}, event.get("event") or {}
    if header.get("event_type") != "im.message.receive_v1":
        return None
    message, sender = inside.get("message") or {}, inside.get("sender") or {}
    user = (sender.get("sender_id") or {}).get("open_id")
    if sender.get("sender_type") != "user" or not user or message.get("message_type") != "text":
        return None
    text = json.loads(message.get("content") or "{}").get("text", "")
    group, mentioned = message.get("chat_type") == "group", message.get("chat_type") != "group"
    for mention in message.get("mentions") or []:
        ours = (mention.get("id") or {}).get("open_id") == BOT
        mentioned = mentioned or ours
        text = text.replace(mention.get("key", ""), "" if ours else "@" + mention.get("name", ""))
    return {
        "v": 1,
        "id": "fs-" + message["message_id"],
        "conversation": {"id": message["chat_id"], "type": "group" if group else "direct"},
        "sender": {"id": user},
        "text": text.strip(),
        "mentioned": mentioned,
    } if text.strip() else None


def hand_over(message: dict) -> int:
    """What to answer Feishu: 200 only once crawfish has stored it, else Feishu sends it again."""
    body, timestamp = json.dumps(message).encode(), str(int(time.time()))
    request = urllib.request.Request(URL, body, {
        "Content-Type": "application/json", "webhook-id": message["id"], "webhook-timestamp": timestamp,
        "webhook-signature": signature(message["id"], timestamp, body),
    })
    try:
        # Feishu waits three seconds and repeats what was not answered by then; the same id is the same message.
        NEAR.open(request, timeout=2.5).close()
        return 200
    except urllib.error.HTTPError as error:
        later = error.code in (429, 503)
        what = "Feishu is asked to send it again" if later else "it is refused for good and not answered"
        print(f"crawfish answered {error.code} to {message['id']}: {what}", file=sys.stderr, flush=True)
        return 503 if later else 200
    except (urllib.error.URLError, TimeoutError) as error:
        print(f"crawfish did not take {message['id']} ({error}): Feishu is asked to send it again", file=sys.stderr, flush=True)
        return 503


def show(answer: dict, message_id: str) -> None:
    """One message in Feishu. The uuid makes a repeated call one message for an hour."""
    call("/open-apis/im/v1/messages?receive_id_type=chat_id", {
        "receive_id": answer["conversation"]["id"], "msg_type": "text",
        "content": json.dumps({"text": answer.get("text", "")}), "uuid": message_id[:50],
    }, tenant_token())


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
        if self.path == "/feishu":
            return self.answer(*self.event(body))
        if self.path == "/answers":
            return self.answer(self.callback(body))
        self.answer(404)

    def event(self, body: bytes):
        try:
            event = json.loads(body)
            token = event.get("token") or (event.get("header") or {}).get("token") or ""
            if not hmac.compare_digest(VERIFICATION.encode(), str(token).encode()):
                return (401,)
            if event.get("type") == "url_verification":
                return (200, {"challenge": event.get("challenge")})
            message = message_of(event)
        except (ValueError, AttributeError, KeyError, TypeError):
            return (400,)
        return (200 if message is None else hand_over(message), {})

    def callback(self, body: bytes) -> int:
        message_id, timestamp = self.headers.get("webhook-id", ""), self.headers.get("webhook-timestamp", "")
        wanted = signature(message_id, timestamp, body)
        given = self.headers.get("webhook-signature", "").split()
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
                show(answer, message_id)
            except (OSError, ValueError, KeyError) as error:
                print(error, file=sys.stderr, flush=True)
                return 503
            SHOWN[message_id] = True
            while len(SHOWN) > 10_000:
                SHOWN.popitem(last=False)
        return 204

    def answer(self, status: int, content=None) -> None:
        body = b"" if content is None else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

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
