  // Copy buttons; without a clipboard the code is selected instead.
  for (const button of $$(".copy")) {
    button.hidden = false;
    button.addEventListener("click", async () => {
      const code = $("code", button.closest(".code"));
      let said = "Copied";
      try {
        await navigator.clipboard.writeText(code.textContent);
      } catch {
        getSelection().selectAllChildren(code);
        said = document.execCommand("copy") ? "Copied" : "Selected";
      }
      button.textContent = said;
      setTimeout(() => (button.textContent = "Copy"), 1600);
    });
  }
