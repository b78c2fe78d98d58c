/** Watches packets in the kernel for some seconds. */
import { counted } from './format.js';
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

/** @typedef {{ query: string, onEnd: () => void }} Props */

/** Watches while it is mounted, until the agent ends the trace. @extends {Component<Props, { error: string | undefined }>} */
export class LiveTrace extends Component {
  /** @override */
  state = { error: /** @type {string | undefined} */ (undefined) };
  /** @type {any[]} */
  steps = [];
  /** The line that says what is watched. @type {any} */
  armed;
  /** @type {any} */
  summary;
  stop = new AbortController();

  /** @override */
  componentDidMount() {
    void this.watch();
  }

  /** @override */
  componentWillUnmount() {
    this.stop.abort();
  }

  async watch() {
    try {
      await readLines(`/api/v1/trace/live?${this.props.query}`, this.stop.signal, (line) => {
        if (line.event === 'armed') this.armed = line;
        if (line.event === 'step' && this.steps.length < MAX_STEPS) this.steps.push(line);
        if (line.event === 'summary') this.summary = line;
        this.forceUpdate();
      });
    } catch (error) {
      if (!this.stop.signal.aborted) {
        this.setState({ error: /** @type {Error} */ (error).message });
      }
    }
    this.props.onEnd();
  }

  /** @override */
  render() {
    const { error } = this.state;
    const { steps, armed, summary } = this;
    return html`<section aria-label="Live trace">
      <h2>In the kernel</h2>
      ${
        armed !== undefined &&
        summary === undefined &&
        html`<p>Watching packets for ${counted(armed.seconds, 'second')}: connect now.</p>`
      }
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
