"use strict";
// Unpacks plotly.js, and draws each chart from the JSON beside it in the colours of the page's theme.
(async () => {
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

  const unpack = async () => {
    const packed = atob(document.getElementById("plotly").textContent);
    const bytes = Uint8Array.from(packed, (letter) => letter.charCodeAt(0));
    const code = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.textContent = await new Response(code).text();
    document.head.append(script);
  };

  // Nothing can be unfolded on paper, and a chart is as wide as its column there: its drawing is
  // scaled, words and all.
  const folded = () => document.querySelectorAll("details:not([open])");
  const drawings = () => document.querySelectorAll(".plot .main-svg");
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...folded()];
    opened.forEach((part) => { part.open = true; });
    drawings().forEach((drawing) => {
      const [width, height] = ["width", "height"].map((side) => drawing.getAttribute(side));
      drawing.setAttribute("viewBox", `0 0 ${width} ${height}`);
    });
  });
  addEventListener("afterprint", () => {
    opened.forEach((part) => { part.open = false; });
    drawings().forEach((drawing) => drawing.removeAttribute("viewBox"));
  });

  if (charts.length === 0) return;
  if (!("DecompressionStream" in window)) {
    charts.forEach((chart) => {
      chart.textContent = "This chart needs a browser of 2023 or later.";
    });
    return;
  }
  await unpack();
  await Promise.all(charts.map(draw));
  document.querySelectorAll(".legend button").forEach((button) => {
    const chart = button.closest("figure").querySelector(".plot");
    button.addEventListener("click", () => {
      const shown = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", String(shown));
      Plotly.restyle(chart, { visible: shown }, button.value.split(" ").map(Number));
    });
    button.disabled = false;
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    charts.forEach((chart) => Plotly.relayout(chart, theme()));
  });
})();
