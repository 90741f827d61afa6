// Programs of the GPU: round points, shading by depth, lines of a width in pixels.

export const POINT_VERTEX = `
attribute vec3 rgb;
uniform vec3 tint;
uniform float scanned;      // 1: the colours of the file
uniform float radius;       // of a ball, in the unit of the clouds
uniform float pixels;       // per unit at distance 1
uniform float smallest;     // size in pixels
varying vec3 colour;
void main() {
  vec4 seen = modelViewMatrix * vec4(position, 1.0);
  gl_Position = projectionMatrix * seen;
  gl_PointSize = clamp(2.0 * radius * pixels / -seen.z, smallest, 48.0);
  colour = mix(tint, rgb, scanned);
}`;

export const POINT_FRAGMENT = `
varying vec3 colour;
void main() {
  vec2 away = gl_PointCoord - 0.5;
  if (dot(away, away) > 0.25) discard;
  gl_FragColor = vec4(colour, 1.0);
}`;

export const SHADE_VERTEX = `
varying vec2 at;
void main() {
  at = uv;
  gl_Position = vec4(position.xy, 0.0, 1.0);
}`;

// Eye-dome lighting: a pixel is darker the further it lies behind its neighbours, so that form is
// seen without normals. The same as in src/vbreg/render.py.
export const SHADE_FRAGMENT = `
uniform sampler2D colours;
uniform sampler2D depths;
uniform vec2 texel;         // of one pixel of the page
uniform vec2 range;         // near and far
uniform vec2 depthRange;    // where fog begins, and how far it reaches
uniform float relief;       // depth that counts as a full step
uniform vec3 background;
varying vec2 at;
float away(vec2 where) {
  float d = texture2D(depths, where).r;
  return range.x * range.y / (range.y - d * (range.y - range.x));
}
float behind(float z, float reach) {
  float scale = relief * sqrt(reach);
  float sum = 0.0;
  for (int k = 0; k < 8; k++) {
    float angle = 0.785398 * float(k);
    vec2 step = vec2(cos(angle), sin(angle)) * reach * texel;
    sum += clamp((z - away(at + step)) / scale, 0.0, 1.0);
  }
  return sum / 8.0;
}
void main() {
  if (texture2D(depths, at).r >= 1.0) {
    gl_FragColor = vec4(background, 1.0);
    return;
  }
  float z = away(at);
  float hidden = 0.45 * behind(z, 1.0) + 0.3 * behind(z, 3.0) + 0.25 * behind(z, 7.0);
  vec3 colour = texture2D(colours, at).rgb * exp(-2.0 * hidden);
  float fog = 0.3 * clamp((z - depthRange.x) / depthRange.y, 0.0, 1.0);
  gl_FragColor = vec4(mix(colour, background, fog), 1.0);
}`;

export const LINE_VERTEX = `
attribute vec3 start;       // in the frame of the source
attribute vec3 end;         // in the frame that is drawn
attribute vec4 about;       // confidence, inlier, member of the seed's set, the seed itself
uniform mat4 sourceToScene;
uniform mat4 sceneToScreen;
uniform vec2 size;          // of the page, in pixels
uniform float near;
uniform float width;
uniform float threshold;    // of the confidence
uniform vec2 wanted;        // outliers, inliers
uniform float bySeed;
uniform float byConfidence;
uniform vec4 inlierColour;
uniform vec4 outlierColour;
uniform vec4 seedColour;
uniform vec4 weakColour;
uniform vec4 strongColour;
varying vec4 colour;
void main() {
  bool agrees = about.y > 0.5;
  bool shown = bySeed > 0.5 ? about.z > 0.5
    : about.x >= threshold && (agrees ? wanted.y : wanted.x) > 0.5;
  vec4 a = sceneToScreen * sourceToScene * vec4(start, 1.0);
  vec4 b = sceneToScreen * vec4(end, 1.0);
  if (!shown || (a.w < near && b.w < near)) {
    gl_Position = vec4(2.0, 2.0, 2.0, 1.0);
    return;
  }
  if (a.w < near) a = mix(a, b, (near - a.w) / (b.w - a.w));
  if (b.w < near) b = mix(b, a, (near - b.w) / (a.w - b.w));
  float thick = width * (about.w > 0.5 && bySeed > 0.5 ? 2.2 : agrees || bySeed > 0.5 ? 1.0 : 0.7);
  vec2 from = a.xy / a.w * size, to = b.xy / b.w * size;   // half pixels
  vec2 along = to - from;
  along = length(along) > 1e-3 ? normalize(along) : vec2(1.0, 0.0);
  vec2 across = vec2(-along.y, along.x);
  vec4 corner = position.x < 0.5 ? a : b;
  vec2 shift = (along * (position.x - 0.5) * 2.0 + across * position.y) * thick;
  gl_Position = vec4(corner.xy + shift / size * corner.w, 0.0, corner.w);
  colour = agrees ? inlierColour : outlierColour;
  if (byConfidence > 0.5) colour = mix(weakColour, strongColour, about.x);
  if (bySeed > 0.5) colour = about.w > 0.5 ? seedColour : agrees ? inlierColour
    : vec4(outlierColour.rgb, 0.9);
}`;

export const LINE_FRAGMENT = `
varying vec4 colour;
void main() {
  gl_FragColor = colour;
}`;
