// The heat map in a notebook: series to choose from, and the chosen cell as `step` and `position` in Python.

export default {
  render({ model, el }) {
    const host = hrx.el("div", { "data-theme": "light" }); // figures in a notebook are light
    const names = model.get("items").map((item) => item.name);
    const select = hrx.el("select", { onchange: () => choose(select.selectedIndex) }, names.map((name) => hrx.el("option", {}, name)));
    if (names.length > 1) host.append(hrx.el("label", { class: "field" }, "Series ", select));
    el.append(hrx.el("div", { class: "hrx-heat" }, host));
    const heatmap = new hrx.Heatmap(host, model.get("palette"));

    const moved = heatmap.moved.bind(heatmap);
    heatmap.moved = () => {
      moved();
      model.set("series", names[select.selectedIndex]);
      model.set("step", heatmap.item.steps[heatmap.cursor.row]);
      model.set("position", heatmap.cursor.at - heatmap.lookback);
      model.save_changes();
    };
    const choose = (number) => heatmap.show(model.get("items")[number]).then(() => { host.dataset.ready = String(number); });
    choose(0);
    return () => heatmap.stop();
  },
};
