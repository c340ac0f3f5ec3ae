// Draws the panels of one dashboard with Grafana's own components: window.panels holds them with Prometheus' answers.
import "uplot/dist/uPlot.min.css";

// As CommonJS: their ES modules import defaults of CommonJS packages, which bundlers resolve differently.
const {
  applyFieldOverrides,
  cacheFieldDisplayNames,
  createTheme,
  dateTime,
  FieldConfigOptionsRegistry,
  FieldType,
  getFieldDisplayValues,
  standardTransformers,
  standardTransformersRegistry,
  ThemeContext,
  transformDataFrame,
} = require("@grafana/data");
const { BarGauge, BigValue, GlobalStyles, TimeSeries } = require("@grafana/ui");
const { TableNG } = require("@grafana/ui/unstable"); // the table of Grafana's application
const React = require("react");
const { createRoot } = require("react-dom/client");

const COLUMNS = 24;
const ROW_PIXELS = 38;
const { board, dark } = window.given;
// What Grafana's panels of that kind add by themselves.
const DEFAULTS = { timeseries: { color: { mode: "palette-classic" } } };
const theme = createTheme({ colors: { mode: dark ? "dark" : "light" } });

standardTransformersRegistry.setInit(() =>
  // Two of its names are one transformation.
  [...new Map(Object.values(standardTransformers).map((each) => [each.id, each])).values()].map((transformation) => ({
    id: transformation.id, transformation: () => Promise.resolve(transformation), name: transformation.name, editor: () => null,
  })),
);

// Grafana registers the options of fields inside of its application; an override needs their paths alone.
function optionsOf(panel) {
  const ids = new Set(["unit", "decimals", "min", "max", "mappings", "thresholds", "color", "displayName", "links", "noValue"]);
  for (const each of panel.fieldConfig?.overrides ?? []) each.properties.forEach((property) => ids.add(property.id));
  for (const name of Object.keys(panel.fieldConfig?.defaults?.custom ?? {})) ids.add(`custom.${name}`);
  return new FieldConfigOptionsRegistry(() =>
    [...ids].map((id) => ({
      id, name: id, isCustom: id.startsWith("custom."), path: id.replace(/^custom\./, ""),
      process: (value) => value, shouldApply: () => true, override: () => null, editor: () => null,
    })),
  );
}

const legend = (format, labels) =>
  !format || format === "__auto"
    ? `{${Object.entries(labels).map(([name, value]) => `${name}="${value}"`).join(", ")}}`
    : format.replace(/\{\{\s*(\w+)\s*\}\}/g, (_, name) => labels[name] ?? "");

// As Grafana's Prometheus data source does: one frame for each series, or one table for each target.
function framesOf(target, _, targets) {
  if (target.format === "table") {
    const names = [...new Set(target.result.flatMap((series) => Object.keys(series.metric)))].filter((name) => name !== "__name__").sort();
    const field = (name, type, values) => ({ name, type, values, config: { filterable: true } });
    return [{
      refId: target.refId,
      length: target.result.length,
      fields: [
        field("Time", FieldType.time, target.result.map((series) => series.value[0] * 1000)),
        ...names.map((name) => field(name, FieldType.string, target.result.map((series) => series.metric[name] ?? ""))),
        field(targets.length > 1 ? `Value #${target.refId}` : "Value", FieldType.number, target.result.map((series) => Number(series.value[1]))),
      ],
    }];
  }
  return target.result.map((series) => {
    const values = series.values ?? [series.value];
    const { __name__: name, ...labels } = series.metric;
    return {
      refId: target.refId,
      length: values.length,
      fields: [
        { name: "Time", type: FieldType.time, values: values.map((value) => value[0] * 1000), config: {} },
        {
          name: name ?? "Value", type: FieldType.number, labels, values: values.map((value) => Number(value[1])),
          config: { displayNameFromDS: legend(target.legendFormat, labels) },
        },
      ],
    };
  });
}

function transformed(panel) {
  const frames = panel.targets.flatMap(framesOf);
  return new Promise((resolve) => {
    transformDataFrame(panel.transformations ?? [], frames, { interpolate: (text) => text }).subscribe(resolve);
  });
}

function Body({ panel, frames, width, height }) {
  const data = applyFieldOverrides({
    data: frames,
    fieldConfig: { overrides: [], ...panel.fieldConfig, defaults: { ...DEFAULTS[panel.type], ...panel.fieldConfig?.defaults } },
    fieldConfigRegistry: optionsOf(panel),
    replaceVariables: (text) => text,
    theme,
    timeZone: "utc",
  });
  cacheFieldDisplayNames(data);
  if (data.length === 0) return <p>No data</p>;
  if (panel.type === "table") return <TableNG data={data[0]} width={width} height={height} />;
  if (panel.type === "timeseries") {
    const times = data.flatMap((frame) => frame.fields[0].values);
    const from = dateTime(Math.min(...times)), to = dateTime(Math.max(...times));
    return (
      <TimeSeries frames={data} timeRange={{ from, to, raw: { from, to } }} timeZone="utc" width={width} height={height}
        legend={{ calcs: [], displayMode: "list", placement: "bottom", showLegend: true, ...panel.options?.legend }} />
    );
  }
  const values = getFieldDisplayValues({
    data, theme, timeZone: "utc", fieldConfig: panel.fieldConfig, replaceVariables: (text) => text,
    reduceOptions: panel.options.reduceOptions ?? { calcs: ["lastNotNull"], values: false },
  });
  const one = (value, width, height) =>
    panel.type === "stat" ? (
      <BigValue value={value.display} theme={theme} width={width} height={height} colorMode={panel.options.colorMode ?? "value"}
        graphMode="none" textMode={panel.options.textMode ?? "auto"} justifyMode={panel.options.justifyMode ?? "auto"} count={values.length} />
    ) : (
      <BarGauge value={value.display} field={value.field} display={value.view?.getFieldDisplayProcessor(value.colIndex)} theme={theme}
        width={width} height={height} orientation={panel.options.orientation ?? "horizontal"} displayMode={panel.options.displayMode ?? "gradient"} />
    );
  const each = height / Math.max(1, panel.type === "bargauge" ? values.length : 1);
  return values.map((value, number) => (
    <div key={number} style={panel.type === "stat" ? { float: "left" } : {}}>
      {one(value, panel.type === "stat" ? width / values.length : width, each)}
    </div>
  ));
}

class Panel extends React.Component {
  state = { error: null };
  static getDerivedStateFromError(error) { return { error }; }
  render() {
    const { panel, frames, width, height } = this.props;
    const [inner, below] = [width - 18, height - 44];
    const body = ["stat", "table", "timeseries", "bargauge"].includes(panel.type)
      ? <Body panel={panel} frames={frames} width={inner} height={below} />
      : <p>{panel.type}: {frames.length} series (drawn by Grafana's application alone)</p>;
    return <>
      <h6 style={{ margin: "4px 8px", whiteSpace: "nowrap", overflow: "hidden" }}>{panel.title}</h6>
      <div style={{ margin: "0 8px" }}>{this.state.error ? <p className="failed">failed: {String(this.state.error)}</p> : body}</div>
    </>;
  }
}

async function draw() {
  const panels = await Promise.all(board.panels.map(async (panel) => ({ panel, frames: panel.targets ? await transformed(panel) : [] })));
  const wide = document.documentElement.clientWidth / COLUMNS;
  const bottom = Math.max(...panels.map(({ panel }) => panel.gridPos.y + panel.gridPos.h));
  document.body.style.background = theme.colors.background.canvas;
  createRoot(document.getElementById("root")).render(
    <ThemeContext.Provider value={theme}>
      <GlobalStyles />
      <div style={{ position: "relative", height: bottom * ROW_PIXELS }}>
        {panels.map(({ panel, frames }) => {
          const { x, y, w, h } = panel.gridPos;
          const [width, height] = [w * wide - 8, h * ROW_PIXELS - 8];
          return (
            <section key={panel.id} style={{
              position: "absolute", left: x * wide + 4, top: y * ROW_PIXELS + 4, width, height, overflow: "hidden",
              color: theme.colors.text.primary, ...(panel.type === "row" ? {} : { background: theme.colors.background.primary, border: `1px solid ${theme.colors.border.weak}` }),
            }}>
              <Panel panel={panel} frames={frames} width={width} height={height} />
            </section>
          );
        })}
      </div>
    </ThemeContext.Provider>,
  );
  setTimeout(() => { document.body.dataset.drawn = "yes"; }, 1500);
}
draw();
