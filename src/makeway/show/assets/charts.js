
// --- charts ---------------------------------------------------------------------------------------

// Plotly draws what the plain bars and tables below it already say; without it, those stay.
function colours() {
  const style = getComputedStyle(document.documentElement);
  return (name) => style.getPropertyValue(`--${name}`).trim();
}

const narrow = () => innerWidth < 600; // a phone

function barFigure(data, colour) {
  const labels = narrow() ? data.labels.map((label) => label.replaceAll("+", " +<br>")) : data.labels;
  const traces = data.traces.map((trace, place) => ({
    type: "bar", orientation: "h", name: trace.name, y: labels, x: trace.amounts, marker: { color: trace.colours.map(colour) },
    text: place === data.traces.length - 1 ? data.notes : undefined, textposition: narrow() ? "inside" : "auto", insidetextanchor: "start",
    insidetextfont: { color: trace.colours.map((name) => inkOn(colour(name))) },
    hovertemplate: `%{y}: %{x:.3f} ${data.unit}<extra></extra>`,
    error_x: place === data.traces.length - 1 && data.spread.some((sides) => sides !== null)
      ? { type: "data", symmetric: false, array: data.spread.map((sides) => sides?.[1] ?? 0), arrayminus: data.spread.map((sides) => sides?.[0] ?? 0), color: colour("ink"), thickness: 1.2 } : undefined,
  }));
  const shapes = data.mark_at === null ? [] : [{
    type: "line", x0: data.mark_at, x1: data.mark_at, yref: "paper", y0: 0, y1: 1, line: { color: colour("exposed"), dash: "dot", width: 1.5 },
  }];
  const names = 20 * data.traces.length; // the height of the legend
  const annotations = data.mark_at === null ? [] : [{
    x: data.mark_at, yref: "paper", y: 1, yanchor: "bottom", showarrow: false, text: data.mark, font: { color: colour("ink") },
  }];
  return [traces, {
    barmode: "stack", shapes, annotations, showlegend: data.traces.length > 1,
    ...(narrow() && data.traces.length > 1 ? {
      height: 100 + 30 * data.labels.length + names, margin: { l: 10, r: 10, t: 24, b: 54 + names },
      legend: { traceorder: "normal", x: 0, yref: "container", y: 0, yanchor: "bottom" }, // below: beside the bars it takes half of the width
    } : { height: Math.max(90 + 30 * data.labels.length, data.traces.length > 1 ? 90 + names : 0), legend: { traceorder: "normal" } }),
    xaxis: { title: { text: data.unit }, gridcolor: colour("line"), rangemode: "tozero" }, yaxis: { autorange: "reversed", automargin: true, ticksuffix: "  " },
  }];
}

function curveFigure(data, colour) {
  const every = narrow() ? Math.ceil(data.places.length / 5) : 1; // labels that have room
  const places = data.places.filter((_, at) => (data.places.length - 1 - at) % every === 0);
  const names = ["accent", "comm", "waiting", "contention", "dependency", "exposed", "copy", "memory"];
  return [data.curves.map((curve, place) => ({
    type: "scatter", mode: "lines+markers", name: curve.label, x: data.places, y: curve.values, connectgaps: false,
    line: { color: colour(names[place % names.length]), dash: place < names.length ? "solid" : "dot" },
    hovertemplate: `${data.place_title} %{x:,}: %{y:,.${data.digits}f}<extra>%{fullData.name}</extra>`,
  })), {
    height: narrow() ? 300 + 30 * data.curves.length : 290 + 8 * data.curves.length, showlegend: data.curves.length > 1, legend: { orientation: narrow() ? "v" : "h", y: narrow() ? -0.35 : -0.32, yanchor: "top", x: 0 },
    xaxis: { type: "log", title: { text: data.place_title }, tickvals: places, ticktext: places.map((place) => place.toLocaleString("en")), gridcolor: colour("line") },
    yaxis: { title: { text: data.value_title }, gridcolor: colour("line"), rangemode: "tozero", automargin: true },
  }];
}

function drawCharts() {
  const colour = colours();
  for (const box of document.querySelectorAll("[data-chart]")) {
    const data = JSON.parse(document.getElementById(box.dataset.chart).textContent);
    const [traces, layout] = { bars: barFigure, curves: curveFigure }[data.kind](data, colour);
    box.hidden = false;
    Plotly.react(box, traces, {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: colour("ink"), size: 12 },
      margin: { l: 10, r: 10, t: 24, b: 44 }, ...layout,
    }, { displayModeBar: false, responsive: true });
    const plain = box.closest("figure").querySelector(".plain-chart");
    plain.classList.add("for-readers");
    plain.querySelector("[tabindex]")?.removeAttribute("tabindex"); // what cannot be seen takes no focus
  }
}

if (window.Plotly) {
  drawCharts();
  document.getElementById("js-plotly-tester")?.setAttribute("aria-hidden", "true"); // where Plotly measures text
  for (const query of ["(prefers-color-scheme: dark)", "(max-width: 599px)", "print"]) matchMedia(query).addEventListener("change", drawCharts);
}
