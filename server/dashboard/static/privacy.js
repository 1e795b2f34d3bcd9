// The calculator's page: sliders beside the fields, and a fresh answer when one of them changes. One question is in
// flight at a time. Without this script the form is sent as it stands.

const PAUSE = 300; // ms without a change before a question is sent
const SLIDER = 1000; // places of a slider
const LONGEST = 60000; // ms to wait for an answer: a few questions may be computed before this one
const SENDABLE = /^[ -~]*$/; // characters that a header can hold

const form = document.getElementById("question");
const answer = document.getElementById("answer");
const told = document.getElementById("told");
const mechanism = document.getElementById("mechanism");
const token = document.getElementById("token");

let timer = 0;
let asking = false;
let again = false;

function place(slider, value) {
  const [least, largest] = ends(slider);
  const part = slider.dataset.log ? Math.log(value / least) / Math.log(largest / least) : (value - least) / (largest - least);
  return Math.round(SLIDER * Math.max(0, Math.min(1, part)));
}

function value(slider) {
  const [least, largest] = ends(slider);
  const part = Number(slider.value) / SLIDER;
  const exact = slider.dataset.log ? least * (largest / least) ** part : least + part * (largest - least);
  if (slider.dataset.for === "n") return String(Math.round(Number(exact.toPrecision(2))));
  return slider.dataset.log ? Number(exact.toPrecision(2)).toString() : exact.toFixed(2);
}

function ends(slider) {
  return [Number(slider.dataset.least), Number(slider.dataset.largest)];
}

for (const slider of form.querySelectorAll("input[type=range]")) {
  const field = document.getElementById(slider.dataset.for);
  const follow = () => {
    const typed = Number(field.value);
    if (Number.isFinite(typed) && (typed > 0 || !slider.dataset.log)) slider.value = place(slider, typed);
    slider.setAttribute("aria-valuetext", field.value);
  };
  slider.hidden = false;
  follow();
  slider.addEventListener("input", () => {
    field.value = value(slider);
    slider.setAttribute("aria-valuetext", field.value);
    later();
  });
  field.addEventListener("input", () => {
    follow();
    later();
  });
}

// Fields that the mechanism has no use for are out of the way.
function suit() {
  const chosen = mechanism.selectedOptions[0].dataset;
  const useful = { delta: chosen.delta, batches: chosen.batches, epsilon: chosen.epsilon };
  for (const [field, use] of Object.entries(useful)) form.querySelector(`[data-field=${field}]`).hidden = !use;
}

function later() {
  clearTimeout(timer);
  timer = setTimeout(ask, PAUSE);
}

async function ask() {
  if (asking) {
    again = true;
    return;
  }
  asking = true;
  answer.setAttribute("aria-busy", "true");
  const words = new URLSearchParams(new FormData(form));
  history.replaceState(null, "", `/privacy?${words}`);
  const secret = token?.value.trim() ?? "";
  if (SENDABLE.test(secret)) await send(words, secret);
  else lose("This is no token: it has characters other than letters, digits and signs of ASCII.");
  answer.removeAttribute("aria-busy");
  asking = false;
  if (again) {
    again = false;
    ask();
  }
}

async function send(words, secret) {
  const headers = { "X-Fragment": "1" };
  if (secret) {
    headers.Authorization = `Bearer ${secret}`;
    sessionStorage.setItem("distrust.token.", secret);
  }
  try {
    const got = await fetch(`/privacy?${words}`, { headers, signal: AbortSignal.timeout(LONGEST) });
    if (got.ok) swap(await got.text());
    else lose(`The server refused this question (HTTP ${got.status}).`);
  } catch {
    lose("The server does not answer this question.");
  }
}

// Figures of an earlier question would be taken for those of the fields: they go.
function lose(why) {
  const notice = document.createElement("p");
  notice.className = "problem";
  notice.textContent = `${why} So there are no figures here. “Compute” asks again.`;
  answer.replaceChildren(notice);
  say(notice.textContent);
}

function swap(html) {
  answer.replaceChildren(...new DOMParser().parseFromString(html, "text/html").body.childNodes);
  const problem = answer.querySelector(".problem");
  const wrong = problem?.dataset.field;
  for (const field of form.querySelectorAll("[name]")) {
    if (field.name === wrong) field.setAttribute("aria-invalid", "true");
    else field.removeAttribute("aria-invalid");
  }
  const exact = answer.querySelector("[data-calibration=exact] tr:nth-child(2) td")?.textContent;
  say(problem?.textContent ?? (exact ? `Computed: ε ${exact} by the exact calibration.` : answer.textContent.trim()));
}

function say(text) {
  told.textContent = text;
}

mechanism.addEventListener("change", () => {
  suit();
  later();
});
document.getElementById("batches").addEventListener("input", later);
form.addEventListener("submit", (event) => {
  event.preventDefault();
  clearTimeout(timer);
  ask();
});
if (token) {
  token.value = sessionStorage.getItem("distrust.token.") ?? "";
  token.addEventListener("change", later);
  if (token.value) ask();
}
suit();
