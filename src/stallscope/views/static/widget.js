export default {
  render({ model, el }) {
    return mountFlame(el, model.get("data"));
  },
};
