// Histograms, as drawings of the page.
import { h } from "./dom.js";

const WIDTH = 300;
const HEIGHT = 84;
const BASE = 66; // where the bars stand

/** Count values into bins of equal width between two limits, apart for those that agree or not. */
export function counted(values, agrees, low, high, bins) {
  const rows = [new Uint32Array(bins), new Uint32Array(bins)];
  values.forEach((value, n) => {
    const bin = Math.floor(((value - low) / (high - low)) * bins);
    rows[agrees[n] ? 1 : 0][Math.min(bins - 1, Math.max(0, bin))]++;
  });
  return rows;
}

/** Draw a histogram: inliers stand below, outliers upon them; a line marks a limit. */
export function histogram({ title, values, agrees, low, high, bins = 30, mark, labels }) {
  const [out, inside] = counted(values, agrees, low, high, bins);
  const most = Math.max(1, ...out.map((n, i) => n + inside[i]));
  const height = (n) => (Math.sqrt(n / most) * (BASE - 6)).toFixed(2); // roots, so that few are seen
  const step = WIDTH / bins;
  const bars = [];
  for (let i = 0; i < bins; i++) {
    const x = (i * step + 0.5).toFixed(2);
    const width = (step - 1).toFixed(2);
    const whole = height(out[i] + inside[i]);
    const lower = ((whole * inside[i]) / Math.max(1, out[i] + inside[i])).toFixed(2);
    bars.push(h("rect", { class: "out", x, width, y: BASE - whole, height: whole - lower }));
    bars.push(h("rect", { class: "in", x, width, y: BASE - lower, height: lower }));
  }
  const at = mark == null ? null : Math.min(WIDTH, Math.max(0, ((mark - low) / (high - low)) * WIDTH));
  const drawing = h(
    "svg",
    { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": title, class: "plot" },
    bars,
    h("line", { class: "axis", x1: 0, x2: WIDTH, y1: BASE + 0.5, y2: BASE + 0.5 }),
    at == null ? null : h("line", { class: "mark", x1: at, x2: at, y1: 0, y2: BASE }),
    h("text", { x: 0, y: HEIGHT - 4 }, labels[0]),
    h("text", { x: WIDTH, y: HEIGHT - 4, "text-anchor": "end" }, labels[1]),
  );
  return h("figure", {}, h("figcaption", {}, title), drawing);
}
