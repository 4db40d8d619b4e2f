// What a report's page does beside showing: switch colours, sort and filter probes, copy commands. Without it all is there.
"use strict";
(() => {
  const root = document.documentElement;
  const remembered = {
    get: () => { try { return localStorage.getItem("autotune-theme"); } catch { return null; } },
    set: (theme) => { try { localStorage.setItem("autotune-theme", theme); } catch { /* a page from a file may keep nothing */ } },
  };
  const system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ?? (system.matches ? "dark" : "light")) === "dark";
  const theme = document.getElementById("theme");
  const name = () => { theme.textContent = isDark() ? "Light colours" : "Dark colours"; };
  if (["light", "dark"].includes(remembered.get())) root.dataset.theme = remembered.get();
  if (theme) {
    theme.hidden = false;
    name();
    system.addEventListener("change", name);
    theme.addEventListener("click", () => {
      root.dataset.theme = isDark() ? "light" : "dark";
      remembered.set(root.dataset.theme);
      name();
    });
  }

  addEventListener("beforeprint", () => {
    for (const part of document.querySelectorAll("details")) part.open = true;
  });

  for (const line of document.querySelectorAll("ul.commands li")) {
    if (!navigator.clipboard) break;
    const copy = document.createElement("button");
    const code = line.querySelector("code");
    copy.type = "button";
    copy.textContent = "Copy";
    copy.setAttribute("aria-label", `Copy: ${code.textContent}`);
    copy.addEventListener("click", async () => {
      await navigator.clipboard.writeText(code.textContent);
      copy.textContent = "Copied";
      setTimeout(() => { copy.textContent = "Copy"; }, 1500);
    });
    line.append(copy);
  }

  const table = document.querySelector("table.probes");
  const tools = document.getElementById("tools");
  if (!table || !tools) return;
  tools.hidden = false;
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const count = document.getElementById("shown");
  const words = document.getElementById("words");
  const kinds = [...tools.querySelectorAll("button[data-kind]")];
  let kind = "";
  const filter = () => {
    const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = (kind && row.dataset.kind !== kind) || !wanted.every((word) => text.includes(word));
      shown += row.hidden ? 0 : 1;
    }
    count.textContent = `${shown.toLocaleString("en")} of ${rows.length.toLocaleString("en")} probes`;
  };
  words.addEventListener("input", filter);
  for (const button of kinds) {
    button.addEventListener("click", () => {
      kind = button.dataset.kind;
      for (const other of kinds) other.setAttribute("aria-pressed", String(other === button));
      filter();
    });
  }
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    if (head.dataset.sort === undefined) return;
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const key = new Map(rows.map((row) => [row, row.dataset.keys.split(" ")[column]]));
      const number = (row) => (key.get(row) === "-" ? (down ? -Infinity : Infinity) : Number(key.get(row)));
      const sorted = [...rows].sort((a, b) => (down ? number(b) - number(a) : number(a) - number(b)));
      body.append(...sorted);
    });
  });
  filter();
})();
