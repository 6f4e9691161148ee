  const $ = (selector, root = document) => root.querySelector(selector);
  const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];

  // Theme: the system's until the button is pressed.
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  const toggle = $("#theme");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const showTheme = () => toggle.setAttribute("aria-pressed", String(isDark()));
  toggle.hidden = false;
  toggle.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    showTheme();
  });
  system.addEventListener("change", showTheme);
  showTheme();
