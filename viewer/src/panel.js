// What stands beside the picture: verdict, pose, alternatives, matches, plots, numbers.
import { choice, count, h, number, percent } from "./dom.js";
import { histogram } from "./plots.js";
import { matchDistances, poseDifference } from "./scene.js";

// How the verdict begins (src/vbreg/types.py), and how that looks.
const VERDICTS = {
  aligned: ["good", "\u2713"],
  "probably aligned": ["fair", "~"],
  "do not trust this pose": ["bad", "\u2715"],
  "not judged": ["unknown", "?"],
};

export class Panel {
  constructor(element, stage) {
    Object.assign(this, { element, stage });
    this.matches = { show: "none", byConfidence: false, threshold: 0, seed: 0 };
  }

  /** Show a result, or nothing where there is none yet. */
  setScene(scene) {
    this.scene = scene;
    this.element.replaceChildren();
    if (!scene.result) return;
    const { result } = scene;
    this.poses = [
      { T: result.T_target_source, probability: result.success_probability },
      ...result.alternatives.map((a) => ({ T: a.T_target_source, probability: a.probability })),
    ];
    this.chosen = 0;
    this.matches.seed = 0;
    this.plots = h("div", { class: "plots" });
    this.poseBox = h("div");
    this.said = h("p", { class: "quiet" });
    this.element.append(
      this.verdict(result),
      section("Pose", this.poseBox),
      ...(this.poses.length > 1 ? [section("Possible poses", this.alternatives())] : []),
      section("Matches", ...this.matchControls()),
      section("Histograms", this.plots),
      section("Numbers", numbers(scene), timings(result.timings)),
    );
    if (scene.command) this.element.append(section("Made by", h("pre", { class: "command" }, scene.command)));
    this.choosePose(0);
  }

  verdict(result) {
    const p = result.success_probability;
    const words = result.verdict.split(",")[0];
    const [kind, sign] = VERDICTS[words] ?? VERDICTS["not judged"];
    // The warnings of the terminal repeat the verdict or one of its reasons.
    const more = result.warnings.filter((w) => !w.startsWith(result.verdict) && !result.reasons.includes(w));
    const reasons = [...result.reasons, ...more];
    return h(
      "section",
      { class: `verdict ${kind}`, "aria-label": "Verdict" },
      h(
        "div",
        { class: "headline" },
        h("span", { class: "sign", "aria-hidden": "true" }, sign),
        h("h2", {}, words[0].toUpperCase() + words.slice(1)),
        p == null ? null : h("span", { class: "share" }, percent(p)),
      ),
      p == null ? null : h("div", { class: "meter" }, bar(p)),
      reasons.length ? h("ul", {}, reasons.map((text) => h("li", {}, text))) : null,
    );
  }

  alternatives() {
    const middle = this.scene.clouds.source.middle;
    this.poseButtons = this.poses.map(({ T, probability }, k) => {
      const { degrees, length } = poseDifference(T, this.poses[0].T, middle);
      const away = k ? `${degrees.toFixed(0)}\u00b0 and ${number(length, 2)} away` : "the chosen one";
      return h(
        "button",
        { type: "button", class: "row", onclick: () => this.choosePose(k) },
        h("span", {}, away),
        h("span", { class: "share" }, percent(probability)),
      );
    });
    return h("div", { class: "rows" }, this.poseButtons);
  }

  /** Show the clouds under one of the possible poses. */
  choosePose(k) {
    this.chosen = k;
    const { T } = this.poses[k];
    this.poseButtons?.forEach((b, i) => b.setAttribute("aria-pressed", String(i === k)));
    this.distances = matchDistances(this.scene, T);
    const limit = this.scene.result.inlier_threshold;
    this.inliers =
      k === 0 ? this.scene.arrays.inlier : Uint8Array.from(this.distances, (d) => (d < limit ? 1 : 0));
    this.stage.setPose(T);
    this.stage.setInliers(this.inliers);
    this.poseBox.replaceChildren(this.pose(T, k));
    this.drawPlots();
    this.showMatches();
  }

  pose(T, k) {
    const { result } = this.scene;
    const { degrees } = poseDifference(T, IDENTITY, [0, 0, 0]);
    const length = Math.hypot(T[0][3], T[1][3], T[2][3]);
    const digits = (value, column) => value.toFixed(column === 3 ? 4 : 6);
    const text = T.map((row) => row.map((v, i) => digits(v, i)).join("  ")).join("\n");
    const cells = T.slice(0, 3).map((row) => row.map((v, i) => h("span", {}, digits(v, i))));
    const copy = h("button", { type: "button", class: "small", onclick: () => copyText(text, copy) }, "Copy matrix");
    const deviation = k === 0 ? result.deviation : null;
    return h(
      "div",
      {},
      h(
        "dl",
        { class: "pairs" },
        pair("Rotation", `${degrees.toFixed(2)}\u00b0`),
        pair("Translation", number(length, 4)),
        // Of the translation itself, which is that of the origin, it is another one.
        deviation && pair("Uncertainty in the overlap", `${number(deviation[0], 2)}\u00b0, ${number(deviation[1], 2)}`),
      ),
      h("div", { class: "matrix", tabindex: 0, role: "group", "aria-label": "T_target_source" }, cells),
      copy,
      k ? h("p", { class: "quiet" }, "Another possible pose is shown. The verdict is about the chosen one.") : null,
    );
  }

  matchControls() {
    const shows = [["none", "None"], ["inliers", "Inliers"], ["outliers", "Outliers"], ["all", "All"]];
    if (this.scene.arrays.seeds?.length) shows.push(["seed", "Seed"]);
    else if (this.matches.show === "seed") this.matches.show = "none";
    this.shows = shows.map(([value]) => value);
    this.showChoice = choice("Matches to show", shows, this.matches.show, (show) => {
      this.matches.show = show;
      this.showMatches();
    });
    const colour = choice(
      "Colour of matches",
      [[false, "By agreement"], [true, "By confidence"]],
      this.matches.byConfidence,
      (by) => {
        this.matches.byConfidence = by;
        this.showMatches();
      },
    );
    this.legend = h("p", { class: "legend" });
    this.thresholdText = h("output", {}, "");
    this.threshold = h("input", {
      type: "range", min: 0, max: 1, step: 0.01, value: this.matches.threshold, id: "threshold",
      oninput: () => {
        this.matches.threshold = Number(this.threshold.value);
        this.drawPlots();
        this.showMatches();
      },
    });
    this.usual = h(
      "div",
      { class: "stack" },
      colour.element,
      h("div", { class: "slider" }, h("label", { for: "threshold" }, "Confidence at least"), this.thresholdText, this.threshold),
    );
    this.seedBox = this.seedControls();
    return [this.showChoice.element, this.usual, this.seedBox, this.legend, this.said];
  }

  seedControls() {
    const seeds = this.scene.arrays.seeds ?? [];
    this.seedText = h("output", {}, "");
    this.seedInput = h("input", {
      type: "range", min: 0, max: Math.max(0, seeds.length - 1), step: 1, value: 0, id: "seed",
      oninput: () => this.chooseSeed(Number(this.seedInput.value)),
    });
    const step = (by) => () => this.chooseSeed(this.matches.seed + by);
    return h(
      "div",
      { class: "stack" },
      h("div", { class: "slider" }, h("label", { for: "seed" }, "Seed"), this.seedText, this.seedInput),
      h(
        "div",
        { class: "buttons" },
        h("button", { type: "button", class: "small", onclick: step(-1) }, "Previous"),
        h("button", { type: "button", class: "small", onclick: step(1) }, "Next"),
      ),
    );
  }

  /** Show the matches that were voted to go with one seed. */
  chooseSeed(k) {
    const { seeds } = this.scene.arrays;
    if (!seeds) return;
    this.matches.seed = Math.min(seeds.length - 1, Math.max(0, k));
    this.matches.show = "seed";
    this.showChoice.pick("seed", false);
    this.seedInput.value = this.matches.seed;
    this.showMatches();
  }

  /** Choose the seed that is nearest to a pixel, where seeds are shown. */
  pickSeed(x, y) {
    if (this.scene?.result && this.matches.show === "seed") {
      const k = this.stage.matchAt(x, y, this.scene.arrays.seeds);
      if (k >= 0) this.chooseSeed(k);
    }
  }

  /** Go on to the next kind of matches to show. */
  nextShow() {
    if (!this.scene?.result) return;
    const next = this.shows[(this.shows.indexOf(this.matches.show) + 1) % this.shows.length];
    this.showChoice.pick(next);
  }

  showMatches() {
    const { show, byConfidence, threshold, seed } = this.matches;
    const bySeed = show === "seed";
    this.usual.hidden = bySeed || show === "none";
    this.seedBox.hidden = !bySeed;
    this.thresholdText.value = threshold.toFixed(2);
    this.stage.setMatches({
      inliers: show === "inliers" || show === "all",
      outliers: show === "outliers" || show === "all",
      threshold,
      byConfidence,
      bySeed,
    });
    const scale = byConfidence && !bySeed;
    const key = (kind, text) => [h("i", { class: kind }), h("span", {}, text)];
    this.legend.replaceChildren(
      ...(scale
        ? [h("span", {}, "0"), h("i", { class: "ramp" }), h("span", {}, "1")]
        : [...(bySeed ? key("seed", "the seed") : []), ...key("in", "agrees with the pose"), ...key("out", "does not")]),
    );
    this.legend.hidden = show === "none";
    this.said.textContent = bySeed ? this.tellSeed(seed) : this.tellMatches(show, threshold);
  }

  tellMatches(show, threshold) {
    const { confidence } = this.scene.arrays;
    const total = confidence.length;
    const agreed = this.inliers.reduce((sum, n) => sum + n, 0);
    if (show === "none") return `${count(agreed)} of ${count(total)} matches agree with the pose.`;
    let shown = 0;
    for (let n = 0; n < total; n++) {
      const wanted = show === "all" || (show === "inliers") === Boolean(this.inliers[n]);
      if (wanted && confidence[n] >= threshold) shown++;
    }
    return `${count(shown)} of ${count(total)} matches are shown; ${count(agreed)} agree with the pose.`;
  }

  tellSeed(k) {
    const { seeds, members } = this.scene.arrays;
    const { width } = this.scene;
    const rows = members.subarray(k * width, (k + 1) * width).filter((n) => n >= 0);
    this.stage.setSeed(seeds[k], rows);
    this.seedText.value = `${k + 1} of ${seeds.length}`;
    const agreed = rows.reduce((sum, n) => sum + this.inliers[n], 0);
    return `If this match is right, the network votes for ${rows.length - 1} others to be right with it; ` +
      `${agreed} of the ${rows.length} agree with the pose. Click near a match to choose it.`;
  }

  drawPlots() {
    const { inlier_threshold: limit } = this.scene.result;
    const { confidence } = this.scene.arrays;
    const high = 10 * limit;
    this.plots.replaceChildren(
      histogram({
        title: "Confidence of the matches, before any pose",
        values: confidence, agrees: this.inliers, low: 0, high: 1,
        mark: this.matches.threshold, labels: ["0", "1"],
      }),
      histogram({
        title: "Distance that the pose leaves, and the inlier threshold",
        values: this.distances, agrees: this.inliers, low: 0, high,
        mark: limit, labels: ["0", `${number(high, 2)} and more`],
      }),
      h("p", { class: "legend" }, h("i", { class: "in" }), h("span", {}, "agrees"), h("i", { class: "out" }), h("span", {}, "does not"), h("span", { class: "push" }, "heights are roots of counts")),
    );
  }
}

const IDENTITY = [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]];

const section = (title, ...content) => h("section", { "aria-label": title }, h("h3", {}, title), content);

const pair = (name, value, more) =>
  h("div", {}, h("dt", {}, name), h("dd", {}, value, more ? h("small", {}, ` ${more}`) : null));

function bar(share) {
  const element = h("span");
  element.style.width = `${100 * share}%`;
  return element;
}

function numbers({ result, clouds }) {
  const estimated = result.voxel_size_estimated ? "estimated" : null;
  const shown = (role) =>
    clouds[role].shown < clouds[role].points ? `${count(clouds[role].shown)} shown` : null;
  return h(
    "dl",
    { class: "pairs" },
    pair("Source", count(clouds.source.points), shown("source")),
    pair("Target", count(clouds.target.points), shown("target")),
    pair("Voxel size", number(result.voxel_size), estimated),
    pair("Inlier threshold", number(result.inlier_threshold)),
    pair("Inliers", count(result.inlier_count), `of ${count(result.correspondences)}`),
    pair("Inlier RMSE", number(result.inlier_rmse)),
    result.overlap == null ? null : pair("Overlap", percent(result.overlap)),
    pair("Score", number(result.score)),
    pair("Backend", result.backend),
    pair("vbreg", result.version),
  );
}

function timings(seconds) {
  const entries = Object.entries(seconds);
  const total = entries.reduce((sum, [, s]) => sum + s, 0);
  const most = Math.max(1e-9, ...entries.map(([, s]) => s));
  return h(
    "details",
    {},
    h("summary", {}, `${total.toFixed(2)} seconds`),
    h(
      "div",
      { class: "times" },
      entries.map(([stage, s]) => [h("span", {}, stage), h("span", { class: "meter" }, bar(s / most)), h("span", {}, s.toFixed(2))]),
    ),
  );
}

async function copyText(text, button) {
  const said = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Select the numbers to copy them";
  }
  setTimeout(() => (button.textContent = said), 1500);
}
