// The login and the chat of the gateway's own page. Everything that comes from elsewhere is put in as text, never as markup.

const LINES = {
  en: {
    title: "Log in", hint: "Open the link that the gateway shows when it starts, or paste the token from the file data/token.",
    token: "Token", login: "Log in", logout: "Log out", wrong: "This is not the gateway's token.",
    locked: "Too many wrong tokens. The right one works at any time.", unreachable: "The gateway cannot be reached.",
    placeholder: "Message", send: "Send", stop: "Stop", connected: "connected", connecting: "connecting …",
    empty: "Say something. Enter sends, Shift+Enter begins a new line.", silent: "(no reply)", stopped: "(stopped)",
    failed: "This did not work", notSent: "Not sent", input: "Input", output: "Output",
  },
  zh: {
    title: "登录", hint: "打开网关启动时显示的链接，或粘贴文件 data/token 中的令牌。",
    token: "令牌", login: "登录", logout: "退出", wrong: "令牌不正确。",
    locked: "错误次数太多。正确的令牌随时有效。", unreachable: "无法连接网关。",
    placeholder: "消息", send: "发送", stop: "停止", connected: "已连接", connecting: "正在连接…",
    empty: "说点什么吧。回车发送，Shift+回车换行。", silent: "（未回复）", stopped: "（已停止）",
    failed: "没有成功", notSent: "未发送", input: "输入", output: "输出",
  },
};
const lang = (navigator.language || "en").toLowerCase().startsWith("zh") ? "zh" : "en";
const line = LINES[lang];
const SESSION = "main";
const at = (id) => document.getElementById(id);
let csrf = null;
let events = null;
/** Answers by task: the bubble, its current text block, its steps by call id. */
const answers = new Map();

document.documentElement.lang = lang === "zh" ? "zh-CN" : "en";
for (const [id, text] of [
  ["login-title", line.title], ["login-hint", line.hint], ["token-label", line.token], ["login-button", line.login],
  ["logout", line.logout], ["send", line.send], ["stop", line.stop],
]) at(id).textContent = text;
at("text").placeholder = line.placeholder;
at("text").setAttribute("aria-label", line.placeholder);

async function call(method, path, body) {
  const headers = {};
  if (method !== "GET") headers["Content-Type"] = "application/json";
  if (csrf && method !== "GET") headers["X-CSRF-Token"] = csrf;
  const response = await fetch(path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body) });
  const answer = await response.json().catch(() => ({}));
  return { status: response.status, answer };
}

// ---- login ----

async function begin() {
  const fragment = new URLSearchParams(location.hash.slice(1));
  const token = fragment.get("token");
  if (token) {
    // Gone from the address bar and the history before anything else happens.
    history.replaceState(null, "", location.pathname);
    if (await login(token)) return;
  } else {
    const me = await call("GET", "/api/me").catch(() => null);
    if (me && me.status === 200 && me.answer.csrf) {
      csrf = me.answer.csrf;
      return enter();
    }
  }
  showLogin();
}

async function login(token) {
  const result = await call("POST", "/api/login", { token }).catch(() => null);
  if (result && result.status === 200) {
    csrf = result.answer.csrf;
    enter();
    return true;
  }
  showLogin();
  at("login-error").textContent = !result ? line.unreachable : result.status === 429 ? line.locked : line.wrong;
  return false;
}

function showLogin() {
  if (events) events.close();
  events = null;
  csrf = null;
  at("chat").hidden = true;
  at("logout").hidden = true;
  at("login").hidden = false;
  at("state").textContent = "";
  at("token").focus();
}

at("login-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  at("login-error").textContent = "";
  at("login-button").disabled = true;
  await login(at("token").value);
  at("token").value = "";
  at("login-button").disabled = false;
});

at("logout").addEventListener("click", async () => {
  await call("POST", "/api/logout", {}).catch(() => null);
  showLogin();
});

// ---- chat ----

async function enter() {
  at("login").hidden = true;
  at("chat").hidden = false;
  at("logout").hidden = false;
  at("log").replaceChildren();
  answers.clear();
  hint();
  await past();
  listen();
  at("text").focus();
}

function hint() {
  const empty = element("p", "empty", line.empty);
  empty.id = "empty";
  at("log").append(empty);
}

/** What was said before. */
async function past() {
  const key = encodeURIComponent("agent:main:main");
  const result = await call("GET", `/api/sessions/${key}/messages?last=60`).catch(() => null);
  const rows = result && result.status === 200 && Array.isArray(result.answer.messages) ? result.answer.messages : [];
  for (const { message } of rows) {
    if (!message || typeof message.text !== "string") continue;
    if (message.role === "user") {
      // What the gateway told the model about the moment stands after the words.
      const words = message.text.split("<message_context>\n")[0].trim();
      if (words) mine(words);
    } else if (message.role === "assistant" && message.text.trim()) {
      const bubble = element("div", "message bot");
      const block = element("div", "block");
      fill(block, message.text);
      bubble.append(block);
      put(bubble);
    }
  }
}

function listen() {
  at("state").textContent = line.connecting;
  if (events) events.close();
  events = new EventSource(`/sse?session=${SESSION}`);
  events.onopen = () => { at("state").textContent = line.connected; };
  events.onmessage = (message) => {
    let row;
    try { row = JSON.parse(message.data); } catch { return; }
    const stay = atEnd();
    show(row);
    if (stay) toEnd();
  };
  events.onerror = async () => {
    at("state").textContent = line.connecting;
    const closed = events && events.readyState === EventSource.CLOSED;
    const me = await call("GET", "/api/me").catch(() => null);
    if (me && me.status === 401) showLogin();
    else if (closed) setTimeout(listen, 2000);
  };
}

function show(row) {
  const kind = row.type;
  if (kind === "task_complete" && (row.mergedInto || row.merged_into)) {
    const known = answers.get(row.taskId);
    if (known) known.bubble.remove();
    answers.delete(row.taskId);
    return idle();
  }
  const answer = answerOf(row.taskId);
  switch (kind) {
    case "turn_started":
      break;
    case "text_delta":
      answer.text = row.replace ? String(row.text) : answer.text + String(row.text);
      fill(blockOf(answer), answer.text);
      break;
    case "text_reset":
      answer.text = "";
      if (answer.block) answer.block.remove();
      answer.block = null;
      break;
    case "tool_start":
      answer.block = null;
      answer.text = "";
      step(answer, row);
      break;
    case "tool_end":
      stepEnded(answer, row);
      break;
    case "task_complete": {
      answer.bubble.classList.remove("waiting");
      const result = typeof row.result === "string" ? row.result : "";
      if (row.silent && !result) {
        answer.bubble.append(element("p", "note", row.silent === "stopped" ? line.stopped : line.silent));
      } else if (result) {
        fill(blockOf(answer), result);
      }
      answer.done = true;
      break;
    }
    case "task_failed":
      answer.bubble.classList.remove("waiting");
      answer.bubble.append(element("p", "error", `${line.failed}: ${row.error || row.result || ""}`));
      answer.done = true;
      break;
  }
  idle();
}

function answerOf(task) {
  let answer = answers.get(task);
  if (!answer) {
    answer = { bubble: element("div", "message bot waiting"), block: null, text: "", steps: new Map(), done: false };
    answers.set(task, answer);
    put(answer.bubble);
  }
  return answer;
}

function blockOf(answer) {
  if (!answer.block) {
    answer.block = element("div", "block");
    answer.bubble.append(answer.block);
  }
  return answer.block;
}

function step(answer, row) {
  const box = element("details", "step running");
  box.append(element("summary", "", String(row.tool || row.name || "tool")));
  const args = row.args ?? row.arguments;
  if (args !== undefined) box.append(element("pre", "", typeof args === "string" ? args : JSON.stringify(args, null, 1)));
  answer.steps.set(String(row.callId ?? row.call_id ?? row.tool), box);
  answer.bubble.append(box);
}

function stepEnded(answer, row) {
  const box = answer.steps.get(String(row.callId ?? row.call_id ?? row.tool));
  if (!box) return;
  box.classList.remove("running");
  if (row.ok === false || row.error || row.state === "failed" || row.state === "interrupted") box.classList.add("failed");
  if (typeof row.ms === "number") box.firstChild.append(` · ${row.ms} ms`);
  const result = row.result ?? row.error;
  if (result !== undefined && result !== null) {
    box.append(element("pre", "", typeof result === "string" ? result : JSON.stringify(result, null, 1)));
  }
}

function mine(text) {
  put(element("div", "message me", text));
}

function put(node) {
  const empty = at("empty");
  if (empty) empty.remove();
  at("log").append(node);
  toEnd();
}

function idle() {
  at("stop").hidden = ![...answers.values()].some((answer) => !answer.done);
}

at("say").addEventListener("submit", async (event) => {
  event.preventDefault();
  const message = at("text").value;
  if (!message.trim()) return;
  at("text").value = "";
  grow();
  await say(message);
});

at("stop").addEventListener("click", () => say("/stop"));

async function say(message) {
  mine(message);
  const bubble = at("log").lastChild;
  // The same key on every try: the gateway takes the message once.
  const key = crypto.getRandomValues(new Uint32Array(4)).join("-");
  for (let tries = 0; tries < 4; tries += 1) {
    const headers = { "Content-Type": "application/json", "X-CSRF-Token": csrf || "", "Idempotency-Key": key };
    const body = JSON.stringify({ message, session: SESSION });
    const response = await fetch("/api/chat", { method: "POST", headers, body }).catch(() => null);
    if (response && response.status === 401) return showLogin();
    if (response && response.ok) {
      const answer = await response.json();
      const stay = atEnd();
      if (!answers.has(answer.taskId)) answerOf(answer.taskId);
      if (stay) toEnd();
      return idle();
    }
    if (response && ![429, 503].includes(response.status)) {
      const answer = await response.json().catch(() => ({}));
      return notSent(bubble, answer.error ? answer.error.message : String(response.status));
    }
    await new Promise((resolve) => setTimeout(resolve, 1500 * (tries + 1)));
  }
  notSent(bubble, line.unreachable);
}

function notSent(bubble, why) {
  bubble.append(element("p", "error", `${line.notSent}: ${why}`));
}

at("text").addEventListener("keydown", (event) => {
  // Enter that ends a Chinese word is not Enter that sends.
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing && event.keyCode !== 229) {
    event.preventDefault();
    at("say").requestSubmit();
  }
});
at("text").addEventListener("input", grow);

function grow() {
  const text = at("text");
  text.rows = Math.min(10, text.value.split("\n").length);
}

function atEnd() {
  const log = at("log");
  return log.scrollHeight - log.scrollTop - log.clientHeight < 80;
}

function toEnd() {
  at("log").scrollTop = at("log").scrollHeight;
}

// ---- text ----

function element(name, classes, text) {
  const node = document.createElement(name);
  if (classes) node.className = classes;
  if (text !== undefined) node.textContent = text;
  return node;
}

/** Puts a text into a block: fenced code as code, the rest as paragraphs with inline code and bold. */
function fill(block, text) {
  const nodes = [];
  let code = null;
  let words = [];
  const flush = () => {
    for (const paragraph of words.join("\n").split(/\n{2,}/)) {
      if (paragraph.trim()) nodes.push(inline(element("p"), paragraph));
    }
    words = [];
  };
  for (const row of text.split("\n")) {
    const fence = /^\s*```/.test(row);
    if (fence && code === null) { flush(); code = []; }
    else if (fence) { nodes.push(codeBlock(code)); code = null; }
    else if (code !== null) code.push(row);
    else words.push(row);
  }
  if (code !== null) nodes.push(codeBlock(code));
  flush();
  block.replaceChildren(...nodes);
}

function codeBlock(rows) {
  const pre = element("pre");
  pre.append(element("code", "", rows.join("\n")));
  return pre;
}

function inline(node, text) {
  for (const piece of text.split(/(`[^`\n]+`|\*\*[^*\n]+\*\*)/)) {
    if (piece.length > 2 && piece.startsWith("`")) node.append(element("code", "", piece.slice(1, -1)));
    else if (piece.length > 4 && piece.startsWith("**")) node.append(element("strong", "", piece.slice(2, -2)));
    else if (piece) node.append(piece);
  }
  return node;
}

begin();
