// The pipeline as a picture: parts as boxes in columns, streams as lines as thick as their rate.
import { h } from "./dom.js";
import { perSecond, percent, seconds, whole } from "./texts.js";

const WIDE = 190, NARROW = 150, HEIGHT = 66, MOST_PARTS = 150;
const KINDS = { injector: "injector", ids: "record ids", "dead letters": "dead letters", computation: "computation", sink: "sink" };

export function drawing(graph, levels, picked, onPick) {
  if (graph.nodes.length > MOST_PARTS) return h("p", { class: "empty" }, `${whole(graph.nodes.length)} parts are too many to draw: see the table below.`);
  const placed = place(graph), width = placed.isTall ? NARROW : WIDE;
  const reach = picked ? connected(graph, picked) : null;
  const dim = (name) => (reach && !reach.has(name) ? " dim" : "");
  const most = Math.max(1, ...graph.edges.map((edge) => edge.rows_per_s ?? 0));
  return h("div", { class: "scroll graph", tabindex: "0", role: "region", "aria-label": "The pipeline, drawn. The table below says the same." },
    h("svg", { class: placed.isTall ? "tall" : "", width: placed.width, height: placed.height, viewBox: `0 0 ${placed.width} ${placed.height}`, role: "group", "aria-label": "Pipeline graph" },
      placed.edges.map((edge) => h("g", { key: `${edge.of.source} ${edge.of.stream} ${edge.of.target}`, class: `edge${reach && !(reach.has(edge.of.source) && reach.has(edge.of.target)) ? " dim" : ""}` },
        h("path", { d: edge.path, style: { "stroke-width": `${1 + 5 * Math.sqrt((edge.of.rows_per_s ?? 0) / most)}px` } }),
        edge.of.rows_per_s != null && h("text", { x: edge.x, y: edge.y - 6, "text-anchor": "middle" }, perSecond(edge.of.rows_per_s)))),
      graph.nodes.map((node) => box(node, placed.at[node.id], width, levels[node.id], dim(node.id), node.id === picked, onPick))));
}

function box(node, at, width, level, dim, isPicked, onPick) {
  const facts = [
    node.kind !== "sink" && node.records_per_s != null && perSecond(node.records_per_s),
    node.lag_s != null && `lag ${seconds(node.lag_s)}`,
  ].filter(Boolean);
  const bad = [node.late && `${whole(node.late)} late`, node.skipped && `${whole(node.skipped)} skipped`].filter(Boolean).join(", ");
  const texts = [
    `${level ? (level === "critical" ? "✕ " : "▲ ") : ""}${cut(node.name, width === WIDE ? 21 : 15)}`,
    bad || (node.undelivered_s >= 5 ? `undelivered for ${seconds(node.undelivered_s)}` : node.share != null ? `${percent(node.share)} of code time` : KINDS[node.kind]),
    facts.join(" · "),
  ];
  const pick = () => onPick(isPicked ? null : node.id);
  return h("g", {
    key: node.id, class: `node ${node.kind.replace(" ", "-")} ${level ?? ""}${dim}${isPicked ? " picked" : ""}`, transform: `translate(${at.x - width / 2} ${at.y - HEIGHT / 2})`,
    role: "button", tabindex: "0", "aria-pressed": isPicked ? "true" : "false",
    onclick: pick, onkeydown: (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); pick(); } },
  },
    h("rect", { width, height: HEIGHT, rx: node.kind === "computation" ? 8 : node.kind === "sink" ? 2 : 30 }),
    node.share != null && h("rect", { class: "share", x: 8, y: HEIGHT - 7, width: (width - 16) * node.share, height: 3, rx: 1.5 }),
    ["name", "kind", "fact"].map((kind, line) => h("text", { key: kind, class: kind, x: 14, y: 22 + 16 * line }, `${texts[line]} `)));
}

const cut = (text, most) => { const all = [...text]; return all.length > most ? `${all.slice(0, most - 1).join("")}…` : text; };

let known = { shape: "", placed: null };
function place(graph) {
  const isTall = window.innerWidth < 700; // a narrow screen has room below
  const shape = JSON.stringify([isTall, graph.nodes.map((n) => n.id), graph.edges.map((e) => [e.source, e.target, e.stream])]);
  if (known.shape !== shape) known = { shape, placed: layOut(graph, isTall) };
  const edges = known.placed.edges.map((edge, at) => ({ ...edge, of: graph.edges[edge.index] ?? graph.edges[at] }));
  return { ...known.placed, edges };
}

function layOut(graph, isTall) {
  const width = isTall ? NARROW : WIDE;
  const g = new globalThis.dagre.graphlib.Graph({ multigraph: true });
  g.setGraph({ rankdir: isTall ? "TB" : "LR", nodesep: isTall ? 10 : 22, ranksep: isTall ? 40 : 84, marginx: isTall ? 2 : 12, marginy: 16 });
  g.setDefaultEdgeLabel(() => ({}));
  for (const node of graph.nodes) g.setNode(`n:${node.id}`, { width, height: HEIGHT });
  const drawn = new Set(graph.nodes.map((node) => node.id));
  graph.edges.forEach((edge, index) => { if (drawn.has(edge.source) && drawn.has(edge.target)) g.setEdge(`n:${edge.source}`, `n:${edge.target}`, { index }, String(index)); });
  globalThis.dagre.layout(g);
  const at = {};
  for (const node of graph.nodes) at[node.id] = g.node(`n:${node.id}`);
  const edges = g.edges().map((one) => {
    const { points: inner, index } = g.edge(one);
    const from = g.node(one.v), to = g.node(one.w);
    const ends = isTall ? [{ x: from.x, y: from.y + HEIGHT / 2 }, { x: to.x, y: to.y - HEIGHT / 2 }] : [{ x: from.x + width / 2, y: from.y }, { x: to.x - width / 2, y: to.y }];
    const points = [ends[0], ...inner.slice(1, -1), ends[1]];
    const middle = points[Math.floor(points.length / 2)];
    return { index, path: smooth(points, isTall), x: middle.x, y: middle.y };
  });
  const size = g.graph();
  return { at, edges, isTall, width: Math.ceil(size.width), height: Math.ceil(size.height) };
}

function smooth(points, isTall) {
  const [first, ...rest] = points.map((p) => ({ x: Math.round(p.x * 10) / 10, y: Math.round(p.y * 10) / 10 }));
  let path = `M${first.x} ${first.y}`, before = first;
  for (const to of rest) {
    const mid = isTall ? (before.y + to.y) / 2 : (before.x + to.x) / 2;
    path += isTall ? ` C${before.x} ${mid} ${to.x} ${mid} ${to.x} ${to.y}` : ` C${mid} ${before.y} ${mid} ${to.y} ${to.x} ${to.y}`;
    before = to;
  }
  return path;
}

// A part with all that is upstream and downstream of it.
function connected(graph, name) {
  const walk = (from, a, b, found = new Set([from])) => {
    for (const edge of graph.edges) if (edge[a] === from && !found.has(edge[b])) { found.add(edge[b]); walk(edge[b], a, b, found); }
    return found;
  };
  return new Set([...walk(name, "source", "target"), ...walk(name, "target", "source")]);
}
