/* What a page does beyond showing itself: times in the reader's zone, renewing its parts, saying when it cannot. */
"use strict";
(() => {
  const stale = document.getElementById("stale");
  const topic = document.body.dataset.topic;
  const base = document.body.dataset.base;  // the half of the session's secret that is no cookie
  let version = document.body.dataset.version;
  let heard = Date.now();
  let source = null;
  let over = false;

  /* One form of date everywhere, that of the page without script: 2026-11-30 00:17:38, in the reader's zone. */
  function clock(date) {
    const two = (number) => String(number).padStart(2, "0");
    const day = [date.getFullYear(), two(date.getMonth() + 1), two(date.getDate())].join("-");
    return day + " " + [date.getHours(), date.getMinutes(), date.getSeconds()].map(two).join(":");
  }

  function localise(root) {
    for (const each of root.querySelectorAll("time[datetime]")) {
      if (each.title) continue;
      each.title = each.textContent;
      each.textContent = clock(new Date(each.dateTime));
    }
  }

  function say(words) {
    if (stale.textContent !== words) stale.textContent = words;
    stale.hidden = !words;
  }

  /* A part in which somebody types, or has typed or ticked something, is left alone. */
  function busy(part) {
    const at = document.activeElement;
    if (part.contains(at) && at.matches("input:not([type=checkbox]), textarea, select")) return true;
    return [...part.querySelectorAll("input, textarea, select")].some((each) => each.options
      ? each.selectedIndex !== Math.max(0, [...each.options].findIndex((option) => option.defaultSelected))
      : each.value !== each.defaultValue || each.checked !== each.defaultChecked);
  }

  /* Where the focus is among the places that keys reach, and the same place after a reload or a renewal. */
  const PLACES = "a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex]";
  function alike(each) {
    const words = each.matches("a, button, summary") ? [each.value, each.getAttribute("aria-label"), each.textContent.trim()] : [];
    return [each.tagName, each.id, each.name, ...words].join("\n");
  }
  function focused(root) {
    const at = document.activeElement;
    if (at === document.body || !root.contains(at)) return null;
    return { like: alike(at), nth: [...root.querySelectorAll(PLACES)].filter((each) => alike(each) === alike(at)).indexOf(at) };
  }
  function focusAgain(root, spot) {
    const found = [...root.querySelectorAll(PLACES)].filter((each) => alike(each) === spot.like);
    const place = found[spot.nth] || found[0] || root;
    if (place === root) root.tabIndex = -1;
    place.focus({ preventScroll: true });
  }

  /* After a form was sent, keys go on where its answer leads: the place that it names, a fault, the place as before, what it says. */
  function arrive() {
    const [path, spot, open] = JSON.parse(sessionStorage.getItem("sent") || "[]");
    sessionStorage.removeItem("sent");
    const told = document.querySelector("main > .told");
    if (path === location.pathname) {
      for (const id of open) document.getElementById(id)?.setAttribute("open", "");
      const named = location.hash && document.getElementById(location.hash.slice(1));
      const place = named ? (named.matches(PLACES) ? named : named.querySelector(PLACES)) : told && document.querySelector("[aria-invalid]");
      if (place) return place.focus();
      if (!told && spot) return focusAgain(document, spot);
    }
    if (told) { told.tabIndex = -1; told.focus(); }
  }

  /* What was said at the top of a screen goes once the state that the screen shows has failed since it was said. */
  const failedAt = () => document.querySelector("[data-failed]")?.dataset.failed;
  const failedBefore = failedAt();
  function contradict() {
    if (failedAt() && failedAt() !== failedBefore) document.querySelector("main > .told.done")?.remove();
  }

  const shown = Date.now();
  let pressed = false;  // a click on a place that is replaced before the button is let go would reach nothing
  let renewing = false;  // once it is let go
  function renew() {
    if (pressed) { renewing = true; return; }
    renewing = false;
    if (Date.now() - shown > 15000) document.querySelector("main > .told.done")?.remove();
    for (const part of document.querySelectorAll("[data-part]")) if (!busy(part)) htmx.trigger(part, "renew");
  }

  addEventListener("pointerdown", () => { pressed = true; }, true);
  for (const name of ["pointerup", "pointercancel", "dragend", "blur"])
    addEventListener(name, () => setTimeout(() => { pressed = false; if (renewing) renew(); }, 0));

  function ended() {
    over = true;
    if (source) source.close();
    say("Your session has ended: what you see is not renewed. ");
    const link = document.createElement("a");
    link.href = "/login";
    link.textContent = "Log in again";
    stale.append(link);
  }

  function hear(event) {
    heard = Date.now();
    const pulse = JSON.parse(event.data);
    say(pulse.away ? pulse.away : "");
    if (pulse.version !== version) {
      version = pulse.version;
      renew();
    }
  }

  function connect() {
    if (over) return;
    source = new EventSource(base + "/stream?topic=" + encodeURIComponent(topic));
    source.addEventListener("pulse", hear);
    source.addEventListener("ended", ended);
    source.addEventListener("error", async () => {
      source.close();
      if (over) return;
      try {
        const answer = await fetch(base + "/alive", { cache: "no-store" });
        if (answer.status === 401) return ended();
      } catch { /* it is away: said below, and tried again */ }
      setTimeout(connect, 1500);
    });
  }

  if (topic) {
    connect();
    setInterval(() => {
      if (!over && Date.now() - heard > 4000) say("Stale since " + clock(new Date(heard)) + ": the connection to this page's program is cut. It is tried again.");
    }, 500);
  }
  document.body.addEventListener("htmx:responseError", (event) => { if (event.detail.xhr.status === 401) ended(); });

  /* What was unfolded stays so when its part is renewed. */
  const unfolded = new Set();
  document.addEventListener("toggle", (event) => {
    const id = event.target.id;
    if (id && event.target.isConnected) event.target.open ? unfolded.add(id) : unfolded.delete(id);
  }, true);
  const kept = new Map();  // of each part that is being replaced, by its id: where the focus was in it
  document.body.addEventListener("htmx:beforeSwap", (event) => {
    if (pressed) {
      event.detail.shouldSwap = false;
      renewing = true;
      return;
    }
    kept.set(event.detail.target.id, focused(event.detail.target));
    for (const each of event.detail.target.querySelectorAll("details[id]")) each.open ? unfolded.add(each.id) : unfolded.delete(each.id);
  });
  /* Before the renewed part is painted: no time is ever seen in another zone than the rest of the screen. */
  document.body.addEventListener("htmx:afterSwap", () => { localise(document); contradict(); });
  document.body.addEventListener("htmx:load", (event) => {
    const root = event.detail.elt;
    for (const id of unfolded) {
      const found = root.querySelector("#" + CSS.escape(id));
      if (found) found.open = true;
    }
    const spot = kept.get(root.id);
    kept.delete(root.id);
    if (spot && document.activeElement === document.body) focusAgain(root, spot);
    localise(root);
  });

  /* The secret of a one-time link stands behind the #, which no server and no log ever sees, and leaves the address here. */
  const code = document.getElementById("code");
  if (code && location.hash.length > 1) {
    code.value = location.hash.slice(1);
    history.replaceState(null, "", location.pathname);
  }
  if (code) {  // its button sends nothing before there is a code
    const ready = () => { code.form.querySelector("button").disabled = !code.value.trim(); };
    code.addEventListener("input", ready);
    ready();
  }

  /* Cookies can be planted from another port; a tab's storage cannot. A log-in that another tab or site began ends here. */
  const there = document.querySelector("a[data-state]");
  if (there) {
    sessionStorage.setItem("oidc", there.dataset.state);
    location.replace(there.href);
  }
  const back = document.getElementById("oidc-return");
  if (back) {
    if (sessionStorage.getItem("oidc") === back.elements.state.value) back.submit();
    else document.getElementById("elsewhere").hidden = false;
    sessionStorage.removeItem("oidc");
  }

  /* What was typed last goes with its form, not after it. */
  let sending = false;
  const underWay = new WeakSet();  // forms that wait for their answer
  document.body.addEventListener("htmx:beforeRequest", (event) => { if (sending) event.preventDefault(); });

  /* The form of a run is kept half a second after the last key: whoever leaves before that is asked first. */
  const draft = document.getElementById("draft");
  if (draft) {
    let typed = 0, asked = 0, saved = 0;  // inputs so far, when they were last sent, and when that was answered
    const isDraft = (event) => event.detail.target?.id === "so-far";
    draft.addEventListener("input", () => { typed += 1; });
    document.body.addEventListener("htmx:beforeRequest", (event) => { if (isDraft(event)) asked = typed; });
    document.body.addEventListener("htmx:afterRequest", (event) => { if (isDraft(event) && event.detail.successful) saved = asked; });
    addEventListener("beforeunload", (event) => { if (typed > saved && !sending) event.preventDefault(); });
  }

  /* Takes away what forms said at their buttons before. */
  function unsay() { for (const each of document.querySelectorAll(".refused")) each.remove(); }

  /* A form that is refused stays on the screen as it was typed, and says at its button why. */
  document.addEventListener("submit", async (event) => {
    const form = event.target;
    if (form.matches("[data-download]")) return;  // The screen stays, and its buttons can be used again at once.
    const button = event.submitter;
    const buttons = form.querySelectorAll("button");
    const disable = (is) => { for (const each of buttons) each.disabled = is; };
    setTimeout(() => disable(true), 0);
    if (!base || form.getAttribute("method") !== "post") {
      setTimeout(() => disable(false), 8000);
      return;
    }
    event.preventDefault();
    if (underWay.has(form)) return;  // the second half of a double click comes before the button is disabled
    underWay.add(form);
    sending = true;
    const spot = focused(document);  // a button that is disabled loses it
    const sent = new FormData(form);
    if (button && button.name) sent.append(button.name, button.value);
    unsay();
    let told;
    const wait = setTimeout(() => {
      const working = document.createElement("p");
      working.className = "notice refused";
      working.setAttribute("role", "status");
      working.textContent = "This is under way. Another click changes nothing.";
      if (button) button.before(working); else form.append(working);
    }, 800);
    try {
      const enctype = (button && button.formEnctype) || form.enctype;
      const body = enctype === "multipart/form-data" ? sent : new URLSearchParams(sent);
      const answer = await fetch(form.getAttribute("action"), { method: "POST", body, headers: { accept: "application/json" } });
      if (answer.status === 401) return ended();
      told = await answer.json();
    } catch {
      told = { box: "problem", shown: "<p>The page's program does not answer. Try again: nothing that you typed is lost.</p>" };
    }
    clearTimeout(wait);
    if (!told.location) unsay();
    if (told.location) {
      const there = new URL(told.location, location.href);
      const open = [...document.querySelectorAll("details[id][open]")].map((each) => each.id);
      if (there.pathname === location.pathname) sessionStorage.setItem("sent", JSON.stringify([there.pathname, spot, open]));
      const same = there.pathname + there.search === location.pathname + location.search;
      if (!same) return location.assign(there);
      history.replaceState(null, "", there);
      return location.reload();
    }
    disable(false);
    underWay.delete(form);
    sending = false;
    const why = document.createElement("div");
    why.className = told.box + " refused";
    why.setAttribute("role", told.box === "problem" ? "alert" : "status");
    why.tabIndex = -1;
    why.innerHTML = told.shown;  // the page's own, escaped where it was made
    if (button) button.before(why); else form.append(why);
    why.focus();
  });

  /* A file that is chosen at a field is uploaded at once: a form sent by another button would leave it behind. */
  document.addEventListener("change", (event) => {
    if (event.target.type !== "file" || !event.target.value) return;
    const upload = event.target.parentElement.querySelector('button[value^="upload "]');
    if (upload) upload.click();
  });

  /* A file that is given out once: its screen says next that it was downloaded, unless the reader has gone on by then. */
  let reloading = 0;
  document.addEventListener("submit", () => clearTimeout(reloading));
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[href]");
    if (!link) return;
    clearTimeout(reloading);
    if (!link.matches("[data-once]")) return;
    setTimeout(() => { link.remove(); reloading = setTimeout(() => location.reload(), 1500); }, 0);
  });

  document.addEventListener("click", (event) => {
    if (event.target.closest("[data-print]")) { event.preventDefault(); print(); }
  });

  localise(document);
  const zone = document.getElementById("zone");
  if (zone) zone.textContent = "your zone, " + Intl.DateTimeFormat().resolvedOptions().timeZone;
  arrive();
})();
