// What Python packed (src/vbreg/viewer/scene.py): a header in JSON, then arrays.

const MAGIC = "VBREG-1\n";
const KINDS = {
  uint8: Uint8Array,
  uint16: Uint16Array,
  int32: Int32Array,
  float32: Float32Array,
};

const padded = (length) => Math.ceil(length / 8) * 8;

/** Return the header, with `arrays` as a map from names to typed arrays. */
export function parseScene(buffer) {
  const text = (start, length) => new TextDecoder().decode(new Uint8Array(buffer, start, length));
  if (buffer.byteLength < 12 || text(0, 8) !== MAGIC) throw new Error("not a scene of vbreg");
  const length = new DataView(buffer).getUint32(8, true);
  const header = JSON.parse(text(12, length));
  const start = padded(12 + length);
  const arrays = {};
  for (const { name, kind, shape, offset } of header.arrays) {
    const count = shape.reduce((product, n) => product * n, 1);
    arrays[name] = new KINDS[kind](buffer, start + offset, count);
  }
  return { ...header, arrays, width: header.arrays.find((a) => a.name === "members")?.shape[1] };
}

/** Return the bytes of base64. */
export function decodeBase64(text) {
  const letters = atob(text.trim());
  const bytes = new Uint8Array(letters.length);
  for (let i = 0; i < letters.length; i++) bytes[i] = letters.charCodeAt(i);
  return bytes.buffer;
}

// --- poses: rows of rows, in double precision

/** Return the point R p + t of a pose T (4 rows). */
export const moved = (T, [x, y, z]) =>
  [0, 1, 2].map((i) => T[i][0] * x + T[i][1] * y + T[i][2] * z + T[i][3]);

/** Return the angle between two poses in degrees, and how far apart they put a point. */
export function poseDifference(A, B, point) {
  let trace = 0;
  for (let i = 0; i < 3; i++) for (let k = 0; k < 3; k++) trace += A[i][k] * B[i][k];
  const [a, b] = [moved(A, point), moved(B, point)];
  return {
    degrees: (Math.acos(Math.min(1, Math.max(-1, (trace - 1) / 2))) * 180) / Math.PI,
    length: Math.hypot(a[0] - b[0], a[1] - b[1], a[2] - b[2]),
  };
}

/** Return the distances that a pose leaves between the two ends of each match. */
export function matchDistances(scene, T) {
  const { match_source: source, match_target: target } = scene.arrays;
  const middle = scene.clouds.source.middle;
  const origin = scene.view.origin;
  const t = moved(T, middle).map((value, i) => value - origin[i]);
  const distances = new Float32Array(source.length / 3);
  for (let n = 0; n < distances.length; n++) {
    const [x, y, z] = [source[3 * n], source[3 * n + 1], source[3 * n + 2]];
    let square = 0;
    for (let i = 0; i < 3; i++) {
      const d = T[i][0] * x + T[i][1] * y + T[i][2] * z + t[i] - target[3 * n + i];
      square += d * d;
    }
    distances[n] = Math.sqrt(square);
  }
  return distances;
}
