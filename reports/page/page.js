"use strict";
// What only a whole page has: buttons that save its tables, and themes.

document.querySelectorAll("[data-csv]").forEach((button) =>
  button.addEventListener("click", () => hrx.saveCsv(`hrx-${button.dataset.csv}`, hrx.tableRows(hrx.byId(button.dataset.csv)))));

// Themes: the system's, until the reader chooses the other one. Paper is always light.
(function () {
  const root = document.documentElement;
  const button = hrx.byId("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const kept = () => {
    try {
      return localStorage.getItem("hrx-theme");
    } catch (refused) {
      return null; // some browsers refuse storage to a file
    }
  };
  const show = (theme) => {
    const dark = theme === "dark";
    root.dataset.theme = theme;
    if (button) {
      button.textContent = dark ? "Light" : "Dark";
      button.setAttribute("aria-pressed", String(dark));
      button.setAttribute("aria-label", `${dark ? "Light" : "Dark"} theme`);
    }
    hrx.redraw();
  };
  const preferred = () => kept() || (system.matches ? "dark" : "light");
  system.addEventListener("change", () => show(preferred()));
  if (button) {
    button.addEventListener("click", () => {
      const theme = root.dataset.theme === "dark" ? "light" : "dark";
      try {
        localStorage.setItem("hrx-theme", theme);
      } catch (refused) {
        // then the theme lasts as long as the page
      }
      show(theme);
    });
  }
  let before = null;
  addEventListener("beforeprint", () => {
    before = root.dataset.theme;
    show("light");
  });
  addEventListener("afterprint", () => show(before || preferred()));
  show(preferred());
})();
