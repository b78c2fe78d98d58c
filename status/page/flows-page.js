/** Connections that open, close or fail, as they happen. */
import { FLOW_COLUMNS } from './flow-table.js';
import { clock, counted } from './format.js';
import { html } from './html.js';
import { Refusal, readLines } from './lines.js';
import { serviceLink } from './location.js';
import { Component } from './preact.js';
import { Table } from './table.js';

/** Flows that the page keeps. */
const MAX_FLOWS = 200;
/** Milliseconds between two drawings, and before another attempt. */
const PAUSE = 500;

/** @type {import('./table.js').Column<any>[]} */
const COLUMNS = [
  ['Time', ({ at }) => clock(at)],
  [
    'Event',
    ({ event }) =>
      html`<span class=${event === 'opened' || event === 'closed' ? '' : 'bad-text'}>${event}</span>`,
  ],
  [
    'Service',
    ({ service }) => (service === null ? '' : html`<a href=${serviceLink(service)}>${service}</a>`),
  ],
  ['Reason', ({ reason }) => reason],
  ...FLOW_COLUMNS.slice(0, 4).map(
    ([title, cell, kind]) =>
      /** @type {const} */ ([title, (/** @type {any} */ { flow }) => cell(flow), kind]),
  ),
];

/** @extends {Component<{}, { isPaused: boolean, error: string | undefined }>} */
export class FlowsPage extends Component {
  /** @override */
  state = { isPaused: false, error: /** @type {string | undefined} */ (undefined) };
  /** @type {any[]} */
  flows = [];
  lost = 0;
  /** @type {string | undefined} */
  since;
  /** @type {readonly string[]} */
  notes = [];
  /** @type {any} */
  late;
  stop = new AbortController();
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  timer;

  visibility = () => {
    this.stop.abort();
    if (document.visibilityState === 'visible') void this.follow();
  };

  /** @override */
  componentDidMount() {
    void this.follow();
    document.addEventListener('visibilitychange', this.visibility);
  }

  /** @override */
  componentWillUnmount() {
    this.stop.abort();
    clearTimeout(this.timer);
    document.removeEventListener('visibilitychange', this.visibility);
  }

  async follow() {
    this.stop = new AbortController();
    const { signal } = this.stop;
    while (!signal.aborted) {
      try {
        await readLines('/api/v1/flows', signal, (line) => this.add(line));
      } catch (error) {
        // Otherwise the agent may be restarting; the frame of the page says so.
        if (error instanceof Refusal) this.setState({ error: error.message });
      }
      await new Promise((resolve) => setTimeout(resolve, PAUSE));
    }
  }

  /** @param {any} line */
  add(line) {
    this.lost += line.lost ?? 0;
    if (line.event === 'started') {
      this.since = line.at;
      this.setState({ error: undefined });
    }
    if (line.event === 'late') this.late = line;
    else if (line.event !== 'lost') this.notes = line.notes ?? this.notes;
    if (line.flow !== undefined) this.flows = [line, ...this.flows.slice(0, MAX_FLOWS - 1)];
    this.timer ??= setTimeout(() => {
      this.timer = undefined;
      if (!this.state.isPaused) this.forceUpdate();
    }, PAUSE);
  }

  /** @override */
  render() {
    const { isPaused, error } = this.state;
    return html`
      <h1 tabindex="-1">Flows</h1>
      <p>
        <button class="action" type="button" aria-pressed=${isPaused} onClick=${() => this.setState({ isPaused: !isPaused })}>Pause</button>
        ${this.lost > 0 && html` <span class="bad-text">${counted(this.lost, 'event')} lost</span>`}
      </p>
      ${error !== undefined && html`<p class="notice bad">${error}</p>`}
      ${this.since !== undefined && html`<p class="dim-text">Listening since ${clock(this.since)}.</p>`}
      ${this.late !== undefined && html`<p class="notice">The agent was stopped or busy for ${this.late.seconds} s until ${clock(this.late.at)}: flows of that time may have later times.</p>`}
      ${this.notes.map((note) => html`<p class="dim-text">${note}</p>`)}
      <${Table} label="Flows" rows=${this.flows} columns=${COLUMNS} empty="No flow yet. The newest will come first." />
    `;
  }
}
