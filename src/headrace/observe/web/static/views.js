// The views. Each answers one question, and is made from what the server last said.
import { h } from "./dom.js";
import { ago, bytes, clock, dateTime, eventTime, millis, percent, perSecond, plural, readable, seconds, short, times, UNKNOWN, when, whole } from "./texts.js";
import { actions, bar, command, figure, label, section, table, tile } from "./parts.js";
import { lines, stackedBars } from "./charts.js";
import { drawing } from "./drawing.js";

const right = { right: true };
const LEVELS = { critical: ["✕", "Critical"], warning: ["▲", "Warning"], note: ["●", "Note"] };
const largest = (values) => values.reduce((most, value) => (value != null && (most == null || value > most) ? value : most), null);
const anyKnown = (values) => values.some((one) => one != null);
const workerColor = (worker) => `var(--w${worker % 8})`;

// -- overview -------------------------------------------------------------------------------------

function overview(page) {
  const { picture, live } = page, recent = picture.recent;
  const lag = largest(Object.values(picture.computations).map((of) => of.lag_s));
  const waiting = Object.values(picture.injectors).map((of) => of.waiting).filter((one) => one != null);
  return [
    alerts(page, live.alerts),
    section("Now", h("div", { class: "tiles" },
      tile("Step", "step", whole(picture.step), `epoch ${whole(picture.epoch)} · ${ago(picture.age_s)}`, "step"),
      tile("Records read", "records", perSecond(recent?.records_per_s), recent && `${perSecond(recent.steps_per_s).replace("/s", " steps/s")}`, "recent.records_per_s"),
      tile("Step time", "stepTime", millis(recent?.step_ms?.p50), recent?.step_ms && `p95 ${millis(recent.step_ms.p95)} · max ${millis(recent.step_ms.max)}`, "recent.step_ms.p50"),
      tile("Steps under way", "busy", percent(recent?.busy), recent && `over ${plural(recent.timed, "step")}`, "recent.busy"),
      tile("Lag", "lag", lag == null ? (picture.input === "ended" ? "ended" : UNKNOWN) : seconds(lag), "event time", "lag"),
      tile("Backlog", "backlog", waiting.length ? whole(waiting.reduce((a, b) => a + b, 0)) : UNKNOWN, waiting.length ? "records wait" : "sources do not say", "backlog"),
      tile("Outbox", "outbox", whole(picture.outbox.steps), `${bytes(picture.outbox.nbytes)} not delivered`, "outbox.steps"),
      tile("Leader", "leader", { leads: "leads", silent: "silent", ended: "ended", none: "none" }[picture.leader.state], `${picture.leader.where || "no heartbeat"} · ${plural(picture.standbys, "standby", "standbys")}`, "leader.state"))),
    page.commands.allowed && section("Commands", actions(page, [picture.paused ? ["Resume the pipeline", "resume", { kind: "resume" }] : ["Pause the pipeline", "pause", { kind: "pause" }]])),
    section("Recent history", historyCharts(page)),
    section("Computations", computations(page)),
    counters(page),
  ];
}

function counters(page) {
  const rows = Object.entries(page.picture.computations).flatMap(([name, of]) => Object.entries(of.counts.counters ?? {}).map(([counter, total]) => ({ name, counter, total })));
  return rows.length > 0 && section("Counters", table("Counters", [["Computation", null, (of) => of.name], ["Counter", null, (of) => of.counter], ["Total", "counter", (of) => figure(whole(of.total), "counter", `computations.${of.name}.counters.${of.counter}`), right]], rows, { key: (of) => `${of.name} ${of.counter}` }));
}

function alerts(page, found) {
  const worst = found[0]?.level, bad = found.filter((a) => a.level !== "note").length, notes = found.length - bad;
  const sentence = page.picture.leader.state === "leads" && !page.picture.steps_done ? "Starting: no step yet."
    : !found.length ? "All is well: a driver leads, and nothing is held, slow or lost."
    : !bad ? "Nothing is wrong." : `${plural(bad, "thing")} to look at, the worst first${notes ? `, and ${plural(notes, "note")}` : ""}.`;
  return h("section", { key: "alerts", class: "alerts", "aria-label": "What needs attention" },
    h("p", { class: `verdict ${worst ?? "well"}`, role: "status" }, h("span", { "aria-hidden": "true" }, worst ? LEVELS[worst][0] : "✓"), " ", sentence),
    h("ul", null, found.map((alert, at) => h("li", { key: `${alert.text.replace(/[\d.,]+/g, "#")}${alert.subject}${at}`, class: `alert ${alert.level}` },
      h("h3", null, h("span", { class: "badge" }, `${LEVELS[alert.level][0]} ${LEVELS[alert.level][1]}`), " ", readable(alert.text), sinceOf(page, alert)),
      alert.why && h("p", null, h("b", null, "Why: "), readable(alert.why)),
      alert.remedy && h("p", null, h("b", null, "What to do: "), readable(alert.remedy)),
      h("p", { class: "more" }, h("a", { href: page.link(alert.view) }, `Show ${TITLES[alert.view].toLowerCase()}`), command(page.cli(alert.command), page.copy))))));
}

// Since when, if the pipeline has recorded that. When this page began to look says nothing about it.
function sinceOf(page, alert) {
  const first = alert.since_at_s;
  if (first == null) return null;
  return h("span", { class: "since" }, ` for ${alert.at_least ? "at least " : ""}${seconds(Math.max(0, page.now - first))}, since ${alert.at_least ? "before " : ""}${when(first)}`);
}

function historyCharts(page) {
  const m = page.moments, of = (field) => m.map((one) => one[field]);
  if (m.length < 2) return h("p", { class: "empty" }, "Not enough steps yet.");
  const bands = migrationBands(page);
  return h("div", { class: "charts" },
    lines("Records a second", m, [["read", "--c1", of("records_per_s")]], short, bands),
    lines("Step time", m, [["longest", "--c3", of("longest_ms"), 1], ["mean", "--c1", of("took_ms")]], millis, bands),
    lines("Lag", m, [["largest", "--c2", of("lag_s")]], seconds, bands),
    lines("Outbox", m, [["steps", "--c4", of("outbox_steps")]], short, bands));
}

const migrationBands = (page) => (page.parts.migrations?.migrations ?? []).filter((one) => one.began_at_s != null).map((one) => [one.began_at_s, one.ended_at_s]);

function computations(page) {
  const { picture } = page, recent = picture.recent?.computations ?? {}, shares = Object.fromEntries((page.live.graph?.nodes ?? []).map((node) => [node.id, node.share]));
  const names = Object.keys(picture.computations).filter((name) => picture.computations[name].removed_at == null);
  return table("Computations", [
    ["Computation", null, (name) => name],
    ["Rate", "rate", (name) => figure(perSecond(recent[name]?.records_per_s), "rate", `computations.${name}.rate`), right],
    ["Records", "total", (name) => figure(whole(picture.computations[name].counts.records), "total", `computations.${name}.records`), right],
    ["Produced", "produced", (name) => figure(whole(picture.computations[name].counts.produced), "produced", `computations.${name}.produced`), right],
    ["Timers", "timers", (name) => figure(whole(picture.computations[name].counts.timers), "timers", `computations.${name}.timers`), right],
    ["Late so far", "total", (name) => figure(whole(picture.computations[name].counts.late), "total", `computations.${name}.late`), right],
    ["Skipped so far", "total", (name) => figure(whole(picture.computations[name].counts.skipped), "total", `computations.${name}.skipped`), right],
    ["Lag", "lag", (name) => figure(seconds(picture.computations[name].lag_s), "lag"), right],
    ["Watermark", "watermark", (name) => figure(eventTime(picture.computations[name].output), "watermark", `computations.${name}.watermark`), right],
    ["Share of code time", "share", (name) => h("span", { class: "nowrap" }, bar(shares[name]), " ", figure(percent(shares[name]), "share")), right],
  ], names, { key: (name) => name });
}

// -- graph ----------------------------------------------------------------------------------------

function graphView(page) {
  const graph = page.live.graph, levels = {};
  for (const alert of [...page.live.alerts].reverse()) if (alert.subject && alert.level !== "note") levels[alert.subject] = alert.level;
  const picked = graph.nodes.some((node) => node.id === page.ui.part) ? page.ui.part : null;
  const kinds = { injector: "injector", ids: "record ids", "dead letters": "dead letters", computation: "computation", sink: "sink" };
  return [
    section("Graph",
      h("p", { class: "lead" }, "Streams go from sources to sinks. Lines are as thick as their rate; the bar in a box is its share of the time that the code of all computations takes. Choose a part to see what it depends on."),
      drawing(graph, levels, picked, (part) => page.set({ part })),
      picked && h("p", { class: "more" }, h("b", null, graph.nodes.find((node) => node.id === picked).name), ...partLinks(page, graph.nodes.find((node) => node.id === picked))),
      graph.loose_sinks && h("p", { class: "empty" }, "Some sinks have no line: the storage does not say what they receive, because an older version ran the pipeline last.")),
    section("Parts", table("Parts of the pipeline", [
      ["Part", null, (node) => node.name],
      ["Kind", null, (node) => kinds[node.kind]],
      ["Layer", null, (node) => whole(node.layer), right],
      ["Rate", "rate", (node) => figure(perSecond(node.records_per_s), "rate"), right],
      ["Lag", "lag", (node) => figure(seconds(node.lag_s), "lag"), right],
      ["Undelivered for", "undelivered", (node) => figure(seconds(node.undelivered_s), "undelivered"), right],
      ["Slowest partition behind", "spread", (node) => figure(seconds(node.spread_s), "spread"), right],
      ["Late lately", "late", (node) => figure(whole(node.late), "late"), right],
      ["Skipped lately", "skipped", (node) => figure(whole(node.skipped), "skipped"), right],
      ["Share of code time", "share", (node) => h("span", { class: "nowrap" }, bar(node.share), " ", figure(percent(node.share), "share")), right],
    ], graph.nodes, { key: (node) => node.id, rowClass: (node) => (levels[node.id] ? `has-${levels[node.id]}` : null) })),
  ];
}

function partLinks(page, node) {
  const to = node.kind === "sink" || node.kind === "injector" ? [["sinks", {}]] : [["watermarks", { part: node.id }], ["workers", {}]];
  return to.map(([view, ui]) => h("a", { key: view, href: page.link(view, ui) }, `Show ${TITLES[view].toLowerCase()}`));
}

// -- steps ----------------------------------------------------------------------------------------

const PHASES = ["outbox", "poll", "plan", "split", "lost", "read", "route", "send", "receive", "state", "user code", "write", "digest", "snapshot", "slice", "engine", "intent", "hand out", "commit", "notify", "tell", "prepare", "release", "clean", "sweep"];
// The phases that take most have a colour each, and the rest share one.
function colorsOf(steps) {
  const total = {};
  for (const one of steps) for (const [name, ms] of Object.entries(one.phases)) total[name] = (total[name] ?? 0) + ms;
  const ranked = Object.keys(total).filter((name) => name !== "lost").sort((a, b) => total[b] - total[a]).slice(0, 9);
  ranked.sort((a, b) => PHASES.indexOf(a) - PHASES.indexOf(b));
  return (name) => (name === "lost" ? "var(--bad)" : ranked.includes(name) ? `var(--p${1 + ranked.indexOf(name)})` : "var(--p0)");
}

function stepsView(page) {
  const steps = page.parts.steps?.steps;
  if (!steps) return h("p", { class: "empty" }, "Reading…");
  const timed = steps.filter((one) => one.took_ms != null);
  const picked = timed.find((one) => one.step === page.ui.step) ?? timed.at(-1);
  const names = [...new Set(timed.flatMap((one) => Object.keys(one.phases)))].filter((name) => timed.some((one) => one.phases[name] > 0));
  names.sort((a, b) => PHASES.indexOf(a) - PHASES.indexOf(b));
  const phaseColor = colorsOf(timed), shown = names.filter((name) => name === "lost" || phaseColor(name) !== "var(--p0)");
  const rows = (page.picture.recent?.phases ?? []).filter((one) => one.ms > 0).sort((a, b) => b.ms - a.ms);
  return [
    section("The newest steps",
      rows.length > 0 && h("p", null, h("b", null, whereTimeGoes(page, rows))),
      h("p", { class: "lead" }, "One bar for each step, stacked by phase, without waiting for input. Choose one, or move with the arrow keys."),
      stackedBars("Steps", timed.map((one) => ({ key: one.step, title: `Step ${one.step}`, parts: names.map((name) => [phaseColor(name), one.phases[name] ?? 0]), mark: one.attempt > 0 })), millis, (step) => page.set({ step }), page.ui.step),
      h("ul", { class: "keys" }, shown.map((name) => h("li", { key: name }, h("i", { style: { background: phaseColor(name) }, "aria-hidden": "true" }), name)), shown.length < names.length && h("li", null, h("i", { style: { background: "var(--p0)" }, "aria-hidden": "true" }), "others"))),
    picked && oneStep(picked, phaseColor),
    picked?.layers_ms?.length > 0 && layersOf(page),
    section("On average", table("Phases, on average", [
      ["Phase", null, (one) => [h("i", { class: "swatch", style: { background: phaseColor(one.name) }, "aria-hidden": "true" }), one.name]],
      ["Share", "phases", (one) => h("span", { class: "nowrap" }, bar(one.share), " ", figure(percent(one.share), "phases")), right],
      ["A step waits", "phases", (one) => figure(millis(one.ms), "phases"), right],
      ["In all tasks", "allTasks", (one) => figure(millis(one.all_tasks_ms), "allTasks"), right],
    ], rows, { key: (one) => one.name })),
    section("State in memory", softState(page)),
  ];
}

// The phase that takes most of a step, in one sentence.
function whereTimeGoes(page, rows) {
  const [most] = rows, waits = Object.entries(page.picture.sinks).filter(([, of]) => of.waits).map(([name]) => name);
  const what = most.name === "outbox" ? `waits for ${waits.length ? `sink ${waits.join(", ")}` : "sinks"}, because the outbox is full` : most.name === "release" ? "goes into delivering to sinks" : most.name === "user code" ? "is your own code" : most.name === "engine" ? "is Spark's part: scheduling and sending" : `goes to the phase ${most.name}`;
  return `${percent(most.share)} of each step ${what}: ${millis(most.ms)} on average.`;
}

function layersOf(page) {
  const layers = page.picture.recent?.layers ?? [], most = Math.max(1e-9, ...layers.map((of) => of.slowest_ms));
  return section("Layers, on average", table("Layers, on average", [
    ["Layer", "layer", (of) => whole(of.layer)],
    ["A step waits", "layer", (of) => h("span", { class: "nowrap" }, bar(of.slowest_ms / most), " ", figure(millis(of.slowest_ms), "layer", `layers.${of.layer}.slowest_ms`)), right],
    ["In all tasks", "allTasks", (of) => figure(millis(of.all_ms), "allTasks"), right],
    ["Slowest", "layer", (of) => `${of.layer ? "worker" : "reader"} ${whole(of.slowest)} in ${percent(of.slowest_share)} of steps`],
    ["What runs in it", null, (of) => (of.layer ? of.computations.join(", ") || UNKNOWN : "reading and routing"), { text: true }],
  ], layers, { key: (of) => of.layer }));
}

function softState(page) {
  const found = Object.entries(page.picture.recent?.soft_state ?? {});
  const whole_ = found.reduce((sum, [, count]) => sum + count, 0);
  return table("State in memory", [["Tasks found it", null, ([how]) => SOFT[how] ?? how], ["Tasks", "softState", ([, count]) => figure(whole(count), "softState"), right], ["Share", "softState", ([, count]) => figure(percent(count / whole_), "softState"), right]], found, { key: ([how]) => how });
}

const EXCHANGES = { driver: "through the driver", host: "through files of the host", shuffle: "through Spark's shuffle" };
const SOFT = { hit: "in memory (hit)", "caught up": "in memory, and behind (caught up)", cold: "not in memory: read from storage (cold)", moved: "just moved to this worker (moved)" };

function oneStep(of, phaseColor) {
  // The phases that take a hundredth of the step or more, longest first; the table of averages has all of them.
  const took = Object.values(of.phases).reduce((sum, ms) => sum + ms, 0), phases = Object.entries(of.phases).filter(([, ms]) => ms >= took / 100).sort((a, b) => b[1] - a[1]);
  const computations = Object.entries(of.computations_ms).sort((a, b) => b[1][0] - a[1][0]);
  const most = Math.max(1e-9, ...computations.map(([, [slowest]]) => slowest));
  return section(`Step ${whole(of.step)}`,
    h("p", { class: "lead" }, `${dateTime(of.at_s)} · epoch ${of.epoch} · `, of.attempt > 0 ? h("b", { class: "bad" }, `attempt ${of.attempt + 1}`) : "first attempt",
      ` · ${plural(of.records, "record")} read, ${whole(of.produced)} produced, ${plural(of.timers, "timer")} fired${of.late ? `, ${whole(of.late)} late` : ""}${of.skipped ? `, ${whole(of.skipped)} skipped` : ""} · records went to workers ${EXCHANGES[of.exchange] ?? (of.exchange || UNKNOWN)}${of.uncheckpointed ? " · not checkpointed" : ""}`),
    of.lost.map((why, at) => h("p", { key: `lost ${at}` }, h("b", { class: "bad" }, `Attempt ${at + 1} was discarded: `), why)),
    h("div", { class: "columns" },
      table("Phases of this step, from 1 % up", [["Phase", null, ([name]) => [h("i", { class: "swatch", style: { background: phaseColor(name) }, "aria-hidden": "true" }), name]], ["Waited", "phases", ([, ms]) => figure(millis(ms), "phases"), right], ["In all tasks", "allTasks", ([name]) => figure(millis(of.all_tasks_ms[name]), "allTasks"), right]], phases, { key: ([name]) => name, showCaption: true }),
      of.layers_ms.length > 0 && table("Layers of this step", [["Layer", "layer", ([layer]) => (layer ? whole(layer) : "0, reading")], ["Slowest", "layer", ([layer, [at]]) => `${layer ? "worker" : "reader"} ${whole(at)}`], ["Its task", "layer", ([, [, slowest]]) => figure(millis(slowest), "layer"), right], ["All tasks", "allTasks", ([, [, , all]]) => figure(millis(all), "allTasks"), right]], of.layers_ms.map((one, layer) => [layer, one]), { key: ([layer]) => layer, showCaption: true }),
      table("Computations in this step", [["Computation", null, ([name]) => name], ["Slowest task", "computationTime", ([, [slowest]]) => h("span", { class: "nowrap" }, bar(slowest / most), " ", figure(millis(slowest), "computationTime")), right], ["In all tasks", "computationTime", ([, [, all]]) => figure(millis(all), "computationTime"), right]], computations, { key: ([name]) => name, showCaption: true, empty: "Not recorded by the version that ran it." })));
}

// -- watermarks -----------------------------------------------------------------------------------

function watermarks(page) {
  const ways = page.live.ways, names = Object.keys(ways);
  if (!names.length) return h("p", { class: "empty" }, "No computations yet.");
  const laggards = [...names].sort((a, b) => (page.picture.computations[b]?.lag_s ?? -1) - (page.picture.computations[a]?.lag_s ?? -1) || (page.picture.computations[b]?.moved_s ?? -1) - (page.picture.computations[a]?.moved_s ?? -1) || ways[b].length - ways[a].length);
  const picked = ways[page.ui.part] ? page.ui.part : laggards[0];
  // What was read last, if it is of this computation.
  const marks = page.asked.marks?.path === `bins/${encodeURIComponent(picked)}` ? page.asked.marks : null;
  const holders = new Map();
  for (const name of names) { const last = ways[name].at(-1).name; holders.set(last, [...(holders.get(last) ?? []), name]); }
  return [
    section("Who holds my watermark",
      h("label", { class: "pick" }, "Computation ", h("select", { onchange: (event) => page.set({ part: event.target.value }), value: picked }, names.map((name) => h("option", { key: name, value: name, selected: name === picked }, name)))),
      h("ol", { class: "way" }, ways[picked].map((stage, at) => h("li", { key: `${at} ${stage.name}`, class: at === ways[picked].length - 1 ? "holder" : "" },
        h("h3", null, at === ways[picked].length - 1 && h("span", { class: "badge" }, "Holder"), " ", stage.name),
        h("p", null, label("Watermark", "watermark"), " ", figure(stage.watermark == null ? "none yet" : eventTime({ text: stage.watermark }), "watermark"), " · ", stage.since_s == null ? "has not moved yet" : [label("moved", "moved"), " ", figure(ago(stage.since_s), "moved"), `, in step ${whole(stage.since_step)}`]),
        h("p", null, h("b", null, "Waits for "), readable(stage.waits_for)),
        stage.remedy && h("p", null, h("b", null, "What to do: "), readable(stage.remedy))))),
      h("p", { class: "lead" }, "It becomes an alert when the watermark of a computation has not moved for 30 s while steps ran."),
      h("p", { class: "more" }, command(page.cli(`watermark why ${quoted(picked)}`), page.copy))),
    section("All computations", table("Watermarks", [
      ["Computation", null, (name) => h("button", { type: "button", class: "link", onclick: () => page.set({ part: name }) }, name)],
      ["Lag", "lag", (name) => figure(seconds(page.picture.computations[name]?.lag_s), "lag"), right],
      ["Moved", "moved", (name) => figure(ago(page.picture.computations[name]?.moved_s), "moved"), right],
      ["Oldest waiting work", "pending", (name) => figure(page.picture.computations[name]?.oldest ? eventTime(page.picture.computations[name].oldest) : "none", "pending"), right],
      ["Input watermark", "watermark", (name) => figure(eventTime(page.picture.computations[name]?.input), "watermark"), right],
      ["Output watermark", "watermark", (name) => figure(eventTime(page.picture.computations[name]?.output), "watermark"), right],
      ["Held by", "holds", (name) => (ways[name].at(-1).partition ? `${ways[name].at(-1).partition} of ${ways[name].at(-1).name}` : ways[name].at(-1).name)],
    ], laggards, { key: (name) => name })),
    section("Bins with the oldest work",
      h("p", { class: "lead" }, "The timers, holds and records that a computation has still to work off, bin by bin. Looking reads its state."),
      h("button", { type: "button", disabled: page.still, onclick: () => page.ask("marks", `bins/${encodeURIComponent(picked)}`) }, `Look into ${picked}`),
      marks?.waits && h("p", { class: "empty" }, "Reading…"),
      marks?.error && h("p", { class: "bad", role: "alert" }, marks.error),
      marks?.data && [h("p", { class: "lead" }, h("b", null, picked), ` as of step ${whole(marks.data.step)}${marks.data.marks.length > MOST_MARKS ? `: the ${MOST_MARKS} oldest of ${marks.data.marks.length === 100 ? "100 or more" : marks.data.marks.length} bins` : ""}.`), table("Bins with pending work", [
        ["Bin", "bins", (one) => one.bin], ["Worker", "worker", (one) => whole(one.worker), right], ["Watermark", "watermark", (one) => eventTime({ text: one.watermark }), right],
        ["Oldest work", "pending", (one) => figure(eventTime({ text: one.oldest }), "pending"), right], ["Pending", "pending", (one) => figure(whole(one.pending), "pending"), right],
      ], marks.data.marks.slice(0, MOST_MARKS), { key: (one) => one.bin, empty: `No work of ${picked} is pending in event time.` })]),
  ];
}

const MOST_MARKS = 20;
const quoted = (text) => (/^[\w.@%+=:,/-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

// -- migrations -----------------------------------------------------------------------------------

function migrations(page) {
  const found = page.parts.migrations?.migrations;
  if (!found) return h("p", { class: "empty" }, "Reading…");
  const now = found.find((one) => !["queued", "done", "aborted"].includes(one.state));
  const queued = found.filter((one) => one.state === "queued"), over = found.filter((one) => ["done", "aborted"].includes(one.state));
  return [
    now ? underWay(page, now) : section("Under way", h("p", { class: "empty" }, "No migration is under way. Start one with:"), command(page.cli("rescale 4 --dry-run"), page.copy), rescaling(page)),
    section("Recent history", historyCharts(page)),
    queued.length > 0 && section("Queued", table("Queued migrations", [["Id", null, (one) => whole(one.id)], ["What", null, (one) => one.what], ["By", null, (one) => one.by]], queued, { key: (one) => one.id })),
    section("Ended", table("Migrations that have ended", [
      ["Id", null, (one) => whole(one.id)], ["What", null, (one) => [one.what, one.why && h("div", { class: "tile-detail" }, one.why)]], ["State", null, (one) => one.state], ["By", null, (one) => one.by],
      ["Bins", "rounds", (one) => figure(whole(one.progress.bins), "rounds"), right], ["Moved", "movedBytes", (one) => figure(bytes(one.progress.nbytes), "movedBytes"), right],
      ["Began", null, (one) => when(one.began_at_s), right], ["Took", null, (one) => (one.ended_at_s == null || one.began_at_s == null ? UNKNOWN : seconds(one.ended_at_s - one.began_at_s)), right],
      ["p99 before", "latency", (one) => figure(latency(one.before, 2), "latency"), right], ["during", "latency", (one) => figure(latency(one.during, 2), "latency"), right], ["after", "latency", (one) => figure(latency(one.after, 2), "latency"), right],
    ], over, { key: (one) => one.id, empty: "None has ended yet." })),
  ];
}

function rescaling(page) {
  if (!page.commands.allowed) return null;
  const now = page.picture.workers.length, workers = Number(page.ui.workers) || now + 1;
  return h("div", { class: "pick" }, h("label", null, "Workers ", h("input", { type: "number", min: "1", max: "4096", value: String(workers), onchange: (event) => page.set({ workers: Math.max(1, Math.round(Number(event.target.value)) || 1) }) })),
    actions(page, [[`Rescale to ${workers} workers`, `rescale ${workers}`, { kind: "rescale", workers }]]));
}

// A latency is [steps, p50, p99, max], in microseconds.
const latency = (of, at) => (of[0] ? millis(of[at] / 1000) : UNKNOWN);

// What a migration costs, in one sentence.
function costOf(one) {
  if (!one.before[0] || !one.during[0]) return h("p", { class: "lead" }, "What it costs is known once steps were timed before it and during it.");
  const more = (at) => { const by = one.during[at] - one.before[at]; return by > 0 ? `${millis(by / 1000)} more than before` : "no more than before"; };
  return h("p", null, h("b", null, `While state moves, a step takes ${more(1)} (p50: ${latency(one.during, 1)} against ${latency(one.before, 1)}); the slowest of a hundred takes ${more(2)} (p99: ${latency(one.during, 2)} against ${latency(one.before, 2)}). Waiting for sinks is not in it.`));
}

const MOVING = { gap: "between rounds", preparing: "preparing", moving: "moving state" };
function underWay(page, one) {
  const p = one.progress;
  return section(`Migration ${one.id}: ${one.what}`,
    h("div", { class: "tiles" },
      tile("State", "migrationState", p.paused && one.state !== "paused" ? `${MOVING[one.state] ?? one.state}, to pause` : MOVING[one.state] ?? one.state, `since step ${whole(one.since_step)} · asked for by ${one.by}`, "migration.state"),
      tile("Rounds", "rounds", `${whole(p.rounds)} of ${whole(p.of_rounds)}`, bar(p.of_rounds ? p.rounds / p.of_rounds : 0), "migration.rounds"),
      tile("Bins", "bins", `${whole(p.bins)} of ${whole(p.of_bins)}`, one.strategy, "migration.bins"),
      tile("State moved", "movedBytes", bytes(p.nbytes), "estimated", "migration.nbytes"),
      tile("Time left", "timeLeft", one.left_s == null ? UNKNOWN : `about ${seconds(one.left_s)}`, one.began_at_s == null ? null : `began ${clock(one.began_at_s)}`, "migration.left")),
    h("ol", { class: "rounds", "aria-label": "Rounds" }, one.rounds.map((round) => h("li", { key: round.number, class: round.state, title: `Round ${round.number}: ${plural(round.bins, "bin")}, ${bytes(round.nbytes)}, ${round.state}` }, h("span", { class: "sr" }, `Round ${round.number}, ${round.state}`)))),
    h("ul", { class: "keys" }, h("li", null, h("i", { class: "round done", "aria-hidden": "true" }), "done"), h("li", null, h("i", { class: "round published", "aria-hidden": "true" }), "next (its step is announced)"), h("li", null, h("i", { class: "round left", "aria-hidden": "true" }), "left")),
    costOf(one),
    table("Step times without sinks", [["Steps (without delivering to sinks)", null, ([name]) => name], ["How many", "latency", ([, of]) => figure(whole(of[0]), "latency"), right], ["p50", "latency", ([, of]) => figure(latency(of, 1), "latency"), right], ["p99", "latency", ([, of]) => figure(latency(of, 2), "latency"), right], ["Longest", "latency", ([, of]) => figure(latency(of, 3), "latency"), right]],
      [["before, once warm", one.before], ["during", one.during]], { key: ([name]) => name }),
    binStrip(page, "owners"),
    h("p", { class: "more" }, command(page.cli(`migrations show ${one.id}`), page.copy), command(page.cli(`migrations pause ${one.id}`), page.copy), command(page.cli(`migrations abort ${one.id}`), page.copy)),
    actions(page, [
      [p.paused ? `Resume migration ${one.id}` : `Pause migration ${one.id}`, `migrations ${p.paused ? "resume" : "pause"} ${one.id}`, { kind: p.paused ? "resume_migration" : "pause_migration", migration: one.id }],
      [`Hasten migration ${one.id}`, `migrations hasten ${one.id}`, { kind: "hasten_migration", migration: one.id }],
      [`Abort migration ${one.id}`, `migrations abort ${one.id}`, { kind: "abort_migration", migration: one.id }]]));
}

// -- bins -----------------------------------------------------------------------------------------

const MEASURES = { owners: ["Owner", null, "bins", null], records: ["Records a step", "records", "binRecords", short], busy: ["Work a step", "busy_us", "binBusy", (us) => millis(us / 1000)], bytes: ["State", "state_bytes", "binBytes", bytes] };

function binStrip(page, measure) {
  const bins = page.parts.bins;
  if (!bins) return h("p", { class: "empty" }, "Reading…");
  const values = MEASURES[measure][1] ? bins[MEASURES[measure][1]] : null;
  if (measure !== "owners" && !values) return h("p", { class: "empty" }, "Not measured yet: the leader publishes loads every few seconds.");
  const most = values ? Math.max(1e-9, ...values) : 1;
  const workers = [...new Set([...bins.owners, ...bins.moves_to.filter((to) => to >= 0)])].sort((a, b) => a - b);
  const title = (at) => `${bins.names[at] || "all keys"}: worker ${bins.owners[at]}${bins.moves_to[at] >= 0 ? `, moves to ${bins.moves_to[at]}` : ""}${values ? `, ${MEASURES[measure][3](values[at])}` : ""}`;
  return [
    h("div", { class: "strip", role: "img", "aria-label": `${plural(bins.owners.length, "bin")} by ${MEASURES[measure][0].toLowerCase()}, ${plural(bins.moves_to.filter((to) => to >= 0).length, "bin")} to move` },
      bins.owners.map((owner, at) => h("i", {
        key: at, title: title(at), class: `${bins.moves_to[at] >= 0 ? "moves" : ""}${bins.moves_now[at] ? " now" : ""}`,
        style: values ? { background: `color-mix(in oklab, var(--heat) ${Math.round((values[at] / most) * 100)}%, var(--cold))` } : { background: workerColor(owner), "--to": bins.moves_to[at] >= 0 ? workerColor(bins.moves_to[at]) : "transparent" },
      }))),
    values ? h("p", { class: "keys" }, `0 `, h("i", { class: "ramp", "aria-hidden": "true" }), ` ${MEASURES[measure][3](most)}`)
      : h("ul", { class: "keys" }, workers.map((worker) => h("li", { key: worker }, h("i", { style: { background: workerColor(worker) }, "aria-hidden": "true" }), `worker ${worker} (${whole(bins.owners.filter((one) => one === worker).length)})`)), h("li", null, h("i", { class: "hatch", "aria-hidden": "true" }), "to move, in the colour of the new owner")),
  ];
}

function binsView(page) {
  const bins = page.parts.bins, measure = MEASURES[page.ui.measure] ? page.ui.measure : bins?.records ? "records" : "owners";
  if (!bins) return h("p", { class: "empty" }, "Reading…");
  const order = bins.names.map((_, at) => at), by = bins[MEASURES[measure][1]] ?? bins.records;
  if (by) order.sort((a, b) => by[b] - by[a]);
  const most = Object.fromEntries(["records", "busy_us", "state_bytes"].map((field) => [field, largest(bins[field] ?? []) || null]));
  const cell = (field, definition, show) => (at) => h("span", { class: "nowrap" }, bar(bins[field] && most[field] ? bins[field][at] / most[field] : 0), " ", figure(bins[field] ? show(bins[field][at]) : UNKNOWN, definition));
  return [
    section("Bins",
      h("p", { class: "lead" }, `${plural(bins.total, "bin")} on ${plural(page.picture.workers.length, "worker")}${bins.total > bins.names.length ? `; the ${whole(bins.names.length)} busiest are shown` : ""}. `, label("Busiest bin", "skew"), ": ", figure(times(page.picture.load?.bin_skew), "skew", "load.bin_skew"), " the mean. ", label("Busiest worker", "skew"), ": ", figure(times(page.picture.load?.worker_skew), "skew", "load.worker_skew"), " the mean."),
      h("div", { class: "choice", role: "radiogroup", "aria-label": "Colour bins by" }, Object.entries(MEASURES).map(([name, [title]]) => h("label", { key: name }, h("input", { type: "radio", name: "measure", value: name, checked: name === measure, onchange: () => page.set({ measure: name }) }), title))),
      binStrip(page, measure)),
    section("The hottest", table("The hottest bins", [
      ["Bin", "bins", (at) => bins.names[at] || "all keys"], ["Worker", "worker", (at) => whole(bins.owners[at]), right],
      ["Records a step", "binRecords", cell("records", "binRecords", short), right], ["Work a step", "binBusy", cell("busy_us", "binBusy", (us) => millis(us / 1000)), right], ["State", "binBytes", cell("state_bytes", "binBytes", bytes), right],
    ], order.slice(0, 20), { key: (at) => bins.names[at] })),
    section("Hot keys", h("p", { class: "lead" }, "Keys with a large share of the records of a computation, lately. All records of a key are computed by one worker."), hotKeys(page)),
    section("By worker", workersTable(page)),
  ];
}

// -- key ------------------------------------------------------------------------------------------

function keyView(page) {
  const names = Object.keys(page.picture.computations).filter((name) => !name.endsWith(".dead")), found = page.asked.key;
  const send = (event) => {
    event.preventDefault();
    const form = event.target, query = new URLSearchParams({ computation: form.computation.value });
    for (const part of form.key.value.split("\n")) query.append("part", part);
    if (form.step.value.trim()) query.set("step", form.step.value.trim());
    page.ask("key", `key?${query}`);
  };
  const badStep = (event) => event.target.setCustomValidity("A step is a whole number, such as 120. Leave it empty for the newest.");
  const diff = found?.before && found?.data ? changed(found.before, found.data) : null;
  return [
    section("Look up a key", h("form", { class: "form", onsubmit: send },
      h("label", null, "Computation", h("select", { name: "computation" }, names.map((name) => h("option", { key: name, value: name, selected: name === page.ui.computation }, name)))),
      h("label", null, "Key", h("textarea", { name: "key", value: page.ui.key, rows: "1", required: true, spellcheck: "false", placeholder: "one line for each part of the key" })),
      h("label", null, "Step", h("input", { name: "step", inputmode: "numeric", pattern: "\\s*[0-9]*\\s*", placeholder: "newest", title: "A whole number; empty for the newest step", oninvalid: badStep, oninput: (event) => event.target.setCustomValidity("") })),
      h("button", { type: "submit", disabled: page.still }, found?.waits ? "Reading…" : "Look up")),
      h("p", { class: "lead" }, "Numbers are decimal, bytes hexadecimal, dates and times ISO 8601. Looking reads the key's bin from storage, and changes nothing."),
      found?.error && h("p", { class: "bad", role: "alert" }, found.error)),
    found?.data && section("What is stored",
      h("p", { class: "lead" }, `${found.data.computation}, key `, h("b", null, found.data.key.join(", ")), ` as of step ${whole(found.data.step)}: bin ${found.data.bin || "of all keys"}, worker ${found.data.worker}.`, diff && ` ${diff}`),
      found.data.sections.length ? found.data.sections.map((one) => [
        table(one.section, one.columns.map((name, at) => [name, at ? "key" : null, (row) => (row[at] == null ? UNKNOWN : row[at])]), one.rows, { key: (row) => JSON.stringify(row), showCaption: true }),
        one.more > 0 && h("p", { class: "empty" }, `${whole(one.more)} more rows are not shown.`)]) : h("p", { class: "empty" }, "Nothing is stored for this key."),
      h("p", { class: "more" }, command(page.cli(`state get ${quoted(found.data.computation)} ${found.data.key.map(quoted).join(" ")} --at-step ${found.data.step}`), page.copy))),
  ];
}

function changed(before, now) {
  if (before.computation !== now.computation || JSON.stringify(before.key) !== JSON.stringify(now.key) || before.step === now.step) return null;
  const rows = (of) => new Set(of.sections.flatMap((one) => one.rows.map((row) => JSON.stringify([one.section, row]))));
  const then = rows(before), here = rows(now);
  const added = [...here].filter((row) => !then.has(row)).length, gone = [...then].filter((row) => !here.has(row)).length;
  return `Against step ${whole(before.step)}: ${plural(added, "row")} new or changed, ${whole(gone)} gone or as they were.`;
}

// -- sources and sinks ----------------------------------------------------------------------------

function sinksView(page) {
  const { picture } = page, injectors = Object.entries(picture.injectors), sinks = Object.entries(picture.sinks);
  return [
    section("Sources", table("Injectors", [
      ["Injector", null, ([name]) => name],
      ["State", null, ([, of]) => (of.ended ? "ended" : of.is_idle ? "idle" : "reading")],
      ["Rate", "rate", ([name]) => figure(perSecond(page.live.graph?.nodes.find((node) => node.id === name)?.records_per_s), "rate"), right],
      ["Records", "read", ([name, of]) => figure(whole(of.read), "read", `injectors.${name}.read`), right],
      ["Waiting", "backlog", ([name, of]) => figure(whole(of.waiting), "backlog", `injectors.${name}.waiting`), right],
      ["Watermark", "watermark", ([, of]) => figure(eventTime(of.watermark), "watermark"), right],
      ["Moved", "moved", ([, of]) => figure(ago(of.moved_s), "moved"), right],
      ["Partitions", "partitions", ([, of]) => figure(`${whole(of.partitions.known)}${of.partitions.idle ? `, ${whole(of.partitions.idle)} idle` : ""}${of.partitions.ended ? `, ${whole(of.partitions.ended)} ended` : ""}`, "partitions"), right],
      ["Slowest partition", "partitions", ([, of]) => of.partitions.slowest || UNKNOWN],
      ["Slowest partition behind", "spread", ([, of]) => figure(seconds(of.partitions.spread_s), "spread"), right],
      ["Unreadable", "unread", ([name, of]) => figure(whole(of.skipped), "unread", `injectors.${name}.skipped`), right],
    ], injectors, { key: ([name]) => name }), injectors.map(([name, of]) => partitionsOf(page, name, of)), page.picture.load && h("p", { class: "lead" }, `${perSecond(page.picture.load.arrivals_per_s)} arrive${page.picture.load.saturated ? ", and more comes than is read" : ""}.`)),
    section("Sinks", table("Sinks", [
      ["Sink", null, ([name]) => name],
      ["State", null, ([, of]) => (of.waits ? h("b", { class: "bad" }, "✕ the input waits for it") : of.behind_steps > 1 ? "behind" : "✓ up to date")],
      ["Steps behind", "behind", ([, of]) => figure(whole(of.behind_steps), "behind"), right],
      ["Takes for a step", "takes", ([name, of]) => figure(millis(of.takes_ms), "takes", `sinks.${name}.takes_ms`), right],
      ["Receiving", "sinkBusy", ([, of]) => h("span", { class: "nowrap" }, bar(of.busy), " ", figure(percent(of.busy), "sinkBusy")), right],
      ["Undelivered for", "undelivered", ([, of]) => figure(seconds(of.behind_s), "undelivered"), right],
      ["Lag", "lag", ([name]) => figure(seconds(page.live.graph?.nodes.find((node) => node.id === `sink:${name}`)?.lag_s), "lag"), right],
      ["Delivered up to step", "delivered", ([name, of]) => figure(of.delivered < 0 ? "none" : whole(of.delivered), "delivered", `sinks.${name}.delivered`), right],
      ["Slow since", "slowSince", ([, of]) => figure(of.slow_s ? when(page.now - of.slow_s) : UNKNOWN, "slowSince"), right],
      ["Writes to", "target", ([, of]) => of.target || UNKNOWN, { text: true }],
    ], sinks, { key: ([name]) => name, rowClass: ([, of]) => (of.waits ? "has-critical" : of.behind_s > 10 || of.busy > 0.6 ? "has-warning" : null), empty: "This pipeline has no sinks." }),
      h("p", { class: "lead" }, label("Outbox", "outbox"), ": ", figure(plural(picture.outbox.steps, "step"), "outbox"), `, ${bytes(picture.outbox.nbytes)}.`)),
    section("Recent history", h("div", { class: "charts" }, page.moments.length > 1 && [lines("Outbox", page.moments, [["steps", "--c4", page.moments.map((one) => one.outbox_steps)]], short), anyKnown(page.moments.map((one) => one.backlog)) && lines("Backlog", page.moments, [["records", "--c2", page.moments.map((one) => one.backlog)]], short)])),
  ];
}

// Each partition of a source, those that are furthest behind first, and how far its files were read.
function partitionsOf(page, name, of) {
  const each = of.partitions.each ?? [];
  if (!each.length || (each.length === 1 && !each[0].name)) return null;
  const files = of.position?.files ?? [], read = (part) => {
    const own = files.filter((file) => file.name.includes(part.name));
    if (own.length === 1) return `${own[0].name}, up to ${bytes(own[0].read)}`;
    if (own.length) return plural(own.length, "file");
    const at = of.position?.[part.name];
    return at == null || typeof at === "object" ? UNKNOWN : String(at);
  };
  const place = typeof of.position?.folder === "string" ? of.position.folder : of.position?.folder?.path;
  return [
    h("h3", { key: `title ${name}`, class: "under" }, `Partitions of ${name}`, place && h("span", { class: "since" }, ` in ${place}`)),
    table(`Partitions of ${name}`, [
      ["Partition", null, (part) => part.name || "(only one)"],
      ["State", "partitionState", (part) => (part.state === "reading" && part.name === of.partitions.slowest && of.partitions.spread_s > 10 ? h("b", { class: "bad" }, "▲ holds the watermark") : part.state)],
      ["Newest record", "newest", (part) => figure(eventTime(part.newest), "newest"), right],
      ["Its age", "newest", (part) => figure(ago(part.newest_age_s), "newest"), right],
      ["Last heard of", "heard", (part) => figure(ago(part.active_s), "heard"), right],
      ["Read up to", "position", read, { text: true }],
    ], each, { key: (part) => part.name }),
    of.partitions.known > each.length && h("p", { class: "empty" }, `${whole(of.partitions.known - each.length)} more are not shown.`)];
}

// -- workers --------------------------------------------------------------------------------------

function workersTable(page) {
  const workers = page.picture.workers.map((of, number) => ({ ...of, number }));
  const most = largest(workers.map((of) => of.records_per_s)) || 1;
  return table("Workers", [
    ["Worker", "worker", (of) => [h("i", { class: "swatch", style: { background: workerColor(of.number) }, "aria-hidden": "true" }), whole(of.number)]],
    ["Host", "host", (of) => of.host || "any"],
    ["Bins", "bins", (of) => figure(whole(of.bins), "bins", `workers.${of.number}.bins`), right],
    ["Memory", "memory", (of) => figure(bytes(of.memory_bytes), "memory", `workers.${of.number}.memory`), right],
    ["Process", "process", (of) => figure(of.pid == null ? UNKNOWN : String(of.pid), "process"), right],
    ["State", "stateBytes", (of) => figure(bytes(of.state_bytes), "stateBytes"), right],
    ["Rate", "rate", (of) => h("span", { class: "nowrap" }, bar((of.records_per_s ?? 0) / most), " ", figure(perSecond(of.records_per_s), "rate")), right],
    ["Working", "workerBusy", (of) => h("span", { class: "nowrap" }, bar(of.busy), " ", figure(percent(of.busy), "workerBusy")), right],
  ], workers, { key: (of) => of.number });
}

// How long each computation works on each worker: the darker a cell, the longer.
const MOST_COLUMNS = 16;
function heatTable(page) {
  const work = Object.entries(page.picture.load?.work ?? {}).sort((a, b) => b[1].all_ms - a[1].all_ms);
  if (!work.length) return h("p", { class: "empty" }, "Not measured yet: the leader publishes loads every few seconds.");
  const totals = work[0][1].by_worker_ms.map((_, at) => work.reduce((sum, [, of]) => sum + of.by_worker_ms[at], 0));
  const busiest = totals.map((_, at) => at).sort((a, b) => totals[b] - totals[a]).slice(0, MOST_COLUMNS).sort((a, b) => a - b);
  const most = Math.max(1e-9, ...work.flatMap(([, of]) => of.by_worker_ms));
  return [
    busiest.length < totals.length && h("p", { class: "lead" }, `The ${MOST_COLUMNS} busiest of ${whole(totals.length)} workers.`),
    table("Work in a step, by computation and worker", [
      ["Computation", null, ([name]) => name],
      ["All", "work", ([name, of]) => figure(millis(of.all_ms), "work", `work.${name}.all_ms`), right],
      ["Busiest", "workSkew", ([, of]) => figure(times(of.skew), "workSkew"), right],
      ...busiest.map((at) => [`Worker ${at}`, "work", ([name, of]) => h("span", { class: "heat", style: { "--share": `${Math.round((of.by_worker_ms[at] / most) * 45)}%` } }, figure(millis(of.by_worker_ms[at]), "work", `work.${name}.${at}`)), right]),
    ], work, { key: ([name]) => name }),
    h("p", { class: "keys" }, "0 ", h("i", { class: "ramp soft", "aria-hidden": "true" }), ` ${millis(most)}`)];
}

function hotKeys(page) {
  const keys = page.picture.load?.hot_keys ?? [];
  const title = (of) => of.key.join(", ") || "(empty)";
  return table("Hot keys", [
    ["Key", "key", (of) => (of.key == null ? "not shown here" : page.still ? title(of) : h("a", { href: page.link("key", { computation: of.computation, key: of.key.join("\n") }) }, title(of)))],
    ["Computation", null, (of) => of.computation],
    ["Share of its records", "hotKey", (of) => h("span", { class: "nowrap" }, bar(of.share), " ", figure(percent(of.share), "hotKey")), right],
    ["Between", "hotKey", (of) => figure(`${percent(of.at_least)} and ${percent(of.at_most)}`, "hotKey"), right],
    ["Bin", "bins", (of) => of.bin || "all keys"],
    ["Worker", "worker", (of) => whole(of.worker), right],
  ], keys, { key: (of) => `${of.computation} ${of.bin} ${of.key}${of.share}`, empty: page.picture.load ? "No key has more than 1 % of the records of its computation." : "Not measured yet: the leader publishes loads every few seconds." });
}

const ROLES = { leads: "leads", waits: "stands by", asks: "asks for a handover", ended: "ended" };

function workersView(page) {
  const { picture } = page;
  return [
    section("Drivers", table("Drivers", [
      ["Where", null, (of) => of.where],
      ["Role", "leader", (of) => (of.is_recent || of.role === "ended" ? ROLES[of.role] : h("b", { class: "bad" }, `✕ silent (${ROLES[of.role]})`))],
      ["Epoch", "epoch", (of) => whole(of.epoch), right],
      ["Last heartbeat", "leader", (of) => figure(ago(of.silent_s), "leader"), right],
      ["Since", null, (of) => dateTime(of.since_us / 1e6), right],
      ["Why", null, (of) => of.why || UNKNOWN, { text: true }],
    ], picture.drivers, { key: (of) => `${of.where} ${of.since_us}`, empty: "No driver has a heartbeat here." })),
    section("Workers", workersTable(page), picture.drained_hosts.length > 0 && h("p", { class: "lead" }, `Drained hosts: ${picture.drained_hosts.join(", ")}.`), picture.load && h("p", { class: "lead" }, `Measured as of step ${whole(picture.load.step)}, ${ago(picture.load.age_s)}.`)),
    section("Computations on workers", h("p", { class: "lead" }, "How long each computation works in a step, on each worker. A cell that stands out in its row is a hot bin or a hot key."), heatTable(page)),
    picture.load?.decision && section("Scaling policy", h("p", null, h("b", null, picture.load.decision.policy), ": ", figure(picture.load.decision.wish, "decision"))),
    section("State in memory", softState(page)),
  ];
}

// -- history --------------------------------------------------------------------------------------

function historyView(page) {
  const events = page.parts.events?.events;
  const names = { claim: "claim", command: "command", refused: "refused", migration: "migration", checkpoint: "checkpoint", stop: "stop", ended: "end", sink: "sink", watermark: "watermark" };
  return [
    section("Recent history", historyCharts(page)),
    section("What happened", events ? table("Events", [
      ["Step", "step", (one) => whole(one.step)], ["When", null, (one) => when(one.at_s)], ["What", "event", (one) => (one.kind === "refused" ? h("b", { class: "bad" }, "✕ refused") : names[one.kind])], ["Details", null, (one) => one.text, { text: true }],
    ], events, { key: (one) => `${one.step} ${one.text}` }) : h("p", { class: "empty" }, "Reading…")),
  ];
}

function alertsView(page) {
  return [alerts(page, page.live.alerts), h("p", { class: "lead" }, "These are seen while somebody looks. For alerts that reach you, the folder ops/prometheus of Headrace has the same conditions as rules for Prometheus.")];
}

export const VIEWS = {
  overview: ["Overview", overview, ["migrations"]],
  graph: ["Graph", graphView, []],
  steps: ["Steps", stepsView, ["steps"]],
  watermarks: ["Watermarks", watermarks, []],
  migrations: ["Migrations", migrations, ["migrations", "bins"]],
  bins: ["Bins", binsView, ["bins"]],
  key: ["Key", keyView, []],
  sinks: ["Sources and sinks", sinksView, []],
  workers: ["Workers", workersView, []],
  history: ["History", historyView, ["events", "migrations"]],
  alerts: ["Alerts", alertsView, []],
};
const TITLES = Object.fromEntries(Object.entries(VIEWS).map(([name, [title]]) => [name, title]));
