// The parts from which views are built: numbers with their definitions, tables, tiles, commands.
import { h } from "./dom.js";
import { DEFINITIONS } from "./definitions.js";

// A label that tells its definition when it is pointed at or focused.
export function label(text, definition) {
  return h("button", { type: "button", class: "def", "data-def": definition }, text);
}

// A number with its definition. `from` names the field of the picture, for tests and for people.
export function figure(text, definition, from) {
  return h("span", { class: "figure", "data-def": definition, "data-from": from }, text);
}

export function tile(title, definition, value, detail, from) {
  return h("div", { class: "tile", key: title },
    h("div", { class: "tile-title" }, label(title, definition)),
    h("div", { class: "tile-value" }, figure(value, definition, from)),
    detail && h("div", { class: "tile-detail" }, detail));
}

// columns: [title, definition, cell(row), {right, sort}]
export function table(caption, columns, rows, options = {}) {
  if (!rows.length) return h("p", { class: "empty" }, options.empty ?? "Nothing yet.");
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    h("table", null,
      h("caption", { class: options.showCaption ? "" : "sr" }, caption),
      h("thead", null, h("tr", null, columns.map(([title, definition, , how]) =>
        h("th", { scope: "col", class: how?.right ? "right" : null }, definition ? label(title, definition) : title)))),
      h("tbody", null, rows.map((row, at) =>
        h("tr", { key: options.key?.(row) ?? at, class: options.rowClass?.(row) ?? null },
          columns.map(([title, definition, cell, how], column) =>
            h(column === 0 ? "th" : "td", { scope: column === 0 ? "row" : null, class: how?.right ? "right" : how?.text ? "text" : null, "data-title": column === 0 ? null : title, "data-def": column === 0 ? null : definition }, cell(row))))))));
}

export function section(title, ...content) {
  return h("section", { key: title }, h("h2", null, title), ...content);
}

// A command that can be copied.
export function command(text, onCopy) {
  return h("span", { class: "command" }, h("code", null, text),
    h("button", { type: "button", class: "copy", "aria-label": `Copy: ${text}`, onclick: () => onCopy(text) }, "Copy"));
}

// Buttons that send commands, each after a confirmation that shows the same as a command line.
// choices: [title, command line, body]. Nothing is shown where commands are not allowed.
export function actions(page, choices) {
  const { allowed, confirm, sent, choose, send } = page.commands;
  if (!allowed) return null;
  const key = JSON.stringify(choices.map(([, , body]) => body));
  const chosen = confirm?.key === key ? confirm : null;
  return h("div", { class: "actions" },
    h("div", { class: "more" }, choices.map(([title, line, body]) => h("button", { key: title, type: "button", onclick: () => choose({ key, title, line, body }) }, title))),
    chosen && h("div", { class: "confirm", role: "alertdialog", "aria-label": chosen.title, onkeydown: (event) => { if (event.key === "Escape") choose(null); } },
      h("p", null, h("b", null, `${chosen.title}? `), "It is sent to the pipeline as this would be:"), h("code", null, page.cli(chosen.line)),
      h("div", { class: "more" }, h("button", { type: "button", widget: (node, isNew) => { if (isNew) { node.textContent = "Send"; node.focus(); } }, onclick: () => { choose(null); send(chosen.body); } }), h("button", { type: "button", class: "link", onclick: () => choose(null) }, "Cancel"))),
    sent && h("p", { role: "status", class: sent.bad ? "bad" : "" }, sent.text));
}

export function bar(share, className = "") {
  const width = `${Math.max(0, Math.min(1, share ?? 0)) * 100}%`;
  return h("span", { class: `bar ${className}`, "aria-hidden": "true" }, h("span", { style: { width } }));
}

// -- the tooltip: one for the whole page ----------------------------------------------------------

export function installTip(storage, onPage) {
  const tip = document.getElementById("tip");
  let owner = null, soon = 0;
  function show(node) {
    const found = DEFINITIONS[node.dataset.def];
    if (!found) return;
    owner?.removeAttribute("aria-describedby");
    owner = node;
    const text = document.createElement("span");
    text.textContent = found[0];
    const code = document.createElement("code");
    code.textContent = `headrace ${found[1].replace("{}", storage())}`;
    tip.replaceChildren(text, code);
    tip.hidden = false;
    owner.setAttribute("aria-describedby", "tip");
    const at = node.getBoundingClientRect(), size = tip.getBoundingClientRect();
    const left = Math.max(8, Math.min(at.left, window.innerWidth - size.width - 8));
    const below = at.bottom + 6 + size.height < window.innerHeight;
    tip.style.left = `${left}px`;
    tip.style.top = `${below ? at.bottom + 6 : Math.max(8, at.top - size.height - 6)}px`;
  }
  function hide() {
    clearTimeout(soon);
    owner?.removeAttribute("aria-describedby");
    owner = null;
    tip.hidden = true;
  }
  const of = (event) => (event.target instanceof Element ? event.target.closest("[data-def]") : null);
  // A label tells at once; a number only when the pointer rests on it, so that the tip does not cover others on the way.
  onPage.addEventListener("pointerover", (event) => {
    const node = of(event);
    if (node === owner) return;
    hide();
    if (node?.matches("button")) show(node); else if (node) soon = setTimeout(() => show(node), 600);
  });
  onPage.addEventListener("focusin", (event) => { const node = of(event); if (node) show(node); else hide(); });
  onPage.addEventListener("focusout", hide);
  onPage.addEventListener("pointerleave", hide);
  onPage.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
  window.addEventListener("scroll", hide, { passive: true, capture: true });
}
