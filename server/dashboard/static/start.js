// Posts the form to the API with the operator's token, and puts each refusal beside the field that it names. The token
// is kept in this tab's sessionStorage, and is sent to this server only.

const SENDABLE = /^[ -~]*$/; // characters that a header can hold
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
  for (const name of ["mechanism.delta", "mechanism.epsilon"]) field(name).closest(".field").hidden = unused(name, mechanism.selectedOptions[0]);
}

function unused(name, option) {
  return name === "mechanism.delta" ? option.dataset.delta === "no" : name === "mechanism.epsilon" && option.value === "identity";
}

// The inputs that belong to a policy and a mechanism: those that are shown once both are chosen.
function inputsOf(policyName, mechanismOption) {
  const own = (input) => (input.closest(".policy")?.dataset.policy ?? policyName) === policyName;
  return [...form.querySelectorAll("[data-kind]")].filter((one) => own(one) && !unused(one.name, mechanismOption));
}

function shown() {
  return inputsOf(policy.value, mechanism.selectedOptions[0]);
}

function field(name) {
  const named = [...form.elements].filter((one) => one.name === name);
  return named.find((one) => !one.closest("[hidden]")) ?? named[0];
}

// A seed may have more digits than the browser's numbers hold. Such a whole number is kept as a marked text, so that
// it is sent to its last digit.

const MARK = "\u0000";
const LONG = /^-?\d{16,}$/;

function read(text) {
  const tokens = /"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g;
  return JSON.parse(text.replace(tokens, (token) => (LONG.test(token) ? JSON.stringify(MARK + token) : token)));
}

function write(value) {
  return JSON.stringify(value).replace(/"\\u0000(-?\d+)"/g, "$1");
}

// Values travel as they were typed where they are no numbers: the server's own check says what is allowed.
function typed(input) {
  const text = input.value.trim();
  if (input.dataset.kind === "check") return text === "true";
  if (input.dataset.kind === "whole" && LONG.test(text)) return MARK + text;
  if (["number", "whole", "whole-choice"].includes(input.dataset.kind)) return text !== "" && isFinite(text) ? Number(text) : text;
  if (input.dataset.kind !== "json") return text;
  try {
    return read(text);
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
  return mark(input, input.name === name ? words : line);
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

function mark(input, words) {
  input.setAttribute("aria-invalid", "true");
  document.getElementById(`${input.id}-error`).textContent = words;
  return input;
}

function refuse(answer) {
  const named = { unauthorized: token, conflict: field("run") }[answer.title];
  const lines = answer.detail.split("\n");
  const marked = lines.map((line) => (named ? mark(named, line) : explain(line)));
  told(marked, lines.filter((_, place) => !marked[place]));
}

// marked: inputs with their errors beside them, null for a line that names none. rest: those lines.
function told(marked, rest = []) {
  problem.textContent = rest.length ? rest.join("\n") : "This run was not started: look at the marked fields.";
  problem.hidden = false;
  (marked.find((one) => one) ?? problem).focus();
}

// What the reader must still fill in, all of it at once: the server looks at the token first, and at no field without it.
function missing() {
  const needs = mechanism.selectedOptions[0].dataset.needs.split(" ");
  const empty = (one) => one.value.trim() === "" && (one.ariaRequired === "true" || needs.includes(one.name));
  return shown().filter(empty);
}

function tokenFault(secret) {
  if (!SENDABLE.test(secret)) return "This is no token: it has characters other than letters, digits and signs of ASCII.";
  return secret || !token.dataset.guarded ? "" : "is required: the server starts a run for its operator only.";
}

async function send(event) {
  event.preventDefault();
  clear();
  const secret = token.value.trim();
  const marked = missing().map((one) => mark(one, "is required"));
  const fault = tokenFault(secret);
  if (fault) marked.push(mark(token, fault));
  if (marked.length) return told(marked);
  const button = document.getElementById("go");
  const busy = document.getElementById("busy");
  button.disabled = true;
  busy.textContent = "The server plans the first round…";
  try {
    const headers = { "Content-Type": "application/json" };
    if (secret) headers.Authorization = `Bearer ${secret}`;
    const sent = await fetch("/v1/runs", { method: "POST", headers, body: write(configuration()) });
    const answer = await sent.json();
    if (sent.status === 401) sessionStorage.removeItem(KEPT);
    if (sent.status === 401 && secret) answer.detail = "The server refused this token. It wants the operator's token, and not the inspector's.";
    if (!sent.ok) return refuse(answer);
    if (secret) sessionStorage.setItem(KEPT, secret);
    location.assign(`/runs/${encodeURIComponent(answer.run)}`);
  } catch (error) {
    refuse({ title: "unavailable", detail: `The server does not answer: ${error.message}` });
  } finally {
    button.disabled = false;
    busy.textContent = "";
  }
}

// A configuration that the reader loads. It is read here, and fills the fields: no part of the file is sent as it is.
// All of it is checked first. So a file fills the form with all that it says, or changes nothing.

const CLIENTS = ["environment", "fleet"]; // tables that the server must not see
const LONGEST = 60; // letters of a refused value
const MOST_BYTES = 262144; // of a file: the server's part of a run file has a few thousand
const MOST_NAMED = 10; // keys that the form does not have
const loadFile = document.getElementById("load-file");

function fill(config) {
  const wanted = named(config);
  const [policyOption, mechanismOption] = [policy, mechanism].map((select) => {
    if (!wanted.has(select.name)) throw new Error(`${select.name}: is required.`);
    const found = [...select.options].find((one) => one.value === wanted.get(select.name));
    if (!found) throw new Error(`${select.name} = ${quoted(wanted.get(select.name))} is not in this form.`);
    return found;
  });
  const inputs = inputsOf(policyOption.value, mechanismOption);
  const strange = [...wanted.keys()].filter((name) => !inputs.some((one) => one.name === name));
  const rest = strange.length > MOST_NAMED ? ` and ${(strange.length - MOST_NAMED).toLocaleString("en")} more` : "";
  if (strange.length) throw new Error(`the form has no field ${strange.slice(0, MOST_NAMED).map(cut).join(", ")}${rest}.`);
  const faults = inputs.filter((one) => wanted.has(one.name)).flatMap((one) => fault(one, wanted.get(one.name)));
  if (faults.length) throw new Error(faults.join("; "));
  policy.value = policyOption.value;
  mechanism.value = mechanismOption.value;
  showPolicy();
  showMechanism();
  for (const input of inputs) {
    input.value = written(wanted.get(input.name), input.dataset.kind);
    if (input.selectedIndex === -1) input.value = [...input.options].find((one) => one.defaultSelected).value; // no "(left out)"
  }
}

// Return name: value of what a file says, named as the inputs are.
function named(config) {
  if (!table(config)) throw new Error("it holds no table of keys.");
  if (config.unsafe) throw new Error("its table unsafe makes a run without privacy, which this form does not start. `distrust run` does.");
  const wanted = new Map();
  const put = (name, key, value) => {
    if (key.includes(".")) throw new Error(`the form has no field ${quoted(key)}.`);
    if (key === "version" && value !== 1) throw new Error(`${name} = ${quoted(value)}: must be 1.`);
    if (key !== "version" && value !== null) wanted.set(name, value);
  };
  for (const [key, value] of Object.entries(config)) {
    if (CLIENTS.includes(key)) continue;
    if (!table(value)) put(key, key, value);
    else if (!Object.keys(value).length) throw new Error(`${key} = {}: holds no key.`);
    else for (const [inner, one] of Object.entries(value)) put(`${key}.${inner}`, inner, one);
  }
  return wanted;
}

// Return why an input cannot hold a value, in no line or one. The text of an input has no type, so that "340" must not
// become 340.
function fault(input, value) {
  const options = [...(input.options ?? [])].map((one) => one.value).filter((one) => one !== "");
  const long = typeof value === "string" && value.startsWith(MARK);
  const text = typeof value === "string" && !long;
  const [fits, must] = {
    choice: () => [options.includes(value), `be one of ${options.join(", ")}`],
    "whole-choice": () => [typeof value === "number" && options.includes(String(value)), `be one of ${options.join(", ")}`],
    check: () => [typeof value === "boolean", "be true or false"],
    whole: () => [Number.isInteger(value) || long, "be a whole number"],
    number: () => [Number.isFinite(value) || long, "be a number"],
    json: () => [true],
    text: () => [text && allowed(input, value), `match ${input.dataset.pattern}`],
  }[input.dataset.kind]();
  return fits ? [] : [`${input.name} = ${quoted(value)}: must ${must}`];
}

function allowed(input, text) {
  return new RegExp(input.dataset.pattern).test(text);
}

function quoted(value) {
  return cut(typeof value === "number" ? String(value) : write(value));
}

function cut(text) {
  return text.length > LONGEST ? `${text.slice(0, LONGEST)}…` : text;
}

// The command is for a reader to copy: it never holds a name that a shell could read as more than a name.
function showCommand() {
  const run = field("run");
  const name = run.value.trim();
  const fits = allowed(run, name);
  document.getElementById("load-run").textContent = fits ? name : "";
  document.getElementById("load-command").hidden = !fits;
  document.getElementById("load-unnamed").hidden = fits;
}

function table(value) {
  return value instanceof Object && !Array.isArray(value);
}

function written(value, kind) {
  if (value === undefined) return "";
  return kind === "json" || typeof value === "object" ? write(value) : String(value).replace(MARK, "");
}

async function load() {
  const told = document.getElementById("load-file-error");
  const next = document.getElementById("load-next");
  told.textContent = "";
  next.hidden = true;
  clear();
  const file = loadFile.files[0];
  if (!file) return;
  loadFile.value = ""; // or the browser would report no change when the reader chooses the edited file again
  try {
    if (file.size > MOST_BYTES) throw new Error(`it has ${file.size.toLocaleString("en")} bytes, and the server's part of a run file has at most ${MOST_BYTES.toLocaleString("en")}.`);
    const text = await file.text();
    fill(parsed(text, file.name));
    document.getElementById("load-name").textContent = file.name;
    showCommand();
    next.hidden = false;
  } catch (error) {
    told.textContent = `This file was not loaded: ${error.message}`;
  }
}

function parsed(text, name) {
  try {
    return read(text);
  } catch {
    throw new Error(`it is not JSON.${name.endsWith(".toml") ? " Of a run file, `distrust config` writes the server's part as JSON." : ""}`);
  }
}

loadFile.addEventListener("change", load);
field("run").addEventListener("input", showCommand);
document.getElementById("load").hidden = false;
policy.addEventListener("change", showPolicy);
mechanism.addEventListener("change", showMechanism);
form.addEventListener("submit", send);
showPolicy();
showMechanism();
