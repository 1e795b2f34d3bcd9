// Keeps the part #live of a page fresh: on an event of the run, when another script finds it stale, and every few
// seconds it fetches that part anew and swaps it, until the part says that it is over. Focus, open details and scroll
// positions stay. News are announced politely. While the server sends no newer part, a notice at the top says since
// when. Without this script the page shows what was true when it was loaded.

const SOONEST = 700; // ms between two fetches: a run may have thousands of events a second
const REST = 4; // times as long as the last answer took: a page of a long run costs the server more
const LATE = 8000; // ms after which the notice tells that there is no answer yet
const LONGEST = 30000; // ms to wait for an answer
const RETRY = 10000; // ms at most between a failure and the next try

const live = document.getElementById("live");
const news = document.getElementById("news");
const stale = document.createElement("p");
stale.id = "stale";
stale.className = "problem";
stale.setAttribute("role", "alert");
stale.hidden = true;

let newest = new Date(); // when the part that is shown came
let fetching = false; // or resting after an answer
let again = false;
let failed = false; // the last answer did not come, or was refused
let resting = 0; // timer; 0 while it does not rest

async function refresh() {
  if (fetching) {
    again = true;
    return;
  }
  fetching = true;
  const began = performance.now();
  const late = setTimeout(() => warn("has not answered"), LATE);
  failed = !(await renew());
  clearTimeout(late);
  const rest = Math.max(SOONEST, REST * (performance.now() - began));
  resting = setTimeout(rested, failed ? Math.min(rest, RETRY) : rest);
}

async function renew() {
  try {
    const answer = await fetch(live.dataset.fragment, { headers: { "X-Fragment": "1" }, signal: AbortSignal.timeout(LONGEST) });
    if (answer.ok) swap(await answer.text());
    else warn(`has refused this page (HTTP ${answer.status})`);
    return answer.ok;
  } catch {
    warn("has not answered");
    return false;
  }
}

function rested() {
  fetching = false;
  resting = 0;
  if (!again) return;
  again = false;
  refresh();
}

// The server's events come again: after a failure there is no reason to rest any longer.
function reopened() {
  if (!failed) return;
  again = true;
  if (!resting) return; // the answer that it waits for comes now
  clearTimeout(resting);
  rested();
}

function warn(what) {
  const text = `The server ${what} since ${newest.toLocaleTimeString("en-GB")}. This page shows what was true then.`;
  if (stale.textContent !== text) stale.textContent = text;
  stale.hidden = false;
}

function swap(html) {
  newest = new Date();
  stale.hidden = true;
  const focused = document.activeElement?.id;
  const open = [...live.querySelectorAll("details[open][id]")].map((one) => one.id);
  const scrolled = boxes().map((box) => box.scrollLeft);
  live.replaceChildren(...new DOMParser().parseFromString(html, "text/html").body.childNodes);
  for (const id of open) document.getElementById(id)?.setAttribute("open", "");
  boxes().forEach((box, place) => (box.scrollLeft = scrolled[place] ?? 0));
  if (focused && document.activeElement?.id !== focused) document.getElementById(focused)?.focus({ preventScroll: true });
  live.dispatchEvent(new CustomEvent("swapped"));
}

function boxes() {
  return [...live.querySelectorAll(".box, .chart")];
}

function say(text) {
  if (news && news.textContent !== text) news.textContent = text;
}

const SENTENCES = {
  "round-opened": (event) => `Round ${event.round} is open.`,
  "cohort-opened": () => null, // too many to be told
  "cohort-released": () => null,
  "cohort-aborted": (event) => `Cohort ${event.cohort} was aborted: ${event.detail ?? "no reason was given"}`,
  "arm-eliminated": (event) => `Arm ${event.arm} was dropped after round ${event.round}.`,
  finished: (event) => (event.arm === undefined ? "The run is finished." : `The run is finished. Arm ${event.arm} is chosen.`),
  cancelled: () => "The run was cancelled.",
  failed: (event) => `The run failed: ${event.detail ?? ""}`,
};

const LAST = new Set(["finished", "cancelled", "failed"]);

function listen(address) {
  const source = new EventSource(address);
  source.addEventListener("open", reopened);
  for (const [kind, sentence] of Object.entries(SENTENCES)) {
    source.addEventListener(kind, (message) => {
      const words = sentence(JSON.parse(message.data));
      if (words) say(words);
      refresh();
      if (LAST.has(kind)) {
        source.close();
        setTimeout(refresh, 3000); // a driver may post the regret a moment later
      }
    });
  }
}

if (live) {
  live.before(stale);
  if (live.dataset.events) listen(live.dataset.events);
  live.addEventListener("stale", refresh);
  if (live.dataset.every) {
    const timer = setInterval(() => {
      if (live.querySelector("[data-over]")) clearInterval(timer);
      else if (document.visibilityState === "visible") refresh();
    }, 1000 * Number(live.dataset.every));
  }
}
