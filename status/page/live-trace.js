/** Watches packets in the kernel for some seconds. */
import { html } from './html.js';
import { readLines } from './lines.js';
import { Component } from './preact.js';
import { Table } from './table.js';

/** Steps that the page keeps. */
const MAX_STEPS = 500;

/** @type {import('./table.js').Column<any>[]} */
const COLUMNS = [
  ['Packet', ({ packet }) => packet, 'number'],
  ['Owner', ({ owner }) => owner],
  ['Table', ({ table }) => table],
  ['Chain', ({ chain, rule }) => (rule === null ? chain : `${chain}, rule ${rule}`)],
  ['Purpose', ({ purpose }) => purpose ?? ''],
  ['Rule', ({ text }) => (text === null ? '' : html`<code>${text}</code>`)],
  ['Verdict', ({ verdict }) => verdict],
];

/** @typedef {{ query: string }} Props */

/** @extends {Component<Props, { isRunning: boolean, error: string | undefined }>} */
export class LiveTrace extends Component {
  /** @override */
  state = { isRunning: false, error: /** @type {string | undefined} */ (undefined) };
  /** @type {any[]} */
  steps = [];
  /** @type {any} */
  summary;
  stop = new AbortController();

  /** @override */
  componentWillUnmount() {
    this.stop.abort();
  }

  start = async () => {
    this.steps = [];
    this.summary = undefined;
    this.stop = new AbortController();
    this.setState({ isRunning: true, error: undefined });
    try {
      await readLines(`/api/v1/trace/live?${this.props.query}`, this.stop.signal, (line) => {
        if (line.event === 'step' && this.steps.length < MAX_STEPS) this.steps.push(line);
        if (line.event === 'summary') this.summary = line;
        this.forceUpdate();
      });
      this.setState({ isRunning: false });
    } catch (error) {
      if (this.stop.signal.aborted) return;
      this.setState({ isRunning: false, error: /** @type {Error} */ (error).message });
    }
  };

  /** @override */
  render() {
    const { isRunning, error } = this.state;
    const { steps, summary } = this;
    return html`<section aria-label="Live trace">
      <h2>In the kernel</h2>
      <p>
        <button class="action" type="button" disabled=${isRunning} onClick=${this.start}>
          ${isRunning ? 'Watching …' : 'Watch packets for 5 seconds'}
        </button>
      </p>
      ${error !== undefined && html`<p class="notice bad">${error}</p>`}
      ${summary?.differences.map((/** @type {string} */ text) => html`<p class="notice bad">${text}</p>`)}
      ${
        summary !== undefined &&
        html`<ul>
            ${summary.paths.map(
              (/** @type {any} */ { packet, source, destination, result, translatedTo }) =>
                html`<li>Packet ${packet}: ${source} to ${destination}, ${result}${translatedTo === null ? '' : `, to ${translatedTo}`}</li>`,
            )}
          </ul>
          ${summary.paths.length === 0 && html`<p class="dim-text">No such packet came.</p>`}
          ${summary.notes.map((/** @type {string} */ note) => html`<p class="dim-text">${note}</p>`)}`
      }
      ${steps.length > 0 && html`<${Table} label="Rules" rows=${steps} columns=${COLUMNS} />`}
    </section>`;
  }
}
