"use strict";
(function () {
  const byId = (id) => document.getElementById(id);

  const root = document.documentElement;
  const theme = byId("theme");
  const dark = () =>
    root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const name = () => { theme.textContent = dark() ? "Light" : "Dark"; };
  theme.hidden = false;
  name();
  theme.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; name(); });

  const PAGE = 24;
  const articles = Array.from(document.querySelectorAll("#texts article"));
  const filters = byId("filters"), more = byId("more"), count = byId("count");
  const chosen = (id) => (byId(id) ? byId(id).value : "");
  let limit = PAGE;
  const apply = () => {
    const label = chosen("f-label"), generator = chosen("f-generator"), round = chosen("f-round");
    const words = chosen("f-text").trim().toLowerCase();
    let found = 0;
    for (const article of articles) {
      const fits = (!label || article.dataset.label === label) && (!generator || article.dataset.generator === generator) &&
        (!round || article.dataset.round === round) &&
        (!words || article.firstElementChild.textContent.toLowerCase().includes(words));
      found += fits ? 1 : 0;
      article.hidden = !fits || found > limit;
    }
    more.hidden = found <= limit;
    const searched = "Searched: " + articles.length + " of the corpus's " + filters.dataset.texts +
      " texts, from every label, generator and round.";
    count.textContent = (found === 0 ? "No text here fits. The whole corpus is in synthetic.jsonl. " :
      Math.min(found, limit) + " shown of " + found + " that fit. ") + searched;
  };
  filters.hidden = false;
  filters.addEventListener("input", () => { limit = PAGE; apply(); });
  filters.addEventListener("submit", (event) => event.preventDefault());
  more.addEventListener("click", () => { limit += 2 * PAGE; apply(); });
  apply();

  // SHA-256 (FIPS 180-4) for browsers that offer no digest to a page that was opened as a file.
  const primes = (count) => {
    const list = [];
    for (let number = 2; list.length < count; number++) if (list.every((prime) => number % prime)) list.push(number);
    return list;
  };
  const fraction = (root) => Math.floor((root - Math.floor(root)) * 2 ** 32);
  const START = primes(8).map((prime) => fraction(Math.sqrt(prime)));
  const ROUND = primes(64).map((prime) => fraction(Math.cbrt(prime)));
  const turned = (word, bits) => (word >>> bits) | (word << (32 - bits));
  const sha256 = (bytes) => {
    const padded = new Uint8Array(((bytes.length + 8) >> 6) * 64 + 64);
    padded.set(bytes);
    padded[bytes.length] = 128;
    const view = new DataView(padded.buffer);
    view.setUint32(padded.length - 8, Math.floor(bytes.length / 2 ** 29));
    view.setUint32(padded.length - 4, (bytes.length * 8) >>> 0);
    const state = START.slice(), words = new Uint32Array(64);
    for (let offset = 0; offset < padded.length; offset += 64) {
      for (let t = 0; t < 64; t++) {
        const early = words[t - 15], late = words[t - 2];
        words[t] = t < 16 ? view.getUint32(offset + 4 * t) :
          words[t - 16] + (turned(early, 7) ^ turned(early, 18) ^ (early >>> 3)) +
          words[t - 7] + (turned(late, 17) ^ turned(late, 19) ^ (late >>> 10));
      }
      let [a, b, c, d, e, f, g, h] = state;
      for (let t = 0; t < 64; t++) {
        const first = h + (turned(e, 6) ^ turned(e, 11) ^ turned(e, 25)) + ((e & f) ^ (~e & g)) + ROUND[t] + words[t];
        const second = (turned(a, 2) ^ turned(a, 13) ^ turned(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
        [h, g, f, e, d, c, b, a] = [g, f, e, (d + first) | 0, c, b, a, (first + second) | 0];
      }
      [a, b, c, d, e, f, g, h].forEach((word, place) => { state[place] = (state[place] + word) | 0; });
    }
    return state.map((word) => (word >>> 0).toString(16).padStart(8, "0")).join("");
  };
  const digest = async (bytes) => {
    if (!window.crypto || !crypto.subtle) return sha256(bytes);
    const made = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
    return Array.from(made, (byte) => byte.toString(16).padStart(2, "0")).join("");
  };

  const drop = byId("drop"), checked = byId("checked"), told = byId("told"), PAPERS = ["manifest.json", "archive.json"];
  const ROWS = ["synthetic.jsonl", "synthetic.parquet"];  // the corpus in its formats
  const OPTIONAL = ["set-aside.jsonl"];  // files that an operator may leave out of an archive
  const verdict = byId("verdict"), SIGNER = "the coordinator";
  // The words of `undersong verify`, and those parts of the verdict that only a page has.
  const WORDS = JSON.parse(drop.dataset.words);
  const fill = (key, values) => WORDS[key].replace(/\{(\w+)\}/g, (_, name) => values[name]);
  const counted = (count, noun) => count + " " + noun + (count === 1 ? "" : "s");
  const judge = (words, kind) => {
    verdict.textContent = words;
    verdict.className = "promise " + kind;
    verdict.hidden = false;
  };
  const say = (lines) => {
    if (Array.from(checked.children, (item) => item.textContent).join("\n") === lines.join("\n")) return;
    checked.replaceChildren(...lines.map((words) => {
      const item = document.createElement("li");
      item.textContent = words;
      return item;
    }));
  };
  // The text of manifest.json before the hashes of the files: plan, signatures, sums and receipts.
  const statement = async (file) => {
    const text = await file.text();
    return digest(new TextEncoder().encode(text.slice(0, Math.max(0, text.indexOf('\n  "files": {')))));
  };
  // The content of manifest.json or archive.json, with hashes by name under "files"; no hash without the file.
  const readPaper = async (file) => {
    if (!file) return {files: {}};
    const paper = JSON.parse(await file.text());
    if (!paper.files || typeof paper.files !== "object") throw new Error("no hashes");
    return paper;
  };
  // Parts with their lengths before them, of which a hash is taken, as canonical.py writes them.
  const tagged = (...parts) => {
    const joined = new Uint8Array(parts.reduce((sum, part) => sum + 8 + part.length, 0));
    let offset = 0;
    for (const part of parts) {
      new DataView(joined.buffer).setUint32(offset, part.length, true);
      joined.set(part, offset + 8);
      offset += 8 + part.length;
    }
    return joined;
  };
  const encoded = (text) => new TextEncoder().encode(text);
  const fromHex = (text) => Uint8Array.from(text.match(/../g) || [], (pair) => parseInt(pair, 16));
  // The first 128 bits of a hash over the DER of a CA certificate and a signing key, as enrolment.py writes them.
  const fingerprint = async (stated) => {
    const certificate = atob(stated.ca_certificate.replace(/-----[A-Z ]+-----|\s/g, ""));
    const parts = [encoded("undersong coordinator"),
      Uint8Array.from(certificate, (letter) => letter.charCodeAt(0)), fromHex(stated.signing_key)];
    return (await digest(tagged(...parts))).slice(0, 32).match(/.{4}/g).join("-");
  };
  // A tree of JSON whose numbers stay as they are written, because the signature is of their text.
  const tree = (text) => {
    JSON.parse(text);
    const tokens = text.match(/"[^"\\]*(?:\\.[^"\\]*)*"|[{}[\]:,]|[^\s{}[\]:,"]+/g);
    let place = 0;
    const read = () => {
      const token = tokens[place++];
      if (token !== "{" && token !== "[") return token[0] === '"' ? JSON.stringify(JSON.parse(token)) : token;
      const members = token === "{" ? new Map() : [], end = token === "{" ? "}" : "]";
      while (tokens[place] !== end) {
        if (tokens[place] === ",") {
          place++;
        } else if (token === "[") {
          members.push(read());
        } else {
          const key = JSON.parse(tokens[place]);
          if (members.has(key)) throw new Error("a key stands twice");
          place += 2;
          members.set(key, read());
        }
      }
      place++;
      return members;
    };
    return read();
  };
  const byPoints = (key) => Array.from(key, (letter) => letter.codePointAt(0).toString(16).padStart(6, "0")).join("");
  const canonical = (node) => {
    if (typeof node === "string") return node;
    if (Array.isArray(node)) return "[" + node.map(canonical).join(",") + "]";
    const keys = Array.from(node.keys()).sort((one, other) => (byPoints(one) < byPoints(other) ? -1 : 1));
    return "{" + keys.map((key) => JSON.stringify(key) + ":" + canonical(node.get(key))).join(",") + "}";
  };
  const without = (map, key) => new Map(Array.from(map).filter(([name]) => name !== key));
  // True or false for a signature that the browser has checked, undefined for one that it cannot check.
  const holds = async (key, signature, ...parts) => {
    if (!window.crypto || !crypto.subtle) return undefined;
    let known;
    try {
      known = await crypto.subtle.importKey("raw", fromHex(key), {name: "Ed25519"}, false, ["verify"]);
    } catch (error) {
      return error.name === "NotSupportedError" ? undefined : false;
    }
    const statement = fromHex(await digest(tagged(...parts)));
    return crypto.subtle.verify({name: "Ed25519"}, known, fromHex(signature), statement);
  };
  // The coordinator's key, and if its signatures are of manifest.json and of archive.json (null without one).
  const makers = async (manifest, archive) => {
    const text = await manifest.text(), stated = JSON.parse(text).coordinator;
    if (!stated) return {key: ""};
    const publisher = new Map(["name", "ca_certificate", "signing_key"].map((name) => [name, JSON.stringify(stated[name])]));
    const signed = await holds(stated.signing_key, stated.signature, encoded("undersong published"),
      encoded(canonical(without(tree(text), "coordinator"))), encoded(canonical(publisher)));
    let added = null;
    if (archive) {
      const papers = tree(await archive.text());
      const same = papers.get("manifest") === JSON.stringify(await digest(encoded(text)));
      added = same && await holds(stated.signing_key, JSON.parse(papers.get("signature")), encoded("undersong archive"),
        encoded(canonical(without(papers, "signature"))));
    }
    return {key: await fingerprint(stated), signed, added};
  };
  const bare = (text) => text.toLowerCase().replace(/[^0-9a-z]/g, "");
  // What the typed fingerprint says of the coordinator's key: "stated", "another" or "untyped", and what is still to do.
  const compare = ({key: own, signed}) => {
    if (own && !told) return {by: "by own word", todo: WORDS["nobody confirms"]};
    const typed = told ? bare(told.value) : "", groups = own.split("-").length;
    if (!own) return {by: "unsigned", todo: "manifest.json names no key of a coordinator."};
    if (!typed) {
      return {by: "by own word", todo: "Type the fingerprint that a hospital or the operator read to you: manifest.json" +
        " names the key " + own + ". " + WORDS.copied};
    }
    if (typed.length < bare(own).length) {
      return {by: "by own word", todo: Math.floor(typed.length / 4) + " of the fingerprint's " + groups + " groups are typed."};
    }
    if (typed !== bare(own)) {
      return {by: "by another", todo: "manifest.json names the key " + own + ". Compare what you typed with a hospital that took part;" +
        " do not use the files before it is the same."};
    }
    return signed ? {by: "by stated", todo: "Its key " + own + " has signed manifest.json."} :
      {by: "by own word", todo: "You typed the fingerprint of the key " + own + ". This browser cannot check its signature;" +
        " this command does: undersong verify . --fingerprint " + own};
  };
  // What is wrong with the files, which are not here or in no list, and how many are as they were written.
  const check = async (list) => {
    const files = Array.from(list), named = (name) => files.find((file) => file.name === name);
    if (!named("manifest.json")) return {todo: "Add manifest.json: it holds the hashes of the other files."};
    let written, added, leftOut;
    try {
      written = (await readPaper(named("manifest.json"))).files;
      const archive = await readPaper(named("archive.json"));
      added = archive.files;
      leftOut = (archive.left_out_files || []).filter((name) => OPTIONAL.includes(name) && !named(name));
    } catch (error) {
      return {faults: ["manifest.json or archive.json cannot be read"], notes: [], missing: [], outside: [], same: 0};
    }
    const stated = new Map(Object.entries({...written, ...added})), faults = [], outside = [];
    let same = 0;
    for (const file of files.filter((each) => !PAPERS.includes(each.name))) {
      if (!stated.has(file.name)) {
        outside.push(file.name);
      } else if (await digest(new Uint8Array(await file.arrayBuffer())) === stated.get(file.name)) {
        same += 1;
      } else {
        faults.push(fill(file.name in added ? "not the archive's" : "not the run's", {file: file.name}));
      }
    }
    if (drop.dataset.statement && await statement(named("manifest.json")) !== drop.dataset.statement) {
      faults.push("manifest.json: states another plan, other sums or other receipts than this report was made of");
    }
    const own = told || "unasked" in drop.dataset ? await makers(named("manifest.json"), named("archive.json")).catch(() => ({key: ""})) : undefined;
    if (own && own.signed === false) faults.push("FORGED: manifest.json does not hold a signature of its contents");
    if (own && own.added === false) faults.push("FORGED: archive.json does not hold the coordinator's signature");
    const missing = Array.from(stated.keys()).filter((name) => !named(name) && !leftOut.includes(name));
    const replaced = Object.keys(added).filter((name) => name in written);
    const notes = [
      counted(same, "file") + (own && own.signed === false ? " compared and found as manifest.json says, which is forged; " : " compared and found as written; ") + PAPERS.filter(named).join(" and ") + " held the hashes to compare with.",
      ...(leftOut.length ? [fill("left out", {files: leftOut.join(", ")})] : []),
      ...outside.map((name) => name + ": of unknown origin, since manifest.json does not name it"),
      ...replaced.map((name) => name + ": not the run's own, but the file that the coordinator put into the archive in its place"),
    ];
    return {faults, missing, outside, same, notes, own, hasRows: ROWS.some((name) => named(name))};
  };
  // The first two of the three lines that end `undersong verify`, and if all of it is good.
  const conclude = ({faults, missing, outside, own, hasRows}, by) => {
    if (faults.length) {
      return ["Files: " + fill("changed", {faults: counted(faults.length, "fault"), place: "below"}) +
        (missing.length ? fill("also missing", {count: missing.length, files: missing.join(", ")}) : "") + ". By: " + WORDS["by nobody"] +
        ". Get a fresh copy.", "none"];
    }
    if (by === "by another") return ["Files: " + WORDS["other signer"] + ". By: " + fill(by, {signer: SIGNER}) + ".", "none"];
    const parts = [missing.length ? fill("incomplete", {count: missing.length, files: missing.join(", ")}) : WORDS.whole,
      ...(hasRows ? [] : [WORDS["no corpus"]]),
      ...(outside.length ? [fill("outside", {files: counted(outside.length, "further file")})] : [])];
    const good = !missing.length && !outside.length && (!own || by === "by stated");
    return ["Files: " + parts.join("; ") + "." + (own ? " By: " + fill(by, {signer: SIGNER}) + "." : ""), good ? "kept" : "open"];
  };
  drop.hidden = false;
  let findings = null;
  const show = () => {
    if (!findings) return;
    if (findings.todo || !(findings.faults.length || findings.same)) {
      judge(findings.todo || "Nothing was compared yet: add the other files of the folder.", "open");
      say([]);
      return;
    }
    const {by, todo} = findings.own ? compare(findings.own) : {};
    judge(...conclude(findings, by));
    say([...findings.faults, ...(todo && !findings.faults.length ? [todo] : []), ...findings.notes]);
  };
  const take = async (list) => {
    findings = await check(list);
    show();
  };
  byId("files").addEventListener("change", (event) => take(event.target.files));
  if (told) told.addEventListener("input", show);
  for (const kind of ["dragover", "drop"]) {
    drop.addEventListener(kind, (event) => {
      event.preventDefault();
      if (kind === "drop") take(event.dataTransfer.files);
    });
  }
})();
