// Asks for the figures every second and draws them. Texts are set as text: a name from elsewhere is never markup.
"use strict";

const PERIOD_MS = 1000;
const STALE_MS = 5000;
let answeredAt = 0;

function element(name, className, ...children) {
  const made = document.createElement(name);
  if (className) made.className = className;
  made.append(...children);
  return made;
}

const known = (value) => value !== null && value !== undefined;
const number = (value, digits = 0) => (known(value) ? value.toLocaleString("en", { maximumFractionDigits: digits }) : "–");
const share = (value) => (known(value) ? `${number(100 * value, 1)} %` : "–");
const row = (name, value, tone = "") => element("div", "row", element("span", "", name), element("span", tone, value));

function duration(seconds) {
  const size = Math.abs(seconds);
  if (size < 120) return `${number(seconds)} s`;
  return size < 7200 ? `${number(seconds / 60)} min` : `${number(seconds / 3600, 1)} h`;
}

function bar(value, tone = "") {
  const filled = element("i", tone);
  filled.style.width = `${Math.max(0, Math.min(1, value ?? 0)) * 100}%`;
  const track = element("div", "track", filled);
  track.setAttribute("aria-hidden", "true");
  return track;
}

function figure(text, note, tone) {
  return element("div", "figure", element("b", tone, text), element("span", "", note));
}

function budget(name, it) {
  if (!it || !it.counted) return [row(name, "no requests counted")];
  const tone = it.left < 0 ? "bad" : "";
  const text = `${share(it.left)} left (${number(it.missed)} of ${number(it.counted)})`;
  return [row(name, text, tone), bar(it.left, tone)];
}

function level(it) {
  const tone = !known(it.p95_ms) || !known(it.p95_target_ms) ? "" : it.p95_ms > it.p95_target_ms ? "bad" : "good";
  const target = (value, unit) => (known(value) ? `target ${number(value)} ${unit}` : "no target");
  const p95 = known(it.p95_ms) ? `${number(it.p95_ms, 1)} ms` : "–";
  const card = element("article", "card",
    element("h2", "", it.lane),
    element("div", "figures",
      figure(number(it.answers_per_second, 1), `requests/s, ${target(it.rate_target, "requests/s")}`),
      figure(p95, `p95, ${target(it.p95_target_ms, "ms")}`, tone)),
    row("answered in time", share(it.in_time)),
    row("refused", `${number(it.refused_per_second, 1)}/s`, it.refused_per_second ? "bad" : ""),
    row("waiting texts", number(it.waiting)),
    row("remaining capacity", known(it.spare) ? `${number(it.spare_texts_per_second)} texts/s (${share(it.spare)})` : "no replica"),
    bar(it.spare),
    ...budget("error budget, 1 hour", it.budget.hour),
    ...budget("error budget, 28 days", it.budget.days));
  card.dataset.lane = it.lane;
  return card;
}

function table(headings, rows, none) {
  if (!rows.length) return element("p", "", none);
  const cells = (kind, values) => values.map((value) => element(kind, "", value));
  return element("div", "scroll", element("table", "",
    element("thead", "", element("tr", "", ...cells("th", headings))),
    element("tbody", "", ...rows.map((values) => element("tr", "", ...cells("td", values))))));
}

function paths(board) {
  return board.paths.length
    ? board.paths.flatMap((it) => [row(it.path, `${share(it.share)} (${number(it.per_second, 1)}/s)`), bar(it.share)])
    : [element("p", "", `no request in ${number(board.window_seconds)} s`)];
}

function deferred(it) {
  if (!it) return [element("p", "", "not known without Redis")];
  const due = known(it.due_in_seconds)
    ? it.due_in_seconds < 0 ? `passed ${duration(-it.due_in_seconds)} ago` : `in ${duration(it.due_in_seconds)}`
    : "none";
  return [row("waiting requests", number(it.waiting)), row("earliest deadline", due, it.due_in_seconds < 0 ? "bad" : "")];
}

function models(board) {
  const canary = (it) => (it.canary ? `${it.canary} (${share(it.weight)})` : "–");
  return table(["model", "release", "canary", "replicas"],
    board.models.map((it) => [it.model, it.release, canary(it), number(it.replicas)]), "no replica with lanes");
}

function nights(board) {
  return table(["day", "model", "status", "ended", "rows", "rows/s", "quarantined", "release"],
    board.nights.map((it) => [it.ds, it.model || "default", it.state, `${duration(board.at - it.finished_at)} ago`, number(it.rows),
      number(it.rows_per_second), number(it.quarantined), it.release]), "none is recorded");
}

function replicas(board) {
  return table(["replica", "address", "state", "lanes", "load", "waiting", "requests/s", "unfit releases"],
    board.replicas.map((it) => (known(it.load)
      ? [it.replica, it.address, it.state, it.lanes.join(", ") || "none", share(it.load), number(it.waiting),
        number(it.answers_per_second, 1), it.failed_releases.join(", ") || "–"]
      : [it.replica, "–", it.state, "–", "–", "–", "–", "–", "–"])), "none");
}

const put = (id, ...children) => document.getElementById(id).replaceChildren(...children);

function draw(board) {
  put("levels", ...board.lanes.filter((it) => it.lane !== "dynamic" || it.replicas).map(level));
  put("paths", ...paths(board));
  put("deferred", ...deferred(board.deferred));
  put("models", models(board));
  put("nights", nights(board));
  put("replicas", replicas(board));
  const problem = document.getElementById("problem");
  problem.textContent = board.problem;
  problem.hidden = !board.problem;
  const since = board.since ? `counted since ${board.since}` : "nothing is counted yet";
  put("source", `Rates and p95 are of the last ${number(board.window_seconds)} s. Of a lane's requests 5 % may miss their deadline `
    + `or target: that is its error budget, which replicas count in Redis each second (28 days with today; ${since}). `
    + "In brackets are the requests that missed, and all.");
}

function tell() {
  const state = document.getElementById("state");
  const age = Date.now() - answeredAt;
  state.classList.toggle("stale", age > STALE_MS);
  state.textContent = !answeredAt ? "no answer yet" : age > STALE_MS ? `no answer for ${number(age / 1000)} s` : "live";
}

// Kept until the tab is closed, or where a browser gives a framed page no storage, until the page is; sent to this origin
// alone.
let held = "";

function bearer() {
  try {
    return sessionStorage.getItem("bearer") || held;
  } catch {
    return held;
  }
}

function keep(token) {
  held = token;
  try {
    sessionStorage.setItem("bearer", token);
  } catch {
    // Kept in this page alone.
  }
}

// No answer without another token: it is asked for again once there is one.
function askForToken(why) {
  const form = document.getElementById("token");
  form.querySelector("label").textContent = `${why}. A token of an operator:`;
  form.hidden = false;
  form.onsubmit = (event) => {
    event.preventDefault();
    keep(document.getElementById("bearer").value.trim());
    form.reset();
    form.hidden = true;
    ask();
  };
}

async function ask() {
  try {
    const headers = bearer() ? { authorization: `Bearer ${bearer()}` } : {};
    const answer = await fetch("board.json", { cache: "no-store", headers });
    if (answer.ok) {
      draw((await answer.json()).board);
      answeredAt = Date.now();
    } else if (answer.status === 401 || answer.status === 403) {
      keep("");
      askForToken(await answer.text());
      tell();
      return;
    }
  } catch (error) {
    console.warn(`board.json: ${error.message}`);
  }
  tell();
  setTimeout(ask, PERIOD_MS);
}

ask();
