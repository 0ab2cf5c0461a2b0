// What the page does not hold lies in pieces beside it: scripts that are loaded when something of them is asked for.
const LOADING = new Map(), ARRIVED = new Map();
globalThis.cojaxPiece = (stamp, name, packed) => ARRIVED.set(name, [stamp, packed]);

function loadPiece(pieces, name) {
  if (!LOADING.has(name)) LOADING.set(name, fetchPiece(pieces, name).catch((error) => { LOADING.delete(name); throw error; }));
  return LOADING.get(name);
}

async function fetchPiece(pieces, name) {
  const path = `${pieces.folder}/${name}.js`;
  await new Promise((resolve, reject) => {
    const script = h("script", {src: path, onload: resolve, onerror: () => reject(new Error(`${path} is missing. It was written beside report.html: copy both, or run python -m experiments.report WORKDIR again.`))});
    document.head.append(script);
  });
  const [stamp, packed] = ARRIVED.get(name) || [];
  ARRIVED.delete(name);
  if (stamp !== pieces.stamp) throw new Error(`${path} belongs to another version of this report. Run python -m experiments.report WORKDIR again.`);
  const bytes = Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
}

const episodesPiece = (step) => `episodes-${String(step).padStart(6, "0")}`;
const tasksPiece = (pieces, number) => `tasks-${String(Math.floor(number / pieces.tasks)).padStart(4, "0")}`;
