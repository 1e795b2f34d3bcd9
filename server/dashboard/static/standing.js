// What only the intermediary knows of an open cohort: its stage, the clients that are still there, the deadline. The
// reader's browser asks the intermediary itself, with the reader's token. Texts are set as text: nothing is markup.

const SOONEST = 2000; // ms between two questions
const REST = 4; // times as long as the last answer took, so that a reader takes a fifth of the service's time at most
const RETRY = 10000; // ms after a question without an answer
const MOST = 40; // cohorts in one answer: as many as a run's page lists
const SECONDS = 2 * 86400; // until a deadline at most: the longest stage, after as long without a first message
const STAGES = ["keys", "shares", "confirm", "masked", "unmask", "report"]; // those that are open
const SENDABLE = /^[ -~]*$/; // characters that a header can hold
const FIRST_STAGES = ["keys", "report"];

const live = document.getElementById("live");
const form = document.getElementById("standing");
const { party, origin, run, cohortPage, guarded } = form.dataset;
const wanted = `run=${encodeURIComponent(run)}${cohortPage ? `&cohort=${encodeURIComponent(cohortPage)}&limit=1` : `&limit=${MOST}`}`;
const field = form.querySelector("input");
const told = form.querySelector(".told");
const kept = `distrust.operator.${origin}`;

let token = sessionStorage.getItem(kept) ?? (guarded ? null : ""); // null: the reader has given none
let standings = null; // cohort: its entry of the last answer
let since = 0; // when that answer came
let why = "needs its token"; // there is no answer
let timer = 0;

function rows() {
  return [...live.querySelectorAll("[data-cohort]")];
}

async function ask() {
  clearTimeout(timer);
  if (token === null || live.querySelector("[data-over]")) return;
  let pause = SOONEST;
  if (document.visibilityState === "visible" && rows().length) {
    const began = performance.now();
    pause = (await look()) ? Math.max(SOONEST, REST * (performance.now() - began)) : RETRY;
    fill();
  }
  clearTimeout(timer);
  timer = setTimeout(ask, pause);
}

async function look() {
  const before = standings;
  standings = null;
  if (!SENDABLE.test(token)) return refuse("This is no token: it has characters other than letters, digits and signs of ASCII.");
  try {
    const headers = token ? { Authorization: `Bearer ${token}` } : {};
    const answer = await fetch(`${origin}/v1/cohorts?open=true&${wanted}`, { headers, credentials: "omit", referrerPolicy: "no-referrer", cache: "no-store" });
    if (answer.status === 401) return refuse();
    if (!answer.ok) return fail("refused", `The ${party} refused: HTTP ${answer.status}.`);
    const { cohorts } = await answer.json();
    if (!Array.isArray(cohorts) || !cohorts.every(legible)) return fail("unreadable", `What the ${party} answered cannot be read.`);
    standings = new Map(cohorts.map((one) => [one.cohort, one]));
  } catch {
    return fail("no answer", `No answer from ${origin} that this page may read. Is the ${party} running, and does its DISTRUST_DASHBOARD_ORIGIN name ${location.origin}?`);
  }
  since = performance.now();
  why = "";
  say(`The ${party} tells how the open cohorts stand.`);
  if (token) sessionStorage.setItem(kept, token);
  // The server's part of the page follows: it hears of stages later, and of tickets no more often than it is asked.
  if (rows().some((row) => moved(before?.get(row.dataset.cohort), standings.get(row.dataset.cohort), row))) live.dispatchEvent(new Event("stale"));
  return true;
}

function moved(old, entry, row) {
  return old?.stage !== entry?.stage || entry?.answered > Number(row.dataset.joined);
}

// Another party's words: only what an intermediary can mean is shown. null is absent.
function legible(one) {
  if (typeof one?.cohort !== "string" || !STAGES.includes(one.stage) || !Number.isSafeInteger(one.clients)) return false;
  const counts = [one.answered ?? 0, one.alive ?? 0].every((count) => Number.isInteger(count) && count >= 0 && count <= one.clients);
  const left = one.seconds_left ?? 0;
  return counts && Number.isFinite(left) && left >= 0 && left <= SECONDS;
}

function refuse(text = `The ${party} refused this token. It wants the operator's token, and not the inspector's.`) {
  token = null;
  sessionStorage.removeItem(kept);
  return fail("token refused", text);
}

function fail(short, text) {
  why = short;
  say(text, true);
  return false;
}

function say(text, bad = false) {
  if (told.textContent !== text) told.textContent = text;
  told.classList.toggle("bad", bad);
}

function fill() {
  const shown = rows();
  form.hidden = !shown.length;
  for (const row of shown) {
    const entry = standings?.get(row.dataset.cohort);
    const absent = why || "not open there";
    if (entry) set(row, "stage", entry.stage);
    set(row, "alive", entry ? alive(entry, Number(row.dataset.joined)) : absent);
    set(row, "deadline", entry ? deadline(entry) : absent);
  }
}

// An intermediary knows no slot before its first message. So a first stage counts slots without a ticket as alive.
function alive(entry, joined) {
  if ((entry.alive ?? null) === null) return "–";
  if (!FIRST_STAGES.includes(entry.stage)) return entry.alive.toLocaleString("en");
  const left = entry.clients - entry.alive;
  return Math.max(0, Math.max(joined, entry.answered ?? 0) - left).toLocaleString("en"); // the server may know of fewer yet
}

function deadline(entry) {
  if ((entry.seconds_left ?? null) === null) return "–";
  const left = Math.ceil(entry.seconds_left - (performance.now() - since) / 1000);
  return left > 0 ? `in ${left.toLocaleString("en")} s` : "now";
}

function set(row, fact, text) {
  const cell = row.querySelector(`[data-fact=${fact}]`);
  if (cell && cell.textContent !== text) cell.textContent = text;
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  token = field.value.trim();
  ask();
});
live.addEventListener("swapped", fill);
setInterval(fill, 1000); // the deadlines run down
field.value = token ?? "";
fill();
ask();
