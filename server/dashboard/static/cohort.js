// The page of one cohort. It asks each party for its own transcript, with the reader's token for that party, and puts
// the messages beside the sentences that the server rendered. Texts are set as text: nothing is read as markup.

const PAGE = 1000; // messages in one request
const SMALL = 100; // clients; of a larger cohort the first messages of each stage are read, and the followed client's
const SHOWN = 3; // messages of other clients beside the followed one
const EACH = SHOWN + 2; // messages of each stage: the followed client may be among them, and one more tells of others
const PAUSE = 250; // milliseconds without a key until another client is followed
const MOST_DIGITS = 12; // of a hexadecimal text
const MOST_VALUES = 6; // of a list
const MOST_LETTERS = 400; // of any text of a party
const LONGEST_LINE = 4000; // letters
const SENDABLE = /^[ -~]*$/; // characters that a header can hold

let steps = [...document.querySelectorAll("#steps .step")]; // an aborted cohort ends with others
const via = [...document.querySelectorAll("form.token")].map((form) => form.dataset.party).find((party) => party !== "server");
const transcripts = new Map(); // party: its messages
const sampled = new Set(); // parties of which not every message is read
const clientField = document.getElementById("client");
let held = null; // what simulated clients held, by slot

// Transcripts

async function transcript(form, token) {
  if (!SENDABLE.test(token)) throw new Unsendable();
  const address = `${form.dataset.origin}${form.dataset.path}?limit=${PAGE}${choice(form)}`;
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  const answer = await fetch(address, { headers, credentials: "omit", referrerPolicy: "no-referrer", cache: "no-store" });
  if (!answer.ok) throw new Refused(answer.status, await detail(answer));
  const read = await answer.json();
  const whole = Array.isArray(read?.messages) && natural(read.total) && read.messages.length <= read.total;
  if (!whole || !read.messages.every(legible)) throw new Refused(answer.status, "it sent no transcript");
  return read;
}

// Of a large cohort a page of every message would leave most stages out.
function choice(form) {
  if (Number(clientField.max) < SMALL) return "";
  return form.dataset.party === "server" ? `&each=${EACH}` : `&each=${EACH}&client=${followed()}`;
}

// Another party's words: all that the columns use of a message is checked here, once.
function legible(one) {
  const texts = ["peer", "stage", "hex"].every((key) => typeof one?.[key] === "string");
  return texts && ["in", "out"].includes(one.direction) && natural(one.bytes) && one.view instanceof Object && !Array.isArray(one.view);
}

// When a party deleted its messages, in seconds since 1970: what it shows is the rest.
function gone(scrubbed) {
  const when = natural(Math.floor(scrubbed)) ? new Date(1000 * scrubbed) : null;
  return when && !Number.isNaN(when.getTime()) ? ` It scrubbed others on ${when.toISOString().slice(0, 19).replace("T", " at ")} UTC, as the run wishes.` : "";
}

function natural(value) {
  return Number.isSafeInteger(value) && value >= 0;
}

class Unsendable extends Error {}

class Refused extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

async function detail(answer) {
  const words = await answer.json().catch(() => null);
  return typeof words?.detail === "string" ? words.detail.slice(0, MOST_LETTERS) : `HTTP ${answer.status}`;
}

async function open(form, token) {
  const { party, origin } = form.dataset;
  const told = form.querySelector(".told");
  told.classList.remove("bad");
  told.textContent = "Reading …";
  try {
    const { messages, total, scrubbed } = await transcript(form, token);
    transcripts.set(party, messages);
    sessionStorage.setItem(`distrust.token.${origin}`, token);
    const own = party === "server" ? "" : ", and the followed client's";
    const rest = messages.length < total ? ` ${count(messages.length)} of them are read: the first of each stage${own}.` : "";
    if (messages.length < total) sampled.add(party);
    else sampled.delete(party);
    told.textContent = `The ${party} has ${count(total)} ${total === 1 ? "message" : "messages"} of this cohort.${rest}${gone(scrubbed)}`;
  } catch (error) {
    transcripts.delete(party);
    sessionStorage.removeItem(`distrust.token.${origin}`);
    told.classList.add("bad");
    told.textContent = reason(error, party, origin);
  }
  fill();
}

function reason(error, party, origin) {
  if (error instanceof Unsendable) return "This is no token: it has characters other than letters, digits and signs of ASCII.";
  if (error instanceof Refused && error.status === 401) {
    const kind = party === "server" ? "operator's" : "inspector's";
    const other = party === "server" ? "inspector's" : "operator's";
    return `The ${party} refused this token. It wants the ${kind} token, and not the ${other}.`;
  }
  if (error instanceof Refused && error.status < 300) return `What the ${party} answered cannot be read: ${error.message}.`;
  if (error instanceof Refused) return `The ${party} refused: ${error.message}`;
  return `No answer from ${origin || "the server"} that this page may read. Is the ${party} running, and does its DISTRUST_DASHBOARD_ORIGIN name ${location.origin}?`;
}

for (const form of document.querySelectorAll("form.token")) {
  const field = form.querySelector("input");
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    open(form, field.value.trim());
  });
  const known = sessionStorage.getItem(`distrust.token.${form.dataset.origin}`);
  if (known) {
    field.value = known;
    open(form, known);
  }
}

// An open cohort: live.js fetches the head of the page anew. With a new stage there are new messages.

const live = document.getElementById("live");
const news = document.getElementById("news");
let seen = { ...document.getElementById("cohort-now").dataset };

live.addEventListener("swapped", async () => {
  const { state, stage, over } = document.getElementById("cohort-now").dataset;
  if (state === seen.state && stage === seen.stage && over === seen.over) return;
  seen = { state, stage, over };
  news.textContent = over === undefined ? `This cohort is in stage ${stage}.` : state === "open" ? "The run is over." : `This cohort was ${state}.`;
  if (over !== undefined) await renew();
  for (const form of document.querySelectorAll("form.token")) {
    const token = sessionStorage.getItem(`distrust.token.${form.dataset.origin}`);
    if (transcripts.has(form.dataset.party)) await open(form, token ?? "");
  }
});

// The rest of the page depends on the outcome: the last steps, and what the flipped reward's cards tell of.
async function renew() {
  const answer = await fetch(location.pathname);
  if (!answer.ok) return;
  const whole = new DOMParser().parseFromString(await answer.text(), "text/html");
  for (const id of ["steps", "missed", "flip-about"]) {
    document.getElementById(id).replaceChildren(...whole.getElementById(id).childNodes);
  }
  steps = [...document.querySelectorAll("#steps .step")];
  go(current);
}

// What simulated clients held: a file that the reader opens. It is read here, and sent to no party.

const heldForm = document.querySelector("form.held");
heldForm?.querySelector("input").addEventListener("change", async (event) => {
  const told = heldForm.querySelector(".told");
  told.classList.remove("bad");
  held = null;
  try {
    const file = event.target.files[0];
    if (!file) return;
    const found = JSON.parse(await file.text())?.cohorts?.find((one) => one?.cohort === heldForm.dataset.cohort);
    if (!found) throw new Error(`the file has no cohort ${heldForm.dataset.cohort}`);
    if (found.config !== heldForm.dataset.digest) throw new Error("the file is of another run with this name");
    if (!found.clients?.every?.((one) => numbers(one?.reward) && numbers(one.message ?? []))) throw new Error("its rewards are no lists of numbers");
    held = new Map(found.clients.map((one) => [one.slot, one]));
    told.textContent = `The file tells what ${count(held.size)} simulated clients held.`;
    world();
  } catch (error) {
    told.classList.add("bad");
    told.textContent = `This file cannot be used: ${error.message}`;
  }
  fill();
});

function numbers(value) {
  return Array.isArray(value) && value.every(Number.isFinite);
}

// The columns

function fill() {
  const client = followed();
  for (const step of steps) {
    const { stage } = step.dataset;
    for (const place of step.querySelectorAll(".seen")) {
      const { party } = place.dataset;
      const lines = party === "client" ? ofClient(stage, client) : ofParty(party, stage, client);
      place.replaceChildren(...lines);
    }
  }
}

function ofClient(stage, client) {
  const lines = [];
  const closed = [];
  const known = held?.get(client);
  const early = ["masked", "report"].includes(stage);
  if (early && known) {
    lines.push(`Client ${client} held the reward ${known.reward.map(number).join(", ")}.`);
    if (known.message) lines.push(`Its number before it was masked or sealed: ${known.message.slice(0, MOST_VALUES).join(", ")}.`);
  }
  const sent = transcripts.get(via)?.filter((one) => one.stage === stage && one.direction === "in" && one.peer === `client ${client}`);
  for (const one of sent ?? []) lines.push(`Client ${client} sent ${count(one.bytes)} B: ${short(one.hex) || "nothing else"}`);
  if (early && !known) closed.push("Its reward is known to the client only.");
  return [...lines.map(line), ...closed.map(absent)];
}

function ofParty(party, stage, client) {
  const messages = transcripts.get(party);
  if (!messages) return [absent(`Closed: enter the ${party}'s token above.`)];
  const here = messages.filter((one) => one.stage === stage);
  const own = here.filter((one) => one.peer === `client ${client}`);
  const others = here.filter((one) => one.peer.startsWith("client ") && !own.includes(one));
  const rest = here.filter((one) => !one.peer.startsWith("client "));
  const lines = [...rest, ...own, ...others.slice(0, SHOWN)].map((one) => `${from(one)}${read(one)}`);
  const more = sampled.has(party) ? "" : `${count(others.length - SHOWN)} `;
  if (others.length > SHOWN) lines.push(`… and ${more}more messages of clients`);
  if (lines.length) return lines.map(line);
  // The server opens a cohort with a message, which no intermediary's transcript lists.
  return [absent(stage === "cohort" ? "Its transcript does not keep this message." : "It has no message of this stage.")];
}

function from(entry) {
  if (entry.direction === "out") return `To ${entry.peer}, ${count(entry.bytes)} B: `;
  return `${entry.peer[0].toUpperCase()}${entry.peer.slice(1)}, ${count(entry.bytes)} B: `;
}

function read(entry) {
  const facts = Object.entries(entry.view).map(([name, value]) => `${name.replaceAll("_", " ")} ${shown(value)}`);
  return facts.join(", ") || "nothing that it can read";
}

function shown(value) {
  if (!Array.isArray(value)) return plain(value);
  if (value.length === 1) return plain(value[0]);
  const rest = value.length > MOST_VALUES ? `, … ${count(value.length - MOST_VALUES)} more` : "";
  return `[${value.slice(0, MOST_VALUES).map(plain).join(", ")}${rest}]`;
}

// What is inside a value is shown as it was sent: in JSON.
function plain(value) {
  return short(value instanceof Object ? JSON.stringify(value) : String(value));
}

function short(text) {
  const most = /^[0-9a-f]+$/i.test(text) ? MOST_DIGITS : MOST_LETTERS;
  return text.length > most ? `${text.slice(0, most)}…` : text;
}

function line(text) {
  const made = document.createElement("p");
  made.textContent = text.length > LONGEST_LINE ? `${text.slice(0, LONGEST_LINE)}…` : text;
  return made;
}

function absent(text) {
  const made = line(text);
  made.className = "none";
  return made;
}

function count(value) {
  return value.toLocaleString("en");
}

function number(value) {
  return String(Math.round(value * 1e6) / 1e6);
}

// Replay: step by step, by buttons and arrow keys

const replay = document.getElementById("replay");
const position = document.getElementById("position");
let current = -1; // -1: all steps are shown

function go(to) {
  current = Math.max(-1, Math.min(steps.length - 1, to));
  steps.forEach((step, place) => {
    step.classList.toggle("current", place === current);
    step.classList.toggle("later", current >= 0 && place > current);
    if (place === current) step.setAttribute("aria-current", "step");
    else step.removeAttribute("aria-current");
  });
  document.getElementById("previous").disabled = current <= 0;
  document.getElementById("next").disabled = current === steps.length - 1;
  if (current < 0) {
    position.textContent = `All ${steps.length} steps are shown. The arrow keys ← and → go through them one by one.`;
    return;
  }
  position.textContent = `Step ${current + 1} of ${steps.length}: ${steps[current].dataset.title}`;
  const above = document.getElementById("controls").offsetHeight; // it stays at the top of the window
  steps[current].style.scrollMarginTop = `${above + 8}px`;
  const tall = steps[current].offsetHeight > innerHeight - above;
  steps[current].scrollIntoView({ block: tall ? "start" : "nearest" });
}

function followed() {
  const wanted = Number(clientField.value);
  return Number.isInteger(wanted) && wanted >= 0 ? wanted : 0;
}

document.getElementById("previous").addEventListener("click", () => go(current - 1));
document.getElementById("next").addEventListener("click", () => go(current + 1));
document.getElementById("everything").addEventListener("click", () => go(-1));
let pause = 0;
clientField.addEventListener("input", () => {
  fill();
  world();
  clearTimeout(pause);
  pause = setTimeout(follow, PAUSE);
});

// The messages of a client of a large cohort are read when it is followed.
async function follow() {
  const form = document.querySelector(`form.token[data-party="${via}"]`);
  const token = sessionStorage.getItem(`distrust.token.${form.dataset.origin}`);
  if (sampled.has(via)) await open(form, token ?? "");
}
document.addEventListener("keydown", (event) => {
  const typing = event.target.closest?.("input, select, textarea, .chart, .box");
  if (typing || event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
  if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
  event.preventDefault();
  go(event.key === "ArrowRight" ? current + 1 : Math.max(0, current - 1));
});

// The flipped reward

const worlds = document.getElementById("worlds");
const radios = [...document.querySelectorAll("#world input")];

function choose(kind) {
  for (const radio of radios) radio.checked = radio.value === kind;
  worlds.dataset.world = kind;
  const cards = [...worlds.querySelectorAll(".flip")];
  const same = cards.filter((card) => card.dataset.change === "nothing").map((card) => card.dataset.name);
  const moved = cards.filter((card) => card.dataset.change !== "nothing").map((card) => card.dataset.name);
  const high = kind === "second" ? "highest" : "lowest";
  const still = same.length ? ` Nothing changes for ${list(same)}.` : "";
  document.getElementById("flip-told").textContent = `The reward is the ${high}. What changes is on the cards of ${list(moved)}.${still}`;
}

function list(names) {
  return names.length > 1 ? `${names.slice(0, -1).join(", ")} and ${names.at(-1)}` : names.join("");
}

// The followed client's own reward, where the reader's file tells it, is the world that the page starts from.
function world() {
  const reward = held?.get(followed())?.reward;
  if (worlds && reward?.length === 1) choose(reward[0] > 0.5 ? "second" : "first");
}

if (worlds) {
  document.getElementById("world").hidden = false;
  worlds.dataset.world = "first";
  for (const radio of radios) radio.addEventListener("change", () => choose(radio.value));
  document.getElementById("flip-button").addEventListener("click", () => choose(worlds.dataset.world === "first" ? "second" : "first"));
}
document.getElementById("access").hidden = false;
document.getElementById("controls").hidden = false;
document.getElementById("previous").disabled = true;
fill();
