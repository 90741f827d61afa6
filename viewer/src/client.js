// The side of the page that talks to the server of `vbreg view`.
import { fileRow, find, h } from "./dom.js";
import { parseScene } from "./scene.js";

const ROLES = ["source", "target"];
const RETRY = 1500; // milliseconds until a server that does not answer is asked again

export class Client {
  constructor(page) {
    this.page = page;
    this.token = location.hash.slice(1);
    this.names = {}; // of files that were sent from here; the server never hears them
    this.sending = {};
    this.shown = null;
    this.state = null;
  }

  start() {
    this.makeControls();
    this.listen();
    this.poll();
  }

  /** Ask the server; an answer that is no success becomes an error with its message. */
  async ask(method, path, body) {
    const headers = { Authorization: `Bearer ${this.token}` };
    const answer = await fetch(path, { method, headers, body });
    if (answer.ok) return answer;
    const { error } = await answer.json().catch(() => ({}));
    throw Object.assign(new Error(error ?? `the server answers ${answer.status}`), { refused: true });
  }

  /** Follow the server for as long as the page is open. */
  async poll() {
    for (let version = -1; ; ) {
      try {
        const state = await (await this.ask("GET", `api/state?after=${version}`)).json();
        version = state.version;
        await this.update(state);
        this.lost = false;
      } catch (error) {
        this.complain(error.refused ? error.message : "vbreg has ended: start `vbreg view` again and open its new address.");
        this.lost = true;
        version = -1;
        await new Promise((done) => setTimeout(done, RETRY));
      }
    }
  }

  async update(state) {
    if (this.lost) find("problem").hidden = true;
    const isNew = this.state ? state.failures !== this.state.failures : !state.scene;
    if (state.error && isNew) this.complain(state.error);
    this.state = state;
    this.counted = performance.now();
    if (state.scene !== this.shown) {
      const scene = parseScene(await (await this.ask("GET", "api/scene")).arrayBuffer());
      const keepView = this.shown != null && Boolean(scene.result) && !scene.beside;
      this.shown = state.scene;
      this.page.show(scene, { names: this.namesOf(scene), keepView });
    }
    find("empty").hidden = Boolean(state.scene || state.job || this.busy);
    find("endings").textContent = `Reads ${state.endings.filter((e) => !e.endsWith(".gz")).map((e) => e.slice(1)).join(", ")}`;
    this.showControls();
    this.showWork();
  }

  namesOf(scene) {
    return ROLES.map((role, i) => (scene.names[i] === role ? this.names[role] ?? role : scene.names[i]));
  }

  makeControls() {
    this.picker = h("input", { type: "file", hidden: true, onchange: () => this.picked() });
    document.body.append(this.picker);
    this.size = h(
      "select",
      { id: "voxels", onchange: () => this.showControls() },
      [["auto", "estimated"], ["indoor", "a room, 0.05 m"], ["outdoor", "a street, 0.30 m"], ["own", "my own"]].map(
        ([value, text]) => h("option", { value }, text),
      ),
    );
    this.own = h("input", { id: "own", type: "number", min: 0, step: "any", placeholder: "in the unit of the points", "aria-label": "Voxel size", oninput: () => this.showControls() });
    this.run = h("button", { type: "button", class: "primary", id: "run", onclick: () => this.register() }, "Register");
    this.rows = h("div", { class: "stack" });
    const label = h("label", { for: "voxels", class: "quiet" }, "Voxel size");
    find("clouds").replaceChildren(this.rows, h("div", { class: "field" }, label, this.size, this.run, this.own));
  }

  showControls() {
    const { state } = this;
    if (!state) return;
    const { voxel_size: size, preset } = state.options;
    if (this.options !== JSON.stringify(state.options)) {
      this.options = JSON.stringify(state.options); // those of the last run; a choice since then stays
      this.size.value = size ? "own" : preset ?? "auto";
      if (size) this.own.value = size;
    }
    const names = this.page.scene ? this.namesOf(this.page.scene) : ROLES;
    this.rows.replaceChildren(
      ...ROLES.map((role, i) =>
        fileRow(role, names[i], state.clouds[role], h("button", { type: "button", class: "small", "aria-label": `Choose the ${role}`, onclick: () => this.pick(role) }, "Choose")),
      ),
    );
    const own = this.size.value === "own";
    this.own.hidden = !own;
    const both = ROLES.every((role) => state.clouds[role] != null);
    this.run.disabled = !both || Boolean(state.job) || (own && !(Number(this.own.value) > 0));
    this.run.textContent = state.registered ? "Register again" : "Register";
    this.page.showSave(state.registered ? this.files() : []);
  }

  files() {
    const from = (path) => async () => {
      try {
        return await (await this.ask("GET", path)).blob();
      } catch (error) {
        this.complain(error.message);
        return null;
      }
    };
    return [
      ["Aligned cloud", "aligned.ply", from("api/aligned")],
      ["Result, JSON", "result.json", from("api/result")],
      ["Report", "report.html", from("api/report")],
      ["Picture", "picture.png", () => this.page.stage.picture()],
    ];
  }

  /** Name what the server does, or what is on its way there, and count its seconds. */
  showWork() {
    const job = this.state?.job;
    const parts = Object.entries(this.sending).map(([role, share]) => `sending ${role}, ${Math.round(100 * share)} %`);
    this.busy = parts.length > 0;
    if (job) {
      const seconds = job.seconds + (performance.now() - this.counted) / 1000;
      parts.push(`${job.stage}, ${seconds.toFixed(1)} s`);
    }
    find("working").hidden = !parts.length;
    find("working-text").textContent = parts.join("; ");
    find("cancel").hidden = !job;
    clearTimeout(this.timer);
    if (job) this.timer = setTimeout(() => this.showWork(), 100);
  }

  async register() {
    const kind = this.size.value;
    const options = {
      voxel_size: kind === "own" ? Number(this.own.value) : null,
      preset: kind === "indoor" || kind === "outdoor" ? kind : null,
    };
    await this.post("api/register", JSON.stringify(options));
  }

  async post(path, body) {
    find("problem").hidden = true;
    try {
      await this.ask("POST", path, body);
    } catch (error) {
      this.complain(error.message);
    }
  }

  pick(role) {
    this.picking = role;
    this.picker.multiple = !role;
    this.picker.value = "";
    this.picker.click();
  }

  picked() {
    this.take([...this.picker.files], this.picking);
  }

  /** Send files: two are source and target; one goes where it is wanted, or where none is yet. */
  take(files, role) {
    if (!files.length) return;
    find("problem").hidden = true;
    if (files.length > 2) return this.complain(`${files.length} files: expected two, the one to move first.`);
    if (files.length === 2) return files.forEach((file, i) => this.send(file, ROLES[i]));
    const free = ROLES.find((r) => this.state?.clouds[r] == null && !(r in this.sending));
    this.send(files[0], role ?? free ?? "source");
  }

  send(file, role) {
    const ending = this.endingOf(file.name);
    const most = this.state?.upload_bytes ?? Infinity;
    if (!ending) return this.complain(`${file.name}: files of this kind are not read.`);
    if (file.size > most) return this.complain(`${file.name} has ${file.size} bytes; at most ${most} are taken.`);
    const request = new XMLHttpRequest(); // unlike fetch, it tells how far it is
    const progress = (share) => {
      this.sending[role] = share;
      this.showWork();
    };
    const ended = (problem) => {
      delete this.sending[role];
      this.showWork();
      if (problem) this.complain(`${file.name}: ${problem}`);
      else this.names[role] = file.name;
    };
    request.open("PUT", `api/${role}?ending=${encodeURIComponent(ending)}`);
    request.setRequestHeader("Authorization", `Bearer ${this.token}`);
    request.upload.onprogress = (event) => progress(event.loaded / Math.max(1, event.total));
    request.onload = () => ended(request.status < 300 ? null : problemOf(request));
    request.onerror = () => ended("could not be sent");
    find("empty").hidden = true;
    progress(0);
    request.send(file);
  }

  /** Return the ending of a file that is read here, .ply.gz and the like included. */
  endingOf(name) {
    const parts = name.toLowerCase().split(".");
    const endings = [2, 1].map((n) => `.${parts.slice(-n).join(".")}`);
    return endings.find((ending) => this.state?.endings.includes(ending));
  }

  complain(message) {
    find("problem").hidden = false;
    find("problem-text").textContent = message;
  }

  listen() {
    const click = (id, work) => find(id).addEventListener("click", work);
    click("choose", () => this.pick(null));
    click("example", () => {
      this.names = {};
      this.post("api/example");
    });
    click("cancel", () => this.post("api/cancel"));
    click("dismiss", () => {
      find("problem").hidden = true;
      find("empty").hidden = Boolean(this.state?.scene || this.state?.job);
    });
    const over = (event) => ROLES.find((role) => event.target.id === `drop-${role}`);
    window.addEventListener("dragover", (event) => {
      event.preventDefault();
      find("drop").hidden = false;
      for (const role of ROLES) find(`drop-${role}`).classList.toggle("over", over(event) === role);
    });
    window.addEventListener("dragleave", (event) => {
      if (!event.relatedTarget) find("drop").hidden = true;
    });
    window.addEventListener("drop", (event) => {
      event.preventDefault();
      find("drop").hidden = true;
      this.take([...event.dataTransfer.files], over(event));
    });
  }
}

function problemOf(request) {
  try {
    return JSON.parse(request.responseText).error;
  } catch {
    return `the server answers ${request.status}`;
  }
}
