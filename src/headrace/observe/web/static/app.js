// Keeps what the server says, and draws the view that the address names.
import { h, render } from "./dom.js";
import { ago, dateTime, seconds, whole } from "./texts.js";
import { installTip } from "./parts.js";
import { VIEWS } from "./views.js";

const embedded = document.getElementById("data");
const report = embedded ? JSON.parse(embedded.textContent) : null;
const root = document.getElementById("app");
const MOST_MOMENTS = 3600, SILENT_MS = 20_000;

const state = { pipelines: [], live: null, moments: [], parts: {}, asked: {}, csrf: "", confirm: null, sent: null, error: "", heardAt: 0, connected: false, copied: "", fetchedAt: {} };
let source = null, wanted = "", isDrawing = false, drawnView = "";

// -- the address: #view?pipeline=…&part=… ----------------------------------------------------------

function address() {
  const [view, query] = location.hash.slice(1).split("?");
  const ui = Object.fromEntries(new URLSearchParams(query ?? ""));
  if (ui.step) ui.step = Number(ui.step);
  return { view: VIEWS[view] ? view : "overview", ui };
}

function link(view, ui = {}) {
  const kept = { pipeline: wanted, ...ui };
  const query = new URLSearchParams(Object.entries(kept).filter(([, value]) => value != null && value !== ""));
  return `#${view}${query.size ? `?${query}` : ""}`;
}

function set(changes) {
  const { view, ui } = address();
  history.replaceState(null, "", link(view, { ...ui, ...changes }));
  draw();
}

// -- talking to the server ------------------------------------------------------------------------

async function get(path) {
  const [name, query] = path.split("?"), all = new URLSearchParams(query ?? "");
  if (wanted) all.set("pipeline", wanted);
  const answer = await fetch(`api/v1/${name}?${all}`, { headers: { Accept: "application/json" } });
  const data = await answer.json().catch(() => ({ error: `the server answered ${answer.status}` }));
  if (!answer.ok) throw new Error(data.error ?? `the server answered ${answer.status}`);
  return data;
}

async function ask(name, path) {
  // What is shown stays until the answer is there, if it is an answer to the same question.
  const before = state.asked[name]?.data, isSame = state.asked[name]?.path === path || name === "key";
  state.asked[name] = { waits: true, path, data: isSame ? before : undefined };
  draw();
  const pipeline = wanted;
  try {
    const data = await get(path);
    if (pipeline === wanted && state.asked[name]?.path === path) state.asked[name] = { data, before, path };
  } catch (error) {
    if (state.asked[name]?.path === path) state.asked[name] = { error: error.message, path };
  }
  draw();
}

// A link to a key looks it up at once.
function lookUp() {
  const { view, ui } = address();
  if (report || view !== "key" || !ui.key || !ui.computation) return;
  const query = new URLSearchParams({ computation: ui.computation });
  for (const part of ui.key.split("\n")) query.append("part", part);
  ask("key", `key?${query}`);
}

async function send(body) {
  state.sent = { text: "Sending…" };
  draw();
  try {
    const query = new URLSearchParams({ pipeline: wanted });
    const answer = await fetch(`api/v1/commands?${query}`, { method: "POST", headers: { "Content-Type": "application/json", "X-Headrace-CSRF": state.csrf }, body: JSON.stringify(body) });
    const found = await answer.json().catch(() => ({ error: `the server answered ${answer.status}` }));
    if (!answer.ok) throw new Error(found.error);
    const of = found.answer;
    state.sent = of ? { text: `${of.text}: ${of.applied ? `applied at step ${whole(of.step)}` : "refused"}${of.why ? `: ${of.why}` : ""}`, bad: !of.applied }
      : { text: `Command ${found.number} is not answered yet: it is applied when the pipeline runs.${found.waits_for ? ` ${found.waits_for}` : ""}` };
  } catch (error) {
    state.sent = { text: error.message, bad: true };
  }
  draw();
}

async function needs() {
  const [, , names] = VIEWS[address().view], pipeline = wanted, step = state.live?.reading.picture?.step;
  await Promise.all(names.map(async (name) => {
    if (state.fetchedAt[name] === step || state.fetchedAt[name] === "waits") return;
    state.fetchedAt[name] = "waits";
    try {
      const data = await get(name);
      if (pipeline !== wanted) return;
      state.parts[name] = data;
      state.fetchedAt[name] = step;
    } catch {
      state.fetchedAt[name] = null;
    }
  }));
  draw();
}

function note(live) {
  state.live = live;
  state.heardAt = Date.now();
  const first = live.moments[0]?.at_s;
  if (first != null) state.moments = [...state.moments.filter((one) => one.at_s < first), ...live.moments].slice(-MOST_MOMENTS);
  draw();
  needs();
}

function connect() {
  source?.close();
  source = new EventSource(`events?${new URLSearchParams({ pipeline: wanted })}`);
  source.addEventListener("open", () => { state.connected = true; draw(); });
  source.addEventListener("live", (event) => note(JSON.parse(event.data)));
  source.addEventListener("error", () => {
    state.connected = false;
    if (source.readyState === EventSource.CLOSED) setTimeout(choose, 2000);
    draw();
  });
}

async function choose() {
  try {
    const answer = await fetch("api/v1/pipelines");
    if (answer.status === 401) { state.error = "This page is not signed in any more. Open the address that headrace dashboard has printed."; draw(); return; }
    state.pipelines = await answer.json();
    state.error = "";
  } catch {
    state.connected = false;
    setTimeout(choose, 2000);
    draw();
    return;
  }
  const asked = address().ui.pipeline, names = state.pipelines.map((one) => one.pipeline);
  const next = names.includes(asked) ? asked : names[0];
  if (next !== wanted) Object.assign(state, { live: null, moments: [], parts: {}, asked: {}, fetchedAt: {} });
  wanted = next;
  connect();
  lookUp();
  get("commands").then((found) => { state.csrf = found.csrf; draw(); }, () => {});
  get("history").then((found) => { state.moments = found.moments; draw(); }, () => {});
}

// -- drawing --------------------------------------------------------------------------------------

function draw() {
  if (isDrawing) return;
  isDrawing = true;
  requestAnimationFrame(() => { isDrawing = false; drawNow(); });
}

// What the page as a whole says: [mark, class, sentence].
function standing() {
  const reading = state.live?.reading;
  if (state.error) return ["✕", "critical", state.error];
  if (report) return ["●", "note", `A report of ${dateTime(report.made_s)}. It does not change.`];
  if (!state.connected || (state.heardAt && Date.now() - state.heardAt > SILENT_MS)) return ["✕", "critical", `The dashboard's server does not answer${state.heardAt ? `; last heard ${ago((Date.now() - state.heardAt) / 1000)}` : ""}. This page tries again by itself.`];
  if (!reading) return ["○", "note", "Reading…"];
  if (reading.state === "unreachable") return ["✕", "critical", `The storage has been unreachable since ${dateTime(reading.unreachable_since_s)}: ${reading.why}`];
  if (reading.state === "stale") return ["▲", "warning", `The storage is slow to answer: this is from ${ago(reading.age_s)}.`];
  if (reading.state === "empty") return ["○", "note", "No pipeline has run in this storage yet. It is shown as soon as one does."];
  const leader = reading.picture.leader;
  if (leader.state === "leads") return reading.picture.paused ? ["‖", "note", "paused"] : ["●", "well", "running"];
  if (leader.state === "ended" && leader.on_purpose) return ["○", "note", `ended: ${leader.why}`];
  return ["✕", "critical", { silent: `no leader since ${seconds(leader.silent_s)}: it has fallen silent`, ended: `no leader since ${seconds(leader.silent_s)}: ${leader.why}`, none: "no leader" }[leader.state]];
}

function drawNow() {
  const { view, ui } = address(), [title, draws] = VIEWS[view];
  const reading = state.live?.reading, picture = reading?.picture, [mark, level, sentence] = standing();
  const isStale = !report && (!state.connected || (reading && reading.state !== "read") || (state.heardAt && Date.now() - state.heardAt > SILENT_MS));
  const isLong = sentence.length > 70;
  document.title = `${mark} ${wanted || "headrace"}${picture ? ` · step ${whole(picture.step)}` : ""}`;
  const now = report ? report.made_s : reading?.read_s ?? Date.now() / 1000;
  const page = {
    now,
    picture, live: state.live, moments: state.moments, parts: state.parts, asked: state.asked, ui, set, ask, link: (to, what) => link(to, what), still: Boolean(report),
    commands: { allowed: Boolean(state.csrf), confirm: state.confirm, sent: state.sent, choose: (confirm) => { state.confirm = confirm; if (confirm) state.sent = null; draw(); }, send },
    cli: (text) => `headrace ${text} --storage ${reading?.storage ?? "DIR"}`,
    copy: (text) => navigator.clipboard?.writeText(text).then(() => { state.copied = text; draw(); }, () => {}),
  };
  const count = state.live?.alerts.filter((one) => one.level !== "note").length;
  const moved = drawnView !== view;
  drawnView = view;
  render(root,
    h("header", { key: "header" },
      h("div", { class: "who" },
        h("strong", null, "headrace"),
        state.pipelines.length > 1 ? h("select", { "aria-label": "Pipeline", onchange: (event) => { location.hash = link(view, { pipeline: event.target.value }); choose(); } }, state.pipelines.map((one) => h("option", { key: one.pipeline, value: one.pipeline, selected: one.pipeline === wanted }, one.pipeline)))
          : h("span", { class: "pipeline" }, wanted)),
      h("div", { class: `standing ${level}` }, h("button", { type: "button", class: "def", "data-def": "state" }, h("span", { "aria-hidden": "true" }, `${mark} `), isLong ? "see below" : sentence),
        picture && h("span", null, ` · step ${whole(picture.step)} · ${ago(picture.age_s == null ? null : picture.age_s + (isStale ? (reading.age_s ?? 0) : 0))}`))),
    h("nav", { key: "nav", "aria-label": "Views" }, Object.entries(VIEWS).map(([name, [text]]) =>
      h("a", { key: name, href: link(name), "aria-current": name === view ? "page" : null }, text, name === "alerts" && count > 0 && h("span", { class: "count" }, ` ${count}`)))),
    h("div", { key: "banner", class: isLong || (isStale && level !== "note") ? `banner ${level}` : "sr", role: "status" }, `${mark} ${sentence}${isStale && picture ? ` What follows is as of ${dateTime(reading.read_s)}.` : ""}`),
    h("main", { key: "main", id: "main", tabindex: "-1", class: isStale ? "stale" : "", "aria-label": title },
      state.pipelines.length > 1 && view === "overview" && pipelines(),
      picture ? h("div", { key: view, class: "view" }, h("h1", { class: "sr" }, title), draws(page))
        : h("p", { class: "empty" }, reading ? sentence : "Reading…", reading && h("span", null, " ", h("code", null, `headrace run PIPELINE.py --storage ${reading.storage}`)))),
    h("footer", { key: "footer" }, reading && h("span", null, `${reading.storage} · read ${reading.read_s ? dateTime(reading.read_s) : "not yet"} · event times in UTC, clocks in ${Intl.DateTimeFormat().resolvedOptions().timeZone}`), h("span", { "aria-live": "polite", class: "copied" }, state.copied ? "Copied." : "")));
  if (moved) root.querySelector("nav [aria-current]")?.scrollIntoView({ inline: "center", block: "nearest" });
}

function pipelines() {
  return h("section", { key: "pipelines" }, h("h2", null, "Pipelines"), h("ul", { class: "pipelines" }, state.pipelines.map((one) => h("li", { key: one.pipeline },
    h("a", { href: link("overview", { pipeline: one.pipeline }), onclick: () => setTimeout(choose), "aria-current": one.pipeline === wanted ? "true" : null }, one.pipeline),
    h("span", null, one.state === "read" ? `${{ leads: "● running", silent: "✕ no leader", ended: "○ ended", none: "✕ no leader" }[one.leader]} · step ${whole(one.step)} · ${one.lag_s == null ? "" : `${seconds(one.lag_s)} behind`}` : one.state === "empty" ? "○ nothing has run yet" : `✕ ${one.state}`)))));
}

addEventListener("hashchange", () => { draw(); if (report) return; const asked = address().ui.pipeline; if (asked && asked !== wanted) choose(); else { needs(); lookUp(); } });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
installTip(() => state.live?.reading.storage ?? "DIR", document.body);

if (report) {
  wanted = report.live.reading.pipeline;
  Object.assign(state, { live: report.live, moments: report.moments, parts: report.parts, connected: true });
  draw();
} else {
  draw();
  choose();
  setInterval(draw, 1000);
  setInterval(async () => {
    if (document.hidden || state.pipelines.length < 2) return;
    try { state.pipelines = await (await fetch("api/v1/pipelines")).json(); } catch { /* the feed says so */ }
  }, 5000);
}
