// The picture: two clouds, the matches between them, and a pose between before and after.
import {
  BufferAttribute,
  BufferGeometry,
  Color,
  DepthTexture,
  InstancedBufferAttribute,
  InstancedBufferGeometry,
  LinearFilter,
  LinearSRGBColorSpace,
  Matrix4,
  Mesh,
  NearestFilter,
  OrthographicCamera,
  PlaneGeometry,
  Points,
  Quaternion,
  Scene,
  ShaderMaterial,
  Vector2,
  Vector3,
  Vector4,
  WebGLRenderer,
  WebGLRenderTarget,
} from "three";
import { OrbitCamera } from "./camera.js";
import { moved } from "./scene.js";
import {
  LINE_FRAGMENT,
  LINE_VERTEX,
  POINT_FRAGMENT,
  POINT_VERTEX,
  SHADE_FRAGMENT,
  SHADE_VERTEX,
} from "./shaders.js";

const STILL = 180; // milliseconds without a change until everything is drawn
const FEWEST = 60_000; // points that are drawn while something moves,
const MOST = 4_000_000; // on a slow machine and on a quick one
const ROLES = ["source", "target"];

export class Stage {
  constructor(canvas) {
    this.canvas = canvas;
    this.renderer = new WebGLRenderer({ canvas, antialias: true, powerPreference: "high-performance" });
    this.renderer.outputColorSpace = LinearSRGBColorSpace; // colours are written as they are
    this.renderer.autoClear = false;
    this.orbit = new OrbitCamera(canvas, () => this.changed());
    this.clouds = {};
    this.blend = 0;
    this.pointScale = 0.85;
    this.budget = 600_000; // points while something moves; follows the speed of the machine
    this.scene = null;
    this.onDrawn = () => {};
    this.cloudScene = new Scene();
    this.lineScene = new Scene();
    this.makeShading();
    this.makeLines();
    new ResizeObserver(() => this.resized()).observe(canvas.parentElement);
    this.resized();
  }

  makeShading() {
    const depthTexture = new DepthTexture(1, 1);
    this.target = new WebGLRenderTarget(1, 1, {
      depthTexture,
      minFilter: LinearFilter,
      magFilter: LinearFilter,
    });
    depthTexture.minFilter = depthTexture.magFilter = NearestFilter;
    this.shade = new ShaderMaterial({
      vertexShader: SHADE_VERTEX,
      fragmentShader: SHADE_FRAGMENT,
      depthTest: false,
      depthWrite: false,
      uniforms: {
        colours: { value: this.target.texture },
        depths: { value: depthTexture },
        texel: { value: new Vector2() },
        range: { value: new Vector2() },
        depthRange: { value: new Vector2() },
        relief: { value: 1 },
        background: { value: new Vector3(1, 1, 1) },
      },
    });
    this.flat = new OrthographicCamera(-1, 1, 1, -1, 0, 1);
    this.flatScene = new Scene();
    const quad = new Mesh(new PlaneGeometry(2, 2), this.shade);
    quad.frustumCulled = false;
    this.flatScene.add(quad);
  }

  makeLines() {
    const value = (v) => ({ value: v });
    this.lineMaterial = new ShaderMaterial({
      vertexShader: LINE_VERTEX,
      fragmentShader: LINE_FRAGMENT,
      transparent: true,
      depthTest: false,
      depthWrite: false,
      uniforms: {
        sourceToScene: value(new Matrix4()),
        sceneToScreen: value(new Matrix4()),
        size: value(new Vector2()),
        near: value(0.1),
        width: value(1.5),
        threshold: value(0),
        wanted: value(new Vector2(0, 1)),
        bySeed: value(0),
        byConfidence: value(0),
        inlierColour: value(new Vector4()),
        outlierColour: value(new Vector4()),
        seedColour: value(new Vector4()),
        weakColour: value(new Vector4()),
        strongColour: value(new Vector4()),
      },
    });
  }

  /** Take the colours of the page, which is light or dark. */
  setColours(colours) {
    const rgb = (text) => new Color().setStyle(text, LinearSRGBColorSpace);
    this.tints = Object.fromEntries(ROLES.map((role) => [role, rgb(colours[role])]));
    this.shade.uniforms.background.value.setFromColor(rgb(colours.background));
    const { uniforms } = this.lineMaterial;
    const set = (name, text, alpha) => {
      const { r, g, b } = rgb(text);
      uniforms[name].value.set(r, g, b, alpha);
    };
    set("inlierColour", colours.inlier, 0.55);
    set("outlierColour", colours.outlier, 0.22);
    set("seedColour", colours.seed, 1);
    set("weakColour", colours.weak, 0.25);
    set("strongColour", colours.strong, 0.75);
    for (const role of ROLES) {
      if (this.clouds[role]) this.clouds[role].material.uniforms.tint.value.setFromColor(this.tints[role]);
    }
    this.changed();
  }

  /** Show what Python packed; the camera stays where it is if `keepView`. */
  setScene(scene, keepView = false) {
    for (const role of ROLES) {
      if (this.clouds[role]) {
        this.cloudScene.remove(this.clouds[role]);
        this.clouds[role].geometry.dispose();
      }
      this.clouds[role] = scene.clouds[role] ? this.makeCloud(scene, role) : null;
      if (this.clouds[role]) this.cloudScene.add(this.clouds[role]);
    }
    if (this.lines) this.lineScene.remove(this.lines);
    this.lines?.geometry.dispose();
    this.lines = scene.result ? this.makeMatches(scene) : null;
    if (this.lines) this.lineScene.add(this.lines);
    this.scene = scene;
    this.after = scene.result?.T_target_source ?? null;
    this.place();
    if (scene.view) {
      const { azimuth, height } = this.orbit;
      this.orbit.lookAt(scene.view);
      if (keepView && this.orbit.moved) Object.assign(this.orbit, { azimuth, height });
      else this.fit();
    }
    this.changed();
  }

  /** Show everything, from where it was looked at first; then follow the source while it moves. */
  fit() {
    if (!this.scene?.view) return;
    this.orbit.goHome();
    const { clientWidth: width, clientHeight: height } = this.canvas.parentElement;
    this.frames = [0, 1].map((blend) => this.orbit.framing(this.sample(blend), width / height));
    this.follow();
    this.changed();
  }

  follow() {
    if (this.frames && !this.orbit.moved) this.orbit.standBetween(...this.frames, this.blend);
  }

  /** Return some points of both clouds where they are before (0) or after (1). */
  sample(blend) {
    const kept = this.blend;
    this.blend = blend;
    this.place();
    const points = [];
    for (const cloud of ROLES.map((role) => this.clouds[role]).filter(Boolean)) {
      const { array } = cloud.geometry.getAttribute("position");
      for (let n = 0; n < Math.min(1500, cloud.userData.count); n++) {
        const place = new Vector3(array[4 * n], array[4 * n + 1], array[4 * n + 2]);
        points.push(place.divideScalar(65535).applyMatrix4(cloud.matrix));
      }
    }
    this.blend = kept;
    this.place();
    return points;
  }

  makeCloud(scene, role) {
    const points = scene.arrays[role];
    const colours = scene.arrays[`${role}_rgb`];
    const count = points.length / 3;
    const places = new Uint16Array(4 * count); // 8 bytes a point: graphics cards like that
    for (let i = 0; i < count; i++) {
      for (let k = 0; k < 3; k++) places[4 * i + k] = points[3 * i + k];
    }
    const geometry = new BufferGeometry();
    geometry.setAttribute("position", new BufferAttribute(places, 4, true));
    const rgb = new Uint8Array(4 * count);
    if (colours) for (let i = 0; i < count; i++) rgb.set(colours.subarray(3 * i, 3 * i + 3), 4 * i);
    geometry.setAttribute("rgb", new BufferAttribute(rgb, 4, true));
    const material = new ShaderMaterial({
      vertexShader: POINT_VERTEX,
      fragmentShader: POINT_FRAGMENT,
      uniforms: {
        tint: { value: new Vector3().setFromColor(this.tints[role]) },
        scanned: { value: 0 },
        radius: { value: 0 },
        pixels: { value: 1 },
        smallest: { value: 1.5 },
      },
    });
    const cloud = new Points(geometry, material);
    cloud.frustumCulled = false;
    cloud.matrixAutoUpdate = false;
    cloud.userData = { count, radius: scene.clouds[role].radius };
    return cloud;
  }

  makeMatches(scene) {
    const { match_source: start, match_target: end, confidence } = scene.arrays;
    const geometry = new InstancedBufferGeometry();
    const corners = new Float32Array([0, -1, 0, 1, -1, 0, 1, 1, 0, 0, 1, 0]);
    geometry.setAttribute("position", new BufferAttribute(corners, 3));
    geometry.setIndex([0, 1, 2, 0, 2, 3]);
    geometry.setAttribute("start", new InstancedBufferAttribute(start, 3));
    geometry.setAttribute("end", new InstancedBufferAttribute(end, 3));
    this.about = new InstancedBufferAttribute(new Float32Array(4 * confidence.length), 4);
    geometry.setAttribute("about", this.about);
    geometry.instanceCount = confidence.length;
    for (let n = 0; n < confidence.length; n++) this.about.array[4 * n] = confidence[n];
    const mesh = new Mesh(geometry, this.lineMaterial);
    mesh.frustumCulled = false;
    return mesh;
  }

  /** Say which matches agree with the pose that is shown. */
  setInliers(inliers) {
    inliers.forEach((agrees, n) => (this.about.array[4 * n + 1] = agrees ? 1 : 0));
    this.about.needsUpdate = true;
    this.changed();
  }

  /** Mark a seed and the matches that were voted to go with it. */
  setSeed(seed, members) {
    const { array } = this.about;
    for (let n = 0; n < array.length / 4; n++) array[4 * n + 2] = array[4 * n + 3] = 0;
    for (const n of members) array[4 * n + 2] = 1;
    if (seed >= 0) array[4 * seed + 3] = 1;
    this.about.needsUpdate = true;
    this.changed();
  }

  /** Choose the matches to show. */
  setMatches({ inliers, outliers, threshold, byConfidence, bySeed }) {
    const { uniforms } = this.lineMaterial;
    uniforms.wanted.value.set(outliers ? 1 : 0, inliers ? 1 : 0);
    uniforms.threshold.value = threshold;
    uniforms.byConfidence.value = byConfidence ? 1 : 0;
    uniforms.bySeed.value = bySeed ? 1 : 0;
    this.changed();
  }

  setVisible(role, visible) {
    if (this.clouds[role]) this.clouds[role].visible = visible;
    this.changed();
  }

  setScanned(scanned) {
    for (const role of ROLES) {
      const coloured = scanned && this.scene?.clouds[role]?.coloured;
      if (this.clouds[role]) this.clouds[role].material.uniforms.scanned.value = coloured ? 1 : 0;
    }
    this.changed();
  }

  setPointScale(scale) {
    this.pointScale = scale;
    this.changed();
  }

  /** Put the source between before (0) and after (1). */
  setBlend(blend) {
    this.blend = blend;
    this.place();
    this.follow();
    this.changed();
  }

  /** Choose another pose for after. */
  setPose(T) {
    this.after = T;
    if (this.orbit.moved) this.place();
    else this.fit();
    this.changed();
  }

  /** Compute the matrices of both clouds: small numbers, about the origin of the view. */
  place() {
    const { scene } = this;
    if (!scene?.view) return;
    const origin = scene.view.origin;
    const box = ({ low, span }, shift) =>
      new Matrix4()
        .makeTranslation(...low.map((value, i) => value - shift[i]))
        .multiply(new Matrix4().makeScale(...span));
    if (this.clouds.target) this.clouds.target.matrix.copy(box(scene.clouds.target, origin));
    if (!this.clouds.source) return;
    const middle = scene.clouds.source.middle;
    const pose = this.poseAboutMiddle(scene.before, this.after ?? scene.before, middle, origin);
    this.lineMaterial.uniforms.sourceToScene.value.copy(pose);
    this.clouds.source.matrix.copy(pose).multiply(box(scene.clouds.source, middle));
  }

  poseAboutMiddle(before, after, middle, origin) {
    const turns = [before, after].map((T) =>
      new Quaternion().setFromRotationMatrix(
        new Matrix4().set(...T[0].slice(0, 3), 0, ...T[1].slice(0, 3), 0, ...T[2].slice(0, 3), 0, 0, 0, 0, 1),
      ),
    );
    const places = [before, after].map((T) =>
      new Vector3(...moved(T, middle).map((value, i) => value - origin[i])),
    );
    return new Matrix4().compose(
      places[0].lerp(places[1], this.blend),
      turns[0].slerp(turns[1], this.blend),
      new Vector3(1, 1, 1),
    );
  }

  resized() {
    const { clientWidth, clientHeight } = this.canvas.parentElement;
    if (!clientWidth || !clientHeight) return;
    const ratio = Math.min(2, window.devicePixelRatio || 1);
    this.renderer.setPixelRatio(ratio);
    this.renderer.setSize(clientWidth, clientHeight, false);
    const size = this.renderer.getDrawingBufferSize(new Vector2());
    this.fine = ratio < 1.5 ? 1.5 : 1; // smoother edges where pixels are large
    this.target.setSize(Math.round(size.x * this.fine), Math.round(size.y * this.fine));
    if (!this.orbit.moved) this.fit();
    this.changed();
  }

  /** Draw soon: fewer points while changes go on, all of them once it is still. */
  changed() {
    this.dirty = true;
    this.settled = false;
    if (this.pending) return;
    this.pending = true;
    this.lastTick = 0;
    requestAnimationFrame((time) => this.tick(time));
  }

  tick(time) {
    if (this.dirty) { // first of all, so that a slow machine is never taken for a still picture
      this.dirty = false;
      if (this.lastTick) this.adapt(time - this.lastTick);
      this.draw(this.budget);
      this.lastChange = time;
    } else if (time - this.lastChange > STILL) {
      this.pending = false;
      this.draw(Infinity);
      this.settled = true;
      return;
    }
    this.lastTick = time;
    requestAnimationFrame((next) => this.tick(next));
  }

  /** Let the number of points that are drawn while something moves follow the speed of the machine. */
  adapt(milliseconds) {
    if (milliseconds > 38) this.budget = Math.max(FEWEST, this.budget * 0.8);
    else if (milliseconds < 22) this.budget = Math.min(MOST, this.budget * 1.1);
  }

  draw(budget) {
    const { renderer, orbit } = this;
    const { clientWidth: width, clientHeight: height } = this.canvas.parentElement;
    orbit.update(width, height);
    const { camera } = orbit;
    const size = renderer.getDrawingBufferSize(new Vector2());
    this.setPointSizes(budget, camera, size);
    const { uniforms } = this.shade;
    uniforms.texel.value.set(renderer.getPixelRatio() / size.x, renderer.getPixelRatio() / size.y);
    uniforms.range.value.set(camera.near, camera.far);
    uniforms.depthRange.value.set(Math.max(0, orbit.distance - orbit.radius), 2 * orbit.radius);
    uniforms.relief.value = 0.016 * Math.min(orbit.radius, orbit.distance);
    renderer.setRenderTarget(this.target);
    renderer.clear();
    renderer.render(this.cloudScene, camera);
    renderer.setRenderTarget(null);
    renderer.render(this.flatScene, this.flat);
    const line = this.lineMaterial.uniforms;
    line.sceneToScreen.value.multiplyMatrices(camera.projectionMatrix, camera.matrixWorldInverse);
    line.size.value.copy(size);
    line.near.value = camera.near;
    line.width.value = 1.1 * renderer.getPixelRatio();
    renderer.render(this.lineScene, camera);
    this.onDrawn(this.drawn);
  }

  setPointSizes(budget, camera, size) {
    const shown = ROLES.map((role) => this.clouds[role]).filter((cloud) => cloud?.visible);
    const total = shown.reduce((sum, cloud) => sum + cloud.userData.count, 0);
    const share = Math.min(1, budget / Math.max(1, total));
    this.drawn = 0;
    for (const cloud of shown) {
      const count = Math.max(1, Math.round(share * cloud.userData.count));
      cloud.geometry.setDrawRange(0, count);
      this.drawn += count;
      const { uniforms } = cloud.material;
      uniforms.radius.value = (this.pointScale * cloud.userData.radius) / Math.sqrt(share);
      uniforms.pixels.value = (this.fine * size.y) / (2 * Math.tan((camera.fov * Math.PI) / 360));
      uniforms.smallest.value = 1.6 * this.fine * this.renderer.getPixelRatio();
    }
  }

  /** Return which of `count` places a pixel shows: the foremost within 6 pixels, else the nearest. */
  nearest(x, y, place, matrix, count, reach) {
    const { clientWidth: width, clientHeight: height } = this.canvas.parentElement;
    const { projectionMatrix, matrixWorldInverse } = this.orbit.camera;
    const toScreen = new Matrix4().multiplyMatrices(projectionMatrix, matrixWorldInverse).multiply(matrix);
    const p = new Vector4();
    let best = -1;
    let least = Infinity;
    for (let n = 0; n < count; n++) {
      p.set(...place(n), 1).applyMatrix4(toScreen);
      const away = Math.hypot(((p.x / p.w + 1) / 2) * width - x, ((1 - p.y / p.w) / 2) * height - y);
      if (p.w <= 0 || away > reach) continue;
      const rank = away <= 6 ? p.w / this.orbit.camera.far : 1 + away;
      if (rank < least) [best, least] = [n, rank];
    }
    return best;
  }

  /** Turn about the point under a pixel from now on. */
  pivotAt(x, y) {
    for (const role of ROLES) {
      const cloud = this.clouds[role];
      if (!cloud?.visible) continue;
      const { array } = cloud.geometry.getAttribute("position");
      const place = (n) => [0, 1, 2].map((k) => array[4 * n + k] / 65535);
      const count = Math.min(60_000, cloud.userData.count);
      const n = this.nearest(x, y, place, cloud.matrix, count, 14);
      if (n < 0) continue;
      this.orbit.moved = true;
      this.orbit.pivot.set(...place(n)).applyMatrix4(cloud.matrix);
      this.changed();
      return;
    }
  }

  /** Return the row of the match, among some, whose source end is nearest to a pixel. */
  matchAt(x, y, rows) {
    const { match_source: start } = this.scene.arrays;
    const place = (n) => start.subarray(3 * rows[n], 3 * rows[n] + 3);
    const matrix = this.lineMaterial.uniforms.sourceToScene.value;
    return this.nearest(x, y, place, matrix, rows.length, 40);
  }

  /** Return the picture as it is, for a file. */
  picture() {
    this.draw(Infinity);
    return new Promise((done) => this.canvas.toBlob(done, "image/png"));
  }
}
