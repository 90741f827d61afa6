// A camera that turns about a point: mouse, fingers, keys and buttons.
import { PerspectiveCamera, Vector3 } from "three";

const FIELD = 38; // degrees from top to bottom
const FILLED = 0.82; // of the picture, by what is looked at
const STEEPEST = 0.49 * Math.PI; // above and below the level

export class OrbitCamera {
  constructor(element, changed) {
    this.element = element;
    this.changed = changed;
    this.camera = new PerspectiveCamera(FIELD, 1, 0.1, 100);
    this.pivot = new Vector3();
    this.up = new Vector3(0, 0, 1);
    this.level = [new Vector3(1, 0, 0), new Vector3(0, 1, 0)];
    this.azimuth = 0.6;
    this.height = 0.5; // angle above the level
    this.distance = 10;
    this.radius = 1; // of all that there is to see
    this.moved = false; // by the user, so that it stays where it is
    this.pointers = new Map();
    this.onPick = () => {};
    this.onPivot = () => {};
    this.listen();
  }

  /** Look at a scene as Python chose; `view` is the header's. */
  lookAt(view) {
    this.up.set(...view.up).normalize();
    const right = new Vector3(...view.axes[0]);
    const towards = new Vector3(...view.axes[2]);
    this.level[0].copy(right).addScaledVector(this.up, -right.dot(this.up)).normalize();
    this.level[1].crossVectors(this.up, this.level[0]);
    this.azimuth = Math.atan2(towards.dot(this.level[1]), towards.dot(this.level[0]));
    this.height = Math.asin(Math.min(1, Math.max(-1, towards.dot(this.up))));
    this.home = { azimuth: this.azimuth, height: this.height };
    this.radius = view.radius;
  }

  /** Turn back to where it was looked from first. */
  goHome() {
    Object.assign(this, this.home, { moved: false });
  }

  /** Return right, up and towards the eye. */
  axes() {
    const towards = this.up.clone().multiplyScalar(Math.sin(this.height));
    towards.addScaledVector(this.level[0], Math.cos(this.height) * Math.cos(this.azimuth));
    towards.addScaledVector(this.level[1], Math.cos(this.height) * Math.sin(this.azimuth));
    const right = new Vector3().crossVectors(this.up, towards).normalize();
    return [right, new Vector3().crossVectors(towards, right), towards];
  }

  /** Return where to stand so that nearly all of some points (Vector3) fill the picture. */
  framing(points, aspect) {
    const axes = this.axes();
    const [x, y, z] = axes.map((axis) => {
      const along = points.map((p) => p.dot(axis)).sort((a, b) => a - b);
      const at = (share) => along[Math.round(share * (along.length - 1))];
      return { middle: (at(0.01) + at(0.99)) / 2, half: (at(0.99) - at(0.01)) / 2 };
    });
    const slope = FILLED * Math.tan((FIELD * Math.PI) / 360);
    const pivot = new Vector3();
    [x, y, z].forEach(({ middle }, i) => pivot.addScaledVector(axes[i], middle));
    const distance = Math.max(y.half / slope, x.half / (slope * aspect)) + 0.9 * z.half;
    return { pivot, distance: Math.max(distance, 1e-6) };
  }

  /** Stand between two places. */
  standBetween(a, b, share) {
    this.pivot.lerpVectors(a.pivot, b.pivot, share);
    this.distance = a.distance + share * (b.distance - a.distance);
  }

  /** Put the camera where it is to be. */
  update(width, height) {
    const { camera, distance, radius } = this;
    camera.aspect = width / height;
    camera.position.copy(this.pivot).addScaledVector(this.axes()[2], distance);
    camera.up.copy(this.up);
    camera.lookAt(this.pivot);
    camera.near = Math.max(distance / 500, distance - 6 * radius);
    camera.far = distance + 6 * radius;
    camera.updateProjectionMatrix();
    camera.updateMatrixWorld();
  }

  turn(dx, dy) {
    this.moved = true;
    this.azimuth -= dx;
    this.height = Math.min(STEEPEST, Math.max(-STEEPEST, this.height + dy));
    this.changed();
  }

  /** Shift by a share of the height of the picture. */
  shift(dx, dy) {
    this.moved = true;
    const size = 2 * this.distance * Math.tan((FIELD * Math.PI) / 360);
    const [right, up] = [new Vector3(), new Vector3()];
    this.camera.matrixWorld.extractBasis(right, up, new Vector3());
    this.pivot.addScaledVector(right, -dx * size).addScaledVector(up, dy * size);
    this.changed();
  }

  zoom(factor) {
    this.moved = true;
    const next = this.distance * factor;
    this.distance = Math.min(40 * this.radius, Math.max(this.radius / 200, next));
    this.changed();
  }

  listen() {
    const { element } = this;
    element.addEventListener("pointerdown", (event) => this.down(event));
    element.addEventListener("pointermove", (event) => this.move(event));
    for (const kind of ["pointerup", "pointercancel"]) {
      element.addEventListener(kind, (event) => this.lift(event));
    }
    element.addEventListener("contextmenu", (event) => event.preventDefault());
    element.addEventListener("dblclick", (event) => this.onPivot(event.offsetX, event.offsetY));
    element.addEventListener(
      "wheel",
      (event) => {
        event.preventDefault();
        const lines = event.deltaMode === 1 ? 30 : 1;
        this.zoom(Math.exp(Math.max(-200, Math.min(200, event.deltaY * lines)) * 0.0016));
      },
      { passive: false },
    );
    element.addEventListener("keydown", (event) => this.key(event));
  }

  down(event) {
    this.element.setPointerCapture(event.pointerId);
    this.pointers.set(event.pointerId, [event.clientX, event.clientY]);
    this.start = [event.clientX, event.clientY];
    this.dragged = false;
  }

  move(event) {
    const last = this.pointers.get(event.pointerId);
    if (!last) return;
    const now = [event.clientX, event.clientY];
    const height = this.element.clientHeight;
    const [dx, dy] = [(now[0] - last[0]) / height, (now[1] - last[1]) / height];
    if (Math.hypot(now[0] - this.start[0], now[1] - this.start[1]) > 4) this.dragged = true;
    if (this.pointers.size === 2) {
      const other = [...this.pointers].find(([id]) => id !== event.pointerId)[1];
      const span = (p) => Math.hypot(p[0] - other[0], p[1] - other[1]);
      this.shift(dx / 2, dy / 2);
      this.zoom(span(last) / Math.max(1, span(now)));
    } else if (event.buttons === 2 || event.buttons === 4 || event.shiftKey) {
      this.shift(dx, dy);
    } else {
      this.turn(3.2 * dx, 3.2 * dy);
    }
    this.pointers.set(event.pointerId, now);
  }

  lift(event) {
    if (this.pointers.delete(event.pointerId) && !this.dragged && event.type === "pointerup") {
      this.onPick(event.offsetX, event.offsetY);
    }
  }

  key(event) {
    const arrows = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    const arrow = arrows[event.key];
    if (arrow && event.shiftKey) this.shift(-0.05 * arrow[0], -0.05 * arrow[1]);
    else if (arrow) this.turn(-0.12 * arrow[0], -0.12 * arrow[1]);
    else return;
    event.preventDefault();
  }
}
