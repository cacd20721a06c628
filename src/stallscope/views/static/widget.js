export default {
  render({ model, el }) {
    return mountFlame(el, model.get("data"), (picked) => {
      model.set("picked", picked);
      model.save_changes();
    });
  },
};
