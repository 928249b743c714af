#!/usr/bin/env python3
"""The smallest bridge: each line of standard input is a message, each answer is printed.

Standard library only. Environment: BRIDGE_URL (http://127.0.0.1:3002/channels/webhook/bridge), BRIDGE_SECRET (whsec_…),
BRIDGE_USER (who writes; default u1). Exit 0 at the end of the input, 1 when an answer did not come.
"""
import base64
import hashlib
import hmac
import json
import os
import sys
import time
import urllib.error
import urllib.request
import uuid

URL = os.environ.get("BRIDGE_URL", "http://127.0.0.1:3002/channels/webhook/bridge")
KEY = base64.b64decode(os.environ["BRIDGE_SECRET"].removeprefix("whsec_"))
USER = os.environ.get("BRIDGE_USER", "u1")
# This machine is reached directly, whatever proxy the environment names.
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def signed(message_id: str, body: bytes) -> dict:
    """The headers that prove where the body comes from."""
    timestamp = str(int(time.time()))
    mac = hmac.new(KEY, f"{message_id}.{timestamp}.".encode() + body, hashlib.sha256)
    return {
        "Content-Type": "application/json",
        "webhook-id": message_id,
        "webhook-timestamp": timestamp,
        "webhook-signature": "v1," + base64.b64encode(mac.digest()).decode(),
    }


def again(why: str, pause: int) -> None:
    """Says why nothing came and when it is tried again, and waits."""
    print(f"{why}; next try in {pause} s", file=sys.stderr, flush=True)
    time.sleep(pause)


def ask(text: str) -> list:
    """Sends one message and waits for its answer. Asked again under the same id, it is still one message."""
    stored = False
    message_id = f"echo-{uuid.uuid4()}"
    body = json.dumps({
        "v": 1, "id": message_id, "conversation": {"id": f"echo-{USER}"}, "sender": {"id": USER}, "text": text,
    }).encode()
    for attempt in range(10):
        request = urllib.request.Request(URL, body, {**signed(message_id, body), "Prefer": "wait=60"})
        try:
            with OPENER.open(request, timeout=90) as response:
                answer = json.load(response)
        except urllib.error.HTTPError as error:
            if error.code not in (429, 503):
                raise SystemExit(f"the gateway refuses the message (HTTP {error.code}): look at its log") from None
            again(f"the gateway is busy (HTTP {error.code})", min(int(error.headers.get("Retry-After", "1")), 30))
            continue
        except OSError as error:
            again(f"the gateway does not answer at {URL} ({getattr(error, 'reason', error)})", 2 ** min(attempt, 5))
            continue
        # Whatever it says of the answer, a 2xx says that the message is stored.
        stored = True
        if answer.get("status") == "done":
            return [message["text"] for message in answer.get("messages", [])]
    if stored:
        raise SystemExit("no answer came in time; the message is stored and will be answered by poll or callback")
    raise SystemExit("the gateway never said that it has the message: send it again once the gateway runs")


def main() -> None:
    for line in sys.stdin:
        if line.strip():
            for text in ask(line.strip()):
                print(text, flush=True)


if __name__ == "__main__":
    main()
