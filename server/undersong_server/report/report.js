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

  const frame = byId("map-frame");
  if (frame) {
    const points = Array.from(frame.querySelectorAll("circle"));
    const buttons = Array.from(frame.querySelectorAll(".legend button"));
    const show = (only) => {
      for (const point of points) point.classList.toggle("away", Boolean(only) && !point.classList.contains(only));
      for (const button of buttons) button.setAttribute("aria-pressed", String(button.dataset.class === only));
    };
    for (const button of buttons)
      button.addEventListener("click", () =>
        show(button.getAttribute("aria-pressed") === "true" ? "" : button.dataset.class));
    for (const choice of frame.querySelectorAll("input")) choice.addEventListener("change", () => show(""));

    const plot = frame.querySelector(".plot");
    const tip = byId("tip");
    plot.addEventListener("pointerover", (event) => {
      const text = event.target.dataset && event.target.dataset.text;
      tip.hidden = !text;
      if (!text) return;
      tip.textContent = text;
      const box = plot.getBoundingClientRect();
      const x = event.clientX - box.left, y = event.clientY - box.top;
      tip.style.left = Math.max(4, Math.min(x + 12, box.width - tip.offsetWidth - 8)) + "px";
      tip.style.top = (y + 16 + tip.offsetHeight > box.height ? y - tip.offsetHeight - 12 : y + 16) + "px";
    });
    plot.addEventListener("pointerleave", () => { tip.hidden = true; });
  }

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
    count.textContent = found === 0 ? "No text here fits. The whole corpus is in synthetic.jsonl." :
      Math.min(found, limit) + " shown of " + found + " that fit, out of " + articles.length +
      " drawn from every label, generator and round.";
  };
  filters.hidden = false;
  filters.addEventListener("input", () => { limit = PAGE; apply(); });
  filters.addEventListener("submit", (event) => event.preventDefault());
  more.addEventListener("click", () => { limit += 2 * PAGE; apply(); });
  apply();
})();
