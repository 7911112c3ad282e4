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
