/** Line charts as SVG: a panel for each measure, both axes logarithmic. */

export interface Panel {
  readonly title: string;
  readonly lines: readonly Line[];
}

export interface Line {
  readonly name: string;
  /** Number of Services, and the value. */
  readonly points: readonly (readonly [number, number])[];
}

const PANEL = { width: 300, height: 200 };
const COLUMNS = 3;
/** Space around a chart: labels of the axes, and the title. */
const MARGIN = { left: 44, right: 20, top: 28, bottom: 24 };
/** Space below the panels, for each program. */
const LEGEND_HEIGHT = 20;
/** Distinct in both colour schemes and with colour blindness (Okabe and Ito). */
const COLORS = ['#0072b2', '#d55e00', '#009e73', '#cc79a7', '#e69f00', '#56b4e9'];
/** Programs also differ by their dashes. */
const DASHES = ['none', '6 3', '2 3', '8 3 2 3', '4 2', '1 2'];

/** @returns an SVG document that follows the colour scheme of the reader. */
export function plot(panels: readonly Panel[]): string {
  const names = panels[0]?.lines.map(({ name }) => name) ?? [];
  const rows = Math.ceil(panels.length / COLUMNS);
  const [width, bottom] = [COLUMNS * PANEL.width, rows * PANEL.height];
  const height = bottom + names.length * LEGEND_HEIGHT + 8;
  const charts = panels.map((panel, index) => {
    const x = (index % COLUMNS) * PANEL.width;
    const y = Math.floor(index / COLUMNS) * PANEL.height;
    return `<g transform="translate(${x} ${y})">${chart(panel)}</g>`;
  });
  const legend = names.map((name, index) => {
    const y = bottom + index * LEGEND_HEIGHT + 10;
    const line = `<path d="M${MARGIN.left} ${y}h30" ${strokeOf(index)}/>`;
    return `${line}<text x="${MARGIN.left + 38}" y="${y + 4}">${escapeText(name)}</text>`;
  });
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" font-family="sans-serif" font-size="11">`,
    '<style>text{fill:#333}.axis{stroke:#bbb}@media(prefers-color-scheme:dark){text{fill:#ddd}.axis{stroke:#555}}</style>',
    ...charts,
    ...legend,
    '</svg>\n',
  ].join('\n');
}

function chart({ title, lines }: Panel): string {
  const points = lines.flatMap((line) => line.points);
  const sizes = [...new Set(points.map(([services]) => services))];
  const x = scale(sizes, MARGIN.left, PANEL.width - MARGIN.right);
  const powers = powersAround(points.map(([, value]) => value));
  const y = scale(powers, PANEL.height - MARGIN.bottom, MARGIN.top);
  const base = PANEL.height - MARGIN.bottom;
  const marks = [
    ...x.ticks.map((tick) => text(x.of(tick), base + 16, 'middle', format(tick))),
    ...y.ticks.flatMap((tick) => [
      `<path class="axis" d="M${MARGIN.left} ${y.of(tick)}H${PANEL.width - MARGIN.right}"/>`,
      text(MARGIN.left - 6, y.of(tick) + 4, 'end', format(tick)),
    ]),
  ];
  const drawn = lines.map((line, index) => {
    const at = line.points.map(([services, value]) => `${x.of(services)} ${y.of(value)}`);
    const dots = at.map((point) => {
      const [cx, cy] = point.split(' ');
      return `<circle cx="${cx}" cy="${cy}" r="2.5" fill="${COLORS[index % COLORS.length]}"/>`;
    });
    return `<path d="M${at.join('L')}" ${strokeOf(index)}/>${dots.join('')}`;
  });
  return [text(MARGIN.left, 16, 'start', title), ...marks, ...drawn].join('');
}

interface Scale {
  of(value: number): number;
  readonly ticks: readonly number[];
}

/** A logarithmic scale from the first to the last tick. */
function scale(ticks: readonly number[], from: number, to: number): Scale {
  const [least, most] = [Math.log10(Math.min(...ticks)), Math.log10(Math.max(...ticks))];
  const length = most > least ? most - least : 1;
  return {
    of: (value) =>
      Math.round((from + ((Math.log10(value) - least) / length) * (to - from)) * 10) / 10,
    ticks,
  };
}

/** Powers of ten around all values. */
function powersAround(values: readonly number[]): number[] {
  const exponents = values.map(Math.log10).filter(Number.isFinite);
  if (exponents.length === 0) return [1, 10];
  const least = Math.floor(Math.min(...exponents));
  const most = Math.max(least + 1, Math.ceil(Math.max(...exponents)));
  return Array.from({ length: most - least + 1 }, (_, index) => 10 ** (least + index));
}

function strokeOf(index: number): string {
  const color = COLORS[index % COLORS.length];
  return `fill="none" stroke-width="1.8" stroke="${color}" stroke-dasharray="${DASHES[index % DASHES.length]}"`;
}

function text(x: number, y: number, anchor: string, content: string): string {
  return `<text x="${x}" y="${y}" text-anchor="${anchor}">${escapeText(content)}</text>`;
}

function format(value: number): string {
  return value.toLocaleString('en', { maximumFractionDigits: 3 });
}

function escapeText(content: string): string {
  return content.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('>', '&gt;');
}
