// Draws the page from plain data. `h` describes an element, `render` makes the document equal to a
// description and leaves alone what is equal already, so focus, selection and scroll positions stay.
// Texts only ever become text nodes, and no attribute holds markup.

const SVG = "http://www.w3.org/2000/svg";
const PROPERTIES = new Set(["value", "checked", "open"]);

// Describes an element. Props that begin with "on" are handlers; `key` identifies it among its
// siblings; `style` is an object; `widget` takes over an element's content: widget(node, isNew).
export function h(tag, props, ...children) {
  return { tag, props: props ?? {}, children: children.flat(Infinity).filter((c) => c != null && c !== false) };
}

export function render(parent, ...described) {
  patchChildren(parent, described.flat(Infinity).filter((c) => c != null && c !== false), parent.namespaceURI === SVG);
}

function patchChildren(parent, described, inSvg) {
  const byKey = new Map();
  for (const node of parent.childNodes) if (node.headraceKey != null) byKey.set(node.headraceKey, node);
  let at = parent.firstChild;
  for (const one of described) {
    const key = one.props?.key;
    let node = key != null ? byKey.get(key) : at;
    if (node && (key != null ? false : node.headraceKey != null)) node = null;
    if (!node || !isAlike(node, one)) {
      node = create(one, inSvg);
      parent.insertBefore(node, at);
    } else if (node !== at) {
      parent.insertBefore(node, at);
    } else {
      at = at.nextSibling;
    }
    patch(node, one);
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

function isAlike(node, one) {
  if (one.tag == null) return node.nodeType === Node.TEXT_NODE;
  return node.nodeType === Node.ELEMENT_NODE && node.localName === one.tag && node.headraceKey === one.props.key;
}

function create(one, inSvg) {
  if (one.tag == null) return document.createTextNode(String(one));
  const isSvg = inSvg || one.tag === "svg";
  const node = isSvg ? document.createElementNS(SVG, one.tag) : document.createElement(one.tag);
  node.headraceKey = one.props.key;
  node.headraceProps = {};
  return node;
}

function patch(node, one) {
  if (one.tag == null) {
    const text = String(one);
    if (node.nodeValue !== text) node.nodeValue = text;
    return;
  }
  const before = node.headraceProps ?? {};
  for (const name of Object.keys(before)) if (!(name in one.props)) setProperty(node, name, null, before[name]);
  for (const [name, value] of Object.entries(one.props)) setProperty(node, name, value, before[name]);
  node.headraceProps = one.props;
  if (one.props.widget) one.props.widget(node, !before.widget);
  else patchChildren(node, one.children, node.namespaceURI === SVG && one.tag !== "foreignObject");
}

function setProperty(node, name, value, before) {
  if (name === "key" || name === "widget" || value === before) return;
  if (name.startsWith("on")) node[name] = value;
  else if (name === "style") setStyle(node, value ?? {}, before ?? {});
  else if (PROPERTIES.has(name)) { if (node[name] !== value) node[name] = value ?? ""; }
  else if (value == null || value === false) node.removeAttribute(name);
  else node.setAttribute(name, value === true ? "" : String(value));
}

function setStyle(node, style, before) {
  for (const name of Object.keys(before)) if (!(name in style)) node.style.removeProperty(name);
  for (const [name, value] of Object.entries(style)) if (before[name] !== value) node.style.setProperty(name, value);
}
