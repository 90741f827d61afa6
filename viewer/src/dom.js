// Small helpers to build the page. Text from users only ever becomes text, never HTML.

/** Make an element; properties that begin with "on" are listeners, others are attributes. */
export function h(tag, properties = {}, ...children) {
  const svg = ["svg", "rect", "line", "path", "text", "g", "circle"].includes(tag);
  const element = svg
    ? document.createElementNS("http://www.w3.org/2000/svg", tag)
    : document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.flat(Infinity).filter((child) => child != null && child !== false));
  return element;
}

export const find = (id) => document.getElementById(id);

/** Write a number with some significant digits and no needless zeros. */
export function number(value, digits = 3) {
  if (value == null) return "-";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-4) return value.toExponential(digits - 1);
  return String(Number(value.toPrecision(Math.max(digits, Math.ceil(Math.log10(size))))));
}

export const count = (value) => value.toLocaleString("en");

/** Write a share in whole per cent, never as certain, as `in_percent` does (src/vbreg/types.py). */
export function percent(value) {
  if (value > 0.005 && value < 0.995) return `${(100 * value).toFixed(0)} %`;
  return value > 0.5 ? "over 99 %" : "under 1 %";
}

/** Save content as a file of the user's. */
export function save(blob, name) {
  const link = h("a", { href: URL.createObjectURL(blob), download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** Make buttons of which one is pressed. */
export function choice(label, options, chosen, changed) {
  const buttons = options.map(([value, text]) =>
    h("button", { type: "button", "aria-pressed": String(value === chosen), onclick: () => pick(value) }, text),
  );
  const pick = (value, tell = true) => {
    buttons.forEach((b, i) => b.setAttribute("aria-pressed", String(options[i][0] === value)));
    if (tell) changed(value);
  };
  const element = h("div", { class: "choice", role: "group", "aria-label": label }, buttons);
  return { element, pick };
}

/** Return a row that names a cloud. */
export function fileRow(role, name, points, button) {
  const known = points != null;
  return h(
    "div",
    { class: "file" },
    h("i", { class: `dot ${role}` }),
    h("span", {}, h("strong", { title: name }, known ? name : role), h("small", {}, known ? `${role}, ${count(points)} points` : "no file yet")),
    button,
  );
}
