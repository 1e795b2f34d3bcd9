// Posts the form to the API with the operator's token, and puts each refusal beside the field that it names. The token
// is kept in this tab's sessionStorage, and is sent to this server only.

const KEPT = "distrust-operator-token";
const form = document.getElementById("start");
const problem = document.getElementById("problem");
const token = document.getElementById("f-token");
const policy = document.getElementById("f-policy-name");
const mechanism = document.getElementById("f-mechanism-name");
const about = document.getElementById("mechanism-about");

token.value = sessionStorage.getItem(KEPT) ?? "";

function showPolicy() {
  for (const box of form.querySelectorAll(".policy")) box.hidden = box.dataset.policy !== policy.value;
}

function showMechanism() {
  const chosen = mechanism.selectedOptions[0].dataset;
  about.textContent = chosen.about;
  field("mechanism.delta").closest(".field").hidden = chosen.delta === "no";
  field("mechanism.epsilon").closest(".field").hidden = mechanism.value === "identity";
}

function shown() {
  return [...form.querySelectorAll("[data-kind]")].filter((one) => !one.closest("[hidden]"));
}

function field(name) {
  const named = [...form.elements].filter((one) => one.name === name);
  return named.find((one) => !one.closest("[hidden]")) ?? named[0];
}

// Values travel as they were typed where they are no numbers: the server's own check says what is allowed.
function typed(input) {
  const text = input.value.trim();
  if (input.dataset.kind === "check") return text === "true";
  if (["number", "whole", "whole-choice"].includes(input.dataset.kind)) return text !== "" && isFinite(text) ? Number(text) : text;
  if (input.dataset.kind !== "json") return text;
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

function configuration() {
  const whole = {};
  for (const input of shown()) {
    if (input.value.trim() === "") continue;
    const path = input.name.split(".");
    const key = path.pop();
    const table = path.reduce((inner, step) => (inner[step] ??= {}), whole);
    table[key] = typed(input);
  }
  return whole;
}

function clear() {
  problem.hidden = true;
  for (const input of form.querySelectorAll("[aria-invalid]")) input.removeAttribute("aria-invalid");
  for (const place of form.querySelectorAll(".error")) place.textContent = "";
}

// A line of a refusal begins with its field: "mechanism.epsilon = -1: must be at least 1e-06", "arms: is required".
function explain(line) {
  const name = line.split(/ = |: /, 1)[0];
  const words = line.slice(name.length).replace(/^( = |: )/, (start) => (start === ": " ? "" : "= "));
  const input = place(name);
  if (!input) return null;
  input.setAttribute("aria-invalid", "true");
  document.getElementById(`${input.id}-error`).textContent = input.name === name ? words : line;
  return input;
}

function place(name) {
  const parts = name.split(".");
  while (parts.length) {
    const found = shown().find((one) => one.name === parts.join("."));
    if (found) return found;
    parts.pop();
  }
  return null;
}

function refuse(answer) {
  let first = null;
  const rest = [];
  for (const line of answer.detail.split("\n")) {
    const input = answer.title === "unauthorized" ? token : answer.title === "conflict" ? field("run") : explain(line);
    if (input === token || answer.title === "conflict") {
      input.setAttribute("aria-invalid", "true");
      document.getElementById(`${input.id}-error`).textContent = line;
    }
    if (!input) rest.push(line);
    first ??= input;
  }
  problem.textContent = rest.length ? rest.join("\n") : "The server refuses this run: look at the marked fields.";
  problem.hidden = false;
  (first ?? problem).focus();
}

async function send(event) {
  event.preventDefault();
  clear();
  const button = document.getElementById("go");
  const busy = document.getElementById("busy");
  button.disabled = true;
  busy.textContent = "The server plans the first round…";
  try {
    const headers = { "Content-Type": "application/json" };
    if (token.value) headers.Authorization = `Bearer ${token.value}`;
    const sent = await fetch("/v1/runs", { method: "POST", headers, body: JSON.stringify(configuration()) });
    const answer = await sent.json();
    if (sent.status === 401) sessionStorage.removeItem(KEPT);
    if (!sent.ok) return refuse(answer);
    if (token.value) sessionStorage.setItem(KEPT, token.value);
    location.assign(`/runs/${encodeURIComponent(answer.run)}`);
  } catch (error) {
    refuse({ title: "unavailable", detail: `The server does not answer: ${error.message}` });
  } finally {
    button.disabled = false;
    busy.textContent = "";
  }
}

policy.addEventListener("change", showPolicy);
mechanism.addEventListener("change", showMechanism);
form.addEventListener("submit", send);
showPolicy();
showMechanism();
