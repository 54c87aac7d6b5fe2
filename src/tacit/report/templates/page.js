"use strict";
// Draws each chart from the JSON beside it, in the colours of the page's theme.
(() => {
  const charts = [...document.querySelectorAll(".plot")];
  const touch = !matchMedia("(hover: hover)").matches;
  const config = {
    responsive: true,
    displaylogo: false,
    displayModeBar: touch ? false : "hover",
    modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
  };

  const theme = () => {
    const style = getComputedStyle(document.documentElement);
    const ink = style.getPropertyValue("--ink").trim();
    const card = style.getPropertyValue("--card").trim();
    return {
      "font.color": ink,
      "hoverlabel.bgcolor": card,
      "hoverlabel.font.color": ink,
      "modebar.color": style.getPropertyValue("--quiet").trim(),
      "modebar.bgcolor": "rgba(0,0,0,0)",
    };
  };

  const draw = async (chart) => {
    const figure = JSON.parse(chart.nextElementSibling.textContent);
    if (touch) figure.layout.dragmode = false; // a swipe scrolls the page
    // where there is no room for words beside the rows, their numbers stand there
    if (chart.clientWidth < 480) delete figure.layout.yaxis.ticktext;
    await Plotly.newPlot(chart, figure.data, figure.layout, config);
    await Plotly.relayout(chart, theme());
  };

  // On paper a chart is as wide as its column there: its drawing is scaled, words and all.
  const drawings = () => document.querySelectorAll(".plot .main-svg");
  addEventListener("beforeprint", () => {
    drawings().forEach((drawing) => {
      const [width, height] = ["width", "height"].map((side) => drawing.getAttribute(side));
      drawing.setAttribute("viewBox", `0 0 ${width} ${height}`);
    });
  });
  addEventListener("afterprint", () => {
    drawings().forEach((drawing) => drawing.removeAttribute("viewBox"));
  });

  charts.forEach(draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    charts.forEach((chart) => Plotly.relayout(chart, theme()));
  });
})();
