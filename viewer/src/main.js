// The page of `vbreg view`, or a report: the same page with the scene within.
import { Client } from "./client.js";
import { choice, fileRow, find, h, save } from "./dom.js";
import { Panel } from "./panel.js";
import { decodeBase64, parseScene } from "./scene.js";
import { Stage } from "./stage.js";

const PLAY_SECONDS = 1.4;
const ROLES = ["source", "target"];

class Page {
  constructor(stage) {
    this.stage = stage;
    this.panel = new Panel(find("panel"), stage);
    this.visible = { source: true, target: true };
    this.setTheme(stored("theme") ?? (prefers("(prefers-color-scheme: dark)") ? "dark" : "light"), false);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", (event) => {
      if (!stored("theme")) this.setTheme(event.matches ? "dark" : "light", false);
    });
    stage.orbit.onPivot = (x, y) => stage.pivotAt(x, y);
    stage.orbit.onPick = (x, y) => this.panel.pickSeed(x, y);
    this.listen();
  }

  listen() {
    const click = (id, work) => find(id).addEventListener("click", work);
    click("zoom-in", () => this.stage.orbit.zoom(0.8));
    click("zoom-out", () => this.stage.orbit.zoom(1.25));
    click("fit", () => this.stage.fit());
    click("theme", () => this.switchTheme());
    click("help", () => find("keyboard").showModal());
    click("play", () => this.play());
    for (const role of ROLES) click(`see-${role}`, () => this.toggle(role));
    find("blend").addEventListener("input", () => this.setBlend(Number(find("blend").value)));
    document.addEventListener("keydown", (event) => this.key(event));
  }

  key(event) {
    const busy = event.target.closest("input, select, button, summary, dialog[open]");
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const keys = {
      "+": () => this.stage.orbit.zoom(0.85),
      "=": () => this.stage.orbit.zoom(0.85),
      "-": () => this.stage.orbit.zoom(1.18),
      f: () => this.stage.fit(),
      b: () => this.setBlend(0),
      a: () => this.setBlend(1),
      1: () => this.toggle("source"),
      2: () => this.toggle("target"),
      m: () => this.panel.nextShow(),
      n: () => this.panel.scene?.result && this.panel.chooseSeed(this.panel.matches.seed + 1),
      p: () => this.panel.scene?.result && this.panel.chooseSeed(this.panel.matches.seed - 1),
      d: () => this.switchTheme(),
      "?": () => find("keyboard").showModal(),
      " ": () => this.play(),
    };
    const work = keys[event.key.toLowerCase()];
    if (!work || (busy && (event.key === " " || busy.matches("input, select, dialog")))) return;
    event.preventDefault();
    work();
  }

  /** Show a scene; a result comes in with a movement from before to after. */
  show(scene, { names = scene.names, keepView = false } = {}) {
    this.stop();
    this.scene = scene;
    this.stage.setScene(scene, keepView);
    for (const role of ROLES) {
      this.stage.setVisible(role, this.visible[role]);
      find(`see-${role}`).hidden = !scene.clouds[role];
      find(`see-${role}`).lastElementChild.textContent = names[ROLES.indexOf(role)];
    }
    find("keys").hidden = !scene.view;
    find("empty").hidden = Boolean(scene.view);
    find("between").hidden = !scene.result;
    find("beside").hidden = !scene.beside;
    this.panel.setScene(scene);
    this.showDisplay(scene);
    if (!scene.result) this.setBlend(0);
    else if (prefers("(prefers-reduced-motion: reduce)")) this.setBlend(1);
    else this.play(1);
  }

  showDisplay(scene) {
    const coloured = ROLES.some((role) => scene.clouds[role]?.coloured);
    this.stage.setScanned(this.scanned && coloured);
    const colours = choice(
      "Colours", [[false, "One a cloud"], [true, "As scanned"]], Boolean(this.scanned),
      (scanned) => this.stage.setScanned((this.scanned = scanned)),
    );
    const size = h("input", {
      type: "range", id: "size", min: 0.3, max: 3, step: 0.05, value: this.stage.pointScale,
      oninput: () => this.stage.setPointScale(Number(size.value)),
    });
    find("display").hidden = !scene.view;
    find("display").replaceChildren(
      h("h3", {}, "Display"),
      ...(coloured ? [colours.element] : []),
      h("div", { class: "slider" }, h("label", { for: "size" }, "Size of points"), size),
    );
  }

  /** Offer files: pairs of a label and what gives a blob, with its name. */
  showSave(files) {
    find("save").hidden = !files.length;
    const button = ([label, name, make]) =>
      h("button", { type: "button", onclick: async () => {
        const blob = await make();
        if (blob) save(blob, name);
      } }, label);
    find("save").replaceChildren(h("h3", {}, "Save"), h("div", { class: "buttons" }, files.map(button)));
  }

  toggle(role) {
    this.visible[role] = !this.visible[role];
    find(`see-${role}`).setAttribute("aria-pressed", String(this.visible[role]));
    this.stage.setVisible(role, this.visible[role]);
  }

  setBlend(blend, playing = false) {
    if (!playing) this.stop();
    find("blend").value = blend;
    this.stage.setBlend(blend);
  }

  /** Move to the other end, or to the one given. */
  play(to) {
    if (!this.scene?.result) return;
    if (this.playing && to == null) return this.stop();
    const from = Number(find("blend").value);
    const goal = to ?? (from > 0.5 ? 0 : 1);
    const start = performance.now();
    const run = (this.playing = {});
    find("play").textContent = "\u275a\u275a";
    const step = () => {
      if (this.playing !== run) return;
      const t = Math.min(1, (performance.now() - start) / 1000 / PLAY_SECONDS);
      const eased = t * t * (3 - 2 * t);
      this.setBlend(from + (goal - from) * eased, true);
      if (t < 1) requestAnimationFrame(step);
      else this.stop();
    };
    requestAnimationFrame(step);
  }

  stop() {
    this.playing = null;
    find("play").textContent = "\u25b6";
  }

  switchTheme() {
    this.setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark", true);
  }

  setTheme(theme, keep) {
    document.documentElement.dataset.theme = theme;
    if (keep) store("theme", theme);
    const style = getComputedStyle(document.documentElement);
    const names = ["background", "source", "target", "inlier", "outlier", "seed", "weak", "strong"];
    this.stage.setColours(Object.fromEntries(names.map((n) => [n, style.getPropertyValue(`--${n}`).trim()])));
  }
}

const prefers = (query) => matchMedia(query).matches;

// A page from disk may have no storage.
function stored(name) {
  try {
    return localStorage.getItem(`vbreg-${name}`);
  } catch {
    return null;
  }
}
function store(name, value) {
  try {
    localStorage.setItem(`vbreg-${name}`, value);
  } catch {
    // the choice lasts as long as the page, then
  }
}

function showReport(page, element) {
  const scene = parseScene(decodeBase64(element.textContent));
  element.remove();
  find("about").textContent = "report";
  find("clouds").replaceChildren(
    ...ROLES.map((role, i) => fileRow(role, scene.names[i], scene.clouds[role].points)),
  );
  page.show(scene);
  const { deviation, ...result } = scene.result;
  page.showSave([
    ["Result, JSON", "result.json", () => new Blob([JSON.stringify(result, null, 2), "\n"])],
    ["Picture", "picture.png", () => page.stage.picture()],
  ]);
}

function start() {
  let stage;
  try {
    stage = new Stage(find("canvas"));
  } catch (error) {
    find("problem").hidden = false;
    find("problem-text").textContent = `This browser cannot draw in 3D (WebGL 2 is missing or switched off): ${error.message}`;
    return;
  }
  const page = new Page(stage);
  window.vbreg = { page, stage }; // for tests, and for the curious
  const scene = find("scene");
  if (scene) showReport(page, scene);
  else new Client(page).start();
}

start();
