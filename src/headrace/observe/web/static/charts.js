// Charts over time, and bars. Lines are drawn by uPlot; all else is SVG or CSS.
import { h } from "./dom.js";
import { clock, UNKNOWN } from "./texts.js";

const charts = new WeakMap();
// Steps between marks that are round for people: in seconds, and in milliseconds.
const ROUND_S = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 43200, 86400, 172800, 604800, 2592000];
const INCREMENTS = { seconds: ROUND_S, millis: ROUND_S.map((one) => one * 1000) };
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const shared = () => globalThis.uPlot.sync("headrace");

// A chart of moments. series: [[title, color variable, values, width?]]; bands: [[from, to]].
export function lines(name, moments, series, show, bands = []) {
  const summary = `${name}: ${series.map(([title, , values]) => `${title} ${show(last(values))}`).join(", ")} now`;
  return h("figure", { class: "chart", key: name },
    h("figcaption", null, name, h("span", { class: "legend" }, series.map(([title, color, values]) =>
      h("span", { key: title }, h("i", { style: { background: `var(${color})` }, "aria-hidden": "true" }), `${title} `, h("b", null, show(last(values))))), bands.length > 0 && h("span", { key: "bands" }, h("i", { style: { background: "var(--band)" }, "aria-hidden": "true" }), "migration"))),
    h("div", { class: "plot", role: "img", "aria-label": summary, widget: (node, isNew) => drawChart(node, isNew, moments, series, show, bands) }));
}

// The top of a chart. A few moments that stand far above all others, such as a cold start, are cut off, so that the rest is not flat.
function top(data, high) {
  const all = data.slice(1).flat().filter((one) => one != null).sort((a, b) => a - b);
  const usual = all[Math.floor(all.length * 0.95)] ?? 0;
  const highest = usual > 0 && high > 4 * usual ? 2 * usual : high;
  return highest > 0 ? highest * 1.1 : 1;
}

const last = (values) => values.findLast((value) => value != null);

function drawChart(node, isNew, moments, series, show, bands) {
  const data = [moments.map((one) => one.at_s), ...series.map(([, , values]) => values.map((value) => value ?? null))];
  const theme = css("--ink");
  let chart = charts.get(node);
  if (chart && chart.theme === theme && chart.count === series.length) {
    chart.bands = bands;
    chart.plot.setData(data);
    return;
  }
  chart?.plot.destroy();
  chart?.resize.disconnect();
  const width = () => Math.max(120, node.clientWidth);
  chart = { theme, count: series.length, bands };
  chart.plot = new globalThis.uPlot({
    width: width(), height: 150, padding: [8, 24, 0, 0],
    legend: { show: false },
    cursor: { sync: { key: shared().key }, y: false, points: { size: 5 } },
    scales: { y: { range: (plot, low, high) => [0, top(plot.data, high)] } },
    axes: [
      { stroke: css("--quiet"), grid: { show: false }, ticks: { show: false }, size: 22, font: "11px system-ui", values: (_, at) => at.map((one) => clock(one)), space: 80 },
      { stroke: css("--quiet"), grid: { stroke: css("--line"), width: 1 }, ticks: { show: false }, size: 62, font: "11px system-ui", values: (_, at) => at.map((one) => show(one)), space: 34, incrs: INCREMENTS[show.name] },
    ],
    series: [{}, ...series.map(([title, color, , thick]) => ({ label: title, stroke: css(color), width: thick ?? 1.75, points: { show: false }, spanGaps: false }))],
    hooks: { drawClear: [(plot) => shade(plot, chart.bands)] },
  }, data, node);
  chart.resize = new ResizeObserver(() => chart.plot.setSize({ width: width(), height: 150 }));
  chart.resize.observe(node);
  charts.set(node, chart);
}

function shade(plot, bands) {
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.fillStyle = css("--band");
  for (const [from, to] of bands) {
    const left = Math.max(bbox.left, plot.valToPos(from, "x", true));
    const right = Math.min(bbox.left + bbox.width, to == null ? Infinity : plot.valToPos(to, "x", true));
    if (right > left) ctx.fillRect(left, bbox.top, right - left, bbox.height);
  }
  ctx.restore();
}

// Stacked bars, one for each step. steps: [{key, title, parts: [[color, value]], mark}].
export function stackedBars(name, steps, show, onPick, picked) {
  const top = Math.max(1e-9, ...steps.map((one) => one.parts.reduce((sum, [, value]) => sum + value, 0)));
  const move = (event, at) => {
    const next = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: steps.length - 1 }[event.key];
    if (next == null || !steps[next]) return;
    event.preventDefault();
    onPick(steps[next].key);
    event.currentTarget.parentElement.children[next]?.focus();
  };
  return h("div", { class: "bars", role: "listbox", "aria-label": name },
    steps.map((one, at) => h("div", {
      key: one.key, role: "option", tabindex: one.key === picked || (picked == null && at === steps.length - 1) ? "0" : "-1",
      "aria-selected": one.key === picked ? "true" : "false", class: `stack${one.mark ? " marked" : ""}`,
      "aria-label": `${one.title}: ${show(one.parts.reduce((sum, [, value]) => sum + value, 0))}`,
      onclick: () => onPick(one.key), onkeydown: (event) => move(event, at),
    }, one.parts.map(([color, value], part) => h("i", { key: part, style: { height: `${(value / top) * 100}%`, background: color } })))),
    h("span", { class: "scale", "aria-hidden": "true" }, Number.isFinite(top) && top > 1e-8 ? show(top) : UNKNOWN));
}
