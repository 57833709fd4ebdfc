// Numbers, times and sizes as people read them. A value that is not known is "–", never 0.

export const UNKNOWN = "–";
const WHOLE = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const SHORT = new Intl.NumberFormat("en-US", { maximumSignificantDigits: 3, notation: "compact" });
const FEW = new Intl.NumberFormat("en-US", { maximumSignificantDigits: 3 });

const isKnown = (value) => value != null && Number.isFinite(value);

export const whole = (value) => (isKnown(value) ? WHOLE.format(value) : UNKNOWN);
export const short = (value) => (isKnown(value) ? (Math.abs(value) < 1000 ? FEW.format(value) : SHORT.format(value)) : UNKNOWN);
export const perSecond = (value) => (isKnown(value) ? `${short(value)}/s` : UNKNOWN);
export const percent = (share) => (isKnown(share) ? `${FEW.format(Math.round(share * 1000) / 10)} %` : UNKNOWN);
export const times = (value) => (isKnown(value) ? `${FEW.format(value)} ×` : UNKNOWN);
export const millis = (ms) => (!isKnown(ms) ? UNKNOWN : ms >= 1000 ? seconds(ms / 1000) : ms > 0 && ms < 0.1 ? `${FEW.format(Math.max(1, Math.round(ms * 1000)))} µs` : `${FEW.format(ms)} ms`);

export function seconds(value) {
  if (!isKnown(value)) return UNKNOWN;
  const units = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  for (const [size, unit] of units) if (Math.abs(value) >= size) return `${(value / size).toFixed(1).replace(/\.0$/, "")} ${unit}`;
  return `${Math.round(value * 1000)} ms`;
}

export const ago = (value) => (isKnown(value) ? `${seconds(value)} ago` : UNKNOWN);

export function bytes(value) {
  if (!isKnown(value)) return UNKNOWN;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (Math.abs(value) >= 1024 && at < units.length - 1) { value /= 1024; at += 1; }
  return `${FEW.format(value)} ${units[at]}`;
}

const two = (number) => String(number).padStart(2, "0");
export function clock(atS) {
  if (!isKnown(atS)) return UNKNOWN;
  const at = new Date(atS * 1000);
  return `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}
export function dateTime(atS) {
  if (!isKnown(atS)) return UNKNOWN;
  const at = new Date(atS * 1000);
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${clock(atS)}`;
}
export const plural = (count, one, many = `${one}s`) => `${whole(count)} ${count === 1 ? one : many}`;

// The watermark of the picture: null before any, "end" after all. Of a time of today, the date goes without saying.
export const eventTime = (of) => (of?.text == null ? "none yet" : of.text === "end" ? "end of input" : isToday(of.text) ? of.text.slice(11).replace(/(\.\d{3})\d*/, "$1").replace("Z", "") : of.text.replace("T", " ").replace(/(\.\d{3})\d*/, "$1"));
const isToday = (text) => text.slice(0, 10) === new Date().toISOString().slice(0, 10);

// A sentence of the server's with its times as this page writes them.
export const readable = (text) => text?.replace(/\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z/g, (found) => `${isToday(found) ? found.slice(11, 19) : found.slice(0, 19).replace("T", " ")} UTC`);
// The clock of a moment, with its date unless that is today's.
export const when = (atS) => (isKnown(atS) && new Date(atS * 1000).toDateString() !== new Date().toDateString() ? dateTime(atS) : clock(atS));
