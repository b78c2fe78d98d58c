/** What `portwide check` finds on the node, when asked. */
import { clock, counted } from './format.js';
import { html } from './html.js';
import { Component } from './preact.js';
import { State } from './state-label.js';
import { Table } from './table.js';

/** @import { NodeCheck, NodeChecks as Answer } from '../api/checks.ts' */

const PATH = '/api/v1/checks';

/** @type {import('./table.js').Column<NodeCheck>[]} */
const COLUMNS = [
  ['Result', ({ status }) => html`<${State} state=${status} />`],
  ['Check', ({ name }) => name],
  ['Found', ({ seen }) => seen],
  ['What to do', ({ action }) => action],
];

/** @extends {Component<{}, { isRunning: boolean, answer: Answer | undefined, error: string | undefined }>} */
export class NodeChecks extends Component {
  /** @override */
  state = {
    isRunning: false,
    answer: /** @type {Answer | undefined} */ (undefined),
    error: /** @type {string | undefined} */ (undefined),
  };
  stop = new AbortController();

  /** @override */
  componentWillUnmount() {
    this.stop.abort();
  }

  start = async () => {
    this.setState({ isRunning: true, error: undefined });
    const { signal } = this.stop;
    try {
      const response = await fetch(PATH, { signal });
      const body = await response.json();
      if (response.ok) this.setState({ answer: body });
      else this.setState({ error: body.error.message });
    } catch {
      if (signal.aborted) return;
      this.setState({ error: 'The agent did not answer.' });
    }
    this.setState({ isRunning: false });
  };

  /** @override */
  render() {
    const { isRunning, answer, error } = this.state;
    return html`<h2>Checks</h2>
      <p>
        <button class="action" type="button" disabled=${isRunning} onClick=${this.start}>
          ${isRunning ? 'Checking …' : 'Check this node'}
        </button>
        ${answer !== undefined && html` <span class="dim-text">as of ${clock(answer.at)}</span>`}
      </p>
      ${error !== undefined && html`<p class="notice bad">${error}</p>`}
      ${answer !== undefined && html`<${Table} label="Checks" rows=${answer.checks} columns=${COLUMNS} />`}
      ${
        answer !== undefined &&
        answer.omitted > 0 &&
        html`<p class="dim-text">${counted(answer.omitted, 'check')} not shown.</p>`
      }`;
  }
}
