"use strict";
(() => {
  const find = (id) => document.getElementById(id);
  const data = JSON.parse(find("data").textContent);
  const make = (tag, text, attributes) => {
    const node = document.createElement(tag);
    if (text !== undefined && text !== null) node.textContent = text;
    for (const [name, value] of Object.entries(attributes || {})) node.setAttribute(name, value);
    return node;
  };
  const percent = (p) =>
    p > 0.995 ? "> 99 %" : p < 0.005 ? "< 1 %" : (100 * p).toFixed(0) + " %";
  const name = (k) => data.scans[k].name;

  find("title").textContent = data.title;
  find("about").textContent = data.about;
  find("command").textContent = data.command || "";

  // --- tables

  const table = (id, head, rows, none) => {
    const place = find(id);
    if (!rows.length) { place.append(make("p", none)); return; }
    const node = make("table"), top = make("tr");
    head.forEach((text) => top.append(make("th", text)));
    node.append(top);
    rows.forEach((cells) => {
      const row = make("tr");
      cells.forEach((text) => row.append(make("td", text)));
      node.append(row);
    });
    place.append(node);
  };
  const edgeRow = (e) => [name(e.source), name(e.target), percent(e.probability),
    e.triangles ? `${e.triangles_fit} of ${e.triangles}` : "-", e.doubt];
  const head = ["source", "target", "probability", "triangles that close", "why"];
  table("doubtful", head, data.edges.filter((e) => e.kept && e.doubt).map(edgeRow), "None.");
  table("dropped", head, data.edges.filter((e) => e.dropped)
    .sort((a, b) => b.probability - a.probability).map(edgeRow), "None.");
  table("refused", ["components", "evidence for the best pose", "against it"],
    data.refused_joins.map((j) => [j.components.map((c) => c + 1).join(" and "),
      j.evidence.toFixed(1), j.against.toFixed(1)]), "None.");

  // --- matrix of pairs

  const K = data.scans.length, cell = Math.max(2, Math.min(28, Math.floor(900 / K)));
  const pairs = find("pairs"), order = data.components.flat();
  const place = []; order.forEach((k, row) => { place[k] = row; });
  pairs.width = pairs.height = K * cell;
  const ink = pairs.getContext("2d"), said = new Map();
  const paint = (a, b, colour) => {
    ink.fillStyle = colour;
    ink.fillRect(place[a] * cell, place[b] * cell, cell, cell);
    ink.fillRect(place[b] * cell, place[a] * cell, cell, cell);
  };
  ink.fillStyle = "#fff"; ink.fillRect(0, 0, K * cell, K * cell);
  data.tried.forEach(([a, b]) => { paint(a, b, "#c4c9cf"); said.set(a < b ? `${a},${b}` : `${b},${a}`, "tried, nothing probable found"); });
  data.edges.filter((e) => e.kept || e.dropped).sort((a, b) => a.kept - b.kept).forEach((e) => {
    const light = 75 - 45 * e.probability;
    paint(e.source, e.target, e.kept ? `hsl(210 80% ${light}%)` : "hsl(28 90% 60%)");
    const key = e.source < e.target ? `${e.source},${e.target}` : `${e.target},${e.source}`;
    said.set(key, `${percent(e.probability)}, ${e.kept ? "kept" : "dropped"}`);
  });
  ink.font = `${Math.min(12, cell / 2)}px system-ui, sans-serif`; ink.textAlign = "center"; ink.textBaseline = "middle";
  for (let k = 0; k < K; k++) {
    paint(k, k, "#57606a");
    if (cell < 14) continue;
    ink.fillStyle = "#fff"; ink.fillText(String(k), (place[k] + 0.5) * cell, (place[k] + 0.5) * cell);
  }
  pairs.addEventListener("pointermove", (event) => {
    const box = pairs.getBoundingClientRect(), scale = pairs.width / box.width;
    const a = order[Math.floor((event.clientX - box.left) * scale / cell)];
    const b = order[Math.floor((event.clientY - box.top) * scale / cell)];
    if (a === undefined || b === undefined || a === b) return;
    const key = a < b ? `${a},${b}` : `${b},${a}`;
    find("pair").textContent = `${name(Math.min(a, b))} - ${name(Math.max(a, b))}: ${said.get(key) || "not tried"}`;
  });

  // --- graph

  const svg = (tag, attributes) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    return node;
  };
  data.components.filter((members) => members.length > 1).forEach((members) => {
    const at = members.map((k) => data.scans[k].place);
    const low = [0, 1].map((i) => Math.min(...at.map((p) => p[i])));
    const high = [0, 1].map((i) => Math.max(...at.map((p) => p[i])));
    const scale = 640 / Math.max(high[0] - low[0], high[1] - low[1], 1e-9);
    const width = (high[0] - low[0]) * scale + 80, height = (high[1] - low[1]) * scale + 60;
    const x = (k) => 30 + (data.scans[k].place[0] - low[0]) * scale;
    const y = (k) => 30 + (high[1] - data.scans[k].place[1]) * scale;
    const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height });
    data.edges.filter((e) => e.kept && members.includes(e.source)).forEach((e) => {
      const line = svg("line", { x1: x(e.source), y1: y(e.source), x2: x(e.target), y2: y(e.target),
        "stroke-width": 0.5 + 1.5 * e.probability, opacity: 0.25 + 0.5 * e.probability });
      if (e.bridge) line.setAttribute("stroke-dasharray", "5 4");
      const title = svg("title", {});
      title.textContent = `${name(e.source)} - ${name(e.target)}: ${percent(e.probability)} ${e.doubt}`;
      line.append(title); picture.append(line);
    });
    members.forEach((k) => {
      const dot = svg("circle", { cx: x(k), cy: y(k), r: 4 }), title = svg("title", {});
      title.textContent = name(k); dot.append(title);
      picture.append(dot);
    });
    members.forEach((k) => {
      const label = svg("text", { x: x(k) + 7, y: y(k) - 7 }); label.textContent = String(k);
      picture.append(label);
    });
    find("graph").append(picture);
  });

  // --- scene: points of each scan, 16 bits a coordinate within the box of its component

  const bytes = Uint8Array.from(atob(find("points").textContent.trim()), (c) => c.charCodeAt(0));
  const numbers = new Uint16Array(bytes.buffer), canvas = find("scene"), context = canvas.getContext("2d");
  const shown = new Array(K).fill(true), hue = (k) => (k * 137.508) % 360;
  let chosen = 0, yaw = 0.6, pitch = 0.9, zoom = 1;
  const rgb = (h) => [0, 8, 4].map((n) => {
    const k = (n + h / 30) % 12, a = 0.5 * Math.min(0.5, 0.5);
    return Math.round(255 * (0.5 - a * 1.4 * Math.max(-1, Math.min(k - 3, 9 - k, 1))));
  });
  const draw = () => {
    const box = canvas.getBoundingClientRect(), ratio = window.devicePixelRatio || 1;
    const w = canvas.width = Math.round(box.width * ratio), h = canvas.height = Math.round(box.height * ratio);
    const image = context.createImageData(w, h), pixels = new Uint32Array(image.data.buffer);
    const depth = new Float32Array(w * h).fill(-Infinity), size = Math.max(1, Math.round(1.2 * ratio));
    const frame = data.boxes[chosen], scale = zoom * 0.45 * Math.min(w, h) / frame.radius;
    const cy = Math.cos(yaw), sy = Math.sin(yaw), cp = Math.cos(pitch), sp = Math.sin(pitch);
    data.components[chosen].forEach((k) => {
      if (!shown[k]) return;
      const [r, g, b] = rgb(hue(k)), colour = (255 << 24) | (b << 16) | (g << 8) | r;
      const { start, count } = data.scans[k];
      for (let n = start; n < start + count; n++) {
        const px = numbers[3 * n] * frame.step[0] + frame.low[0];
        const py = numbers[3 * n + 1] * frame.step[1] + frame.low[1];
        const pz = numbers[3 * n + 2] * frame.step[2] + frame.low[2];
        const a = cy * px + sy * py, c = -sy * px + cy * py;
        const up = sp * c + cp * pz, near = -(cp * c) + sp * pz;
        const u = Math.round(w / 2 + scale * a), v = Math.round(h / 2 - scale * up);
        if (u < 0 || v < 0 || u >= w - size || v >= h - size || near <= depth[v * w + u]) continue;
        for (let i = 0; i < size; i++) for (let j = 0; j < size; j++) {
          depth[(v + i) * w + u + j] = near; pixels[(v + i) * w + u + j] = colour;
        }
      }
    });
    context.putImageData(image, 0, 0);
  };
  let waiting = false;
  const redraw = () => { if (!waiting) { waiting = true; requestAnimationFrame(() => { waiting = false; draw(); }); } };
  const list = () => {
    const scans = find("scans"); scans.textContent = "";
    data.components[chosen].forEach((k) => {
      const box = make("input", null, { type: "checkbox" }), dot = make("span", null, { class: "swatch" });
      box.checked = shown[k]; box.addEventListener("change", () => { shown[k] = box.checked; redraw(); });
      dot.style.background = `rgb(${rgb(hue(k)).join(" ")})`;
      const label = make("label"), item = make("li");
      label.append(box, dot, make("span", `${k} ${name(k)}`)); item.append(label); scans.append(item);
    });
  };
  data.components.forEach((members, c) => {
    find("component").append(make("option", `${c + 1}: ${members.length} ${members.length === 1 ? "scan" : "scans"}`, { value: c }));
  });
  find("component").addEventListener("change", (event) => { chosen = Number(event.target.value); list(); redraw(); });
  const setAll = (value) => { data.components[chosen].forEach((k) => { shown[k] = value; }); list(); redraw(); };
  find("all").addEventListener("click", () => setAll(true));
  find("none").addEventListener("click", () => setAll(false));
  const pointers = new Map(); let spread = 0;
  canvas.addEventListener("pointerdown", (e) => { canvas.setPointerCapture(e.pointerId); pointers.set(e.pointerId, e); spread = 0; });
  const lift = (e) => { pointers.delete(e.pointerId); spread = 0; };
  canvas.addEventListener("pointerup", lift); canvas.addEventListener("pointercancel", lift);
  canvas.addEventListener("pointermove", (e) => {
    const before = pointers.get(e.pointerId);
    if (!before) return;
    pointers.set(e.pointerId, e);
    if (pointers.size === 1) {
      yaw -= 0.008 * (e.clientX - before.clientX);
      pitch = Math.max(-1.57, Math.min(1.57, pitch + 0.008 * (e.clientY - before.clientY)));
    } else {
      const [a, b] = [...pointers.values()], now = Math.hypot(a.clientX - b.clientX, a.clientY - b.clientY);
      if (spread) zoom *= now / spread;
      spread = now;
    }
    redraw();
  });
  canvas.addEventListener("wheel", (e) => { e.preventDefault(); zoom *= Math.exp(-0.0015 * e.deltaY); redraw(); }, { passive: false });
  canvas.addEventListener("keydown", (e) => {
    const turn = { ArrowLeft: [-0.1, 0], ArrowRight: [0.1, 0], ArrowUp: [0, -0.1], ArrowDown: [0, 0.1] }[e.key];
    if (turn) { yaw += turn[0]; pitch += turn[1]; } else if (e.key === "+") zoom *= 1.15; else if (e.key === "-") zoom /= 1.15; else return;
    e.preventDefault(); redraw();
  });
  window.addEventListener("resize", redraw);
  list(); draw();
})();
