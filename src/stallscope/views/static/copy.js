// A button that puts a text on the clipboard, and says whether it did.
function byHand(text) {
  // Where the page may not use the clipboard's own interface (http, an old browser)
  const area = document.createElement("textarea");
  area.value = text;
  area.setAttribute("readonly", "");
  area.style.cssText = "position:fixed;top:0;left:0;opacity:0";
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  return done;
}

async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return byHand(text);
  }
}

export default {
  render({ model, el }) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "jupyter-widgets jupyter-button widget-button";
    const told = document.createElement("span");
    told.setAttribute("role", "status");
    told.style.cssText = "margin-left:8px";
    el.style.cssText = "display:flex;align-items:center";
    el.append(button, told);
    const show = () => {
      button.textContent = model.get("label");
      button.disabled = !model.get("text");
      told.textContent = "";
    };
    button.addEventListener("click", async () => {
      const done = await copied(model.get("text"));
      told.textContent = done ? "copied" : "not copied: select the code below";
      button.focus();
    });
    model.on("change:text", show);
    model.on("change:label", show);
    show();
    return () => {
      model.off("change:text", show);
      model.off("change:label", show);
    };
  },
};
