/** One time series, drawn with uPlot. */
import { measured } from './format.js';
import { html } from './html.js';
import { Component } from './preact.js';

/** @import uPlot from 'uplot' */
/** @import { Series } from '../api/activity.ts' */

const HEIGHT = 120;
/** Seconds that a chart shows. */
const SPAN = 900;

/** @type {Promise<typeof uPlot> | undefined} */
let loading;

/** Loads uPlot when the first chart is shown. */
function loadUplot() {
  loading ??= new Promise((resolve, reject) => {
    const style = document.createElement('link');
    style.rel = 'stylesheet';
    style.href = '/page/uplot.css';
    const script = document.createElement('script');
    script.src = '/page/uplot.js';
    script.addEventListener('load', () => resolve(/** @type {any} */ (window).uPlot));
    script.addEventListener('error', () => {
      // The next drawing tries again.
      loading = undefined;
      script.remove();
      style.remove();
      reject(new Error('the script that draws charts cannot be loaded'));
    });
    document.head.append(style, script);
  });
  return loading;
}

/** @typedef {{ times: readonly number[], series: Series }} Props */

/** @extends {Component<Props>} */
export class Chart extends Component {
  /** @type {HTMLElement | null} */
  frame = null;
  /** @type {uPlot | undefined} */
  plot;
  isGone = false;
  resizes = new ResizeObserver(() => this.fit());
  scheme = matchMedia('(prefers-color-scheme: dark)');
  redraw = () => {
    this.plot?.destroy();
    this.plot = undefined;
    void this.draw();
  };

  /** @override */
  componentDidMount() {
    void this.draw();
    if (this.frame !== null) this.resizes.observe(this.frame);
    this.scheme.addEventListener('change', this.redraw);
  }

  /** @override */
  componentDidUpdate() {
    if (this.plot === undefined) void this.draw();
    else this.plot.setData(this.data());
  }

  /** @override */
  componentWillUnmount() {
    this.isGone = true;
    this.resizes.disconnect();
    this.scheme.removeEventListener('change', this.redraw);
    this.plot?.destroy();
  }

  /** @returns {uPlot.AlignedData} */
  data() {
    return [[...this.props.times], [...this.props.series.values]];
  }

  fit() {
    if (this.frame !== null) this.plot?.setSize({ width: this.frame.clientWidth, height: HEIGHT });
  }

  async draw() {
    const Plot = await loadUplot().catch(() => undefined);
    const { frame } = this;
    // The agent may be restarting, which the page says. The caption has the latest value.
    if (Plot === undefined) return;
    if (this.isGone || frame === null || this.plot !== undefined) return;
    this.plot = new Plot(options(frame, this.props.series.unit), this.data(), frame);
  }

  /** @override */
  render() {
    const { title, unit, values } = this.props.series;
    const known = values.filter((value) => value !== null);
    const summary = `now ${measured(values.at(-1), unit)}, highest ${measured(Math.max(...known), unit)}`;
    return html`<figure>
      <figcaption>${title}: <strong>${summary}</strong></figcaption>
      <div
        class="plot"
        role="img"
        aria-label=${`${title} of the last 15 minutes: ${summary}`}
        ref=${(/** @type {HTMLElement | null} */ element) => {
          this.frame = element;
        }}
      ></div>
    </figure>`;
  }
}

/** @param {HTMLElement} frame @param {Series['unit']} unit @returns {uPlot.Options} */
function options(frame, unit) {
  const style = getComputedStyle(frame);
  const colour = (/** @type {string} */ name) => style.getPropertyValue(name).trim();
  const axis = {
    stroke: colour('--dim'),
    grid: { stroke: colour('--line'), width: 1 },
    ticks: { show: false },
    font: `12px ${style.fontFamily}`,
  };
  return {
    width: frame.clientWidth,
    height: HEIGHT,
    legend: { show: false },
    cursor: { show: false },
    scales: {
      x: { range: (_, _low, last) => [last - SPAN, last] },
      y: { range: (_, low, high) => [0, Math.max(high * 1.1, low, 1e-3)] },
    },
    axes: [
      { ...axis, space: 90, values: (_, times) => times.map(timeLabel) },
      {
        ...axis,
        size: 72,
        space: 24,
        values: (_, values) => values.map((value) => measured(value, unit)),
      },
    ],
    series: [
      {},
      {
        stroke: colour('--accent'),
        width: 1.5,
        fill: colour('--accent-soft'),
        points: { show: false },
      },
    ],
  };
}

/** @param {number} seconds */
function timeLabel(seconds) {
  return new Date(seconds * 1000).toLocaleTimeString('en-GB', {
    hour: '2-digit',
    minute: '2-digit',
  });
}
