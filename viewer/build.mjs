// Bundle the viewer to one classic script, which also runs from file://, and copy page and style.
//
//     npm ci && npm run build              writes src/vbreg/viewer/static
//     npm run build -- /tmp/elsewhere      writes there, for a test to compare
//
// The same sources and package-lock.json give the same bytes.
import { build } from "esbuild";
import { copyFileSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const output = process.argv[2] ?? join(here, "..", "src", "vbreg", "viewer", "static");
const { version } = JSON.parse(readFileSync(join(here, "node_modules/three/package.json"), "utf8"));

mkdirSync(output, { recursive: true });
await build({
  absWorkingDir: here,
  entryPoints: ["src/main.js"],
  bundle: true,
  minify: true,
  format: "iife",
  target: "es2020",
  charset: "ascii",
  legalComments: "none",
  banner: {
    js: `/*! vbreg's viewer, MIT. With three.js ${version}, MIT, (c) three.js authors: see LICENSE-three.txt */`,
  },
  outfile: join(output, "viewer.js"),
});
copyFileSync(join(here, "src/page.html"), join(output, "page.html"));
copyFileSync(join(here, "src/viewer.css"), join(output, "viewer.css"));
writeFileSync(
  join(output, "LICENSE-three.txt"),
  `viewer.js holds parts of three.js ${version} (https://threejs.org):\n\n` +
    readFileSync(join(here, "node_modules/three/LICENSE"), "utf8"),
);
