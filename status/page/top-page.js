/** Services, endpoints or ports with the most traffic. */
import { bytes, clock, number } from './format.js';
import { html } from './html.js';
import { link, serviceLink } from './location.js';
import { Table } from './table.js';

/** @import { State as PageState } from './store.js' */

const BY = { service: 'Services', endpoint: 'Endpoints', port: 'Ports' };

/** @param {PageState} state */
function byOf({ location }) {
  const by = location.query.get('by') ?? 'service';
  return Object.hasOwn(BY, by) ? by : 'service';
}

/** @param {PageState} state */
function pathOf(state) {
  return `/api/v1/top?by=${byOf(state)}&limit=100`;
}

/** @param {PageState} state @returns {readonly import('./poller.js').Need[]} */
export function topNeeds(state) {
  return [{ path: pathOf(state) }];
}

/** @type {import('./table.js').Column<any>[]} */
const COLUMNS = [
  ['Service', ({ service }) => html`<a href=${serviceLink(service)}>${service}</a>`],
  ['Endpoint', ({ endpoint }) => endpoint ?? ''],
  [
    'Port',
    ({ port, protocol, otherPorts }) =>
      otherPorts ? 'other ports' : port === null ? '' : `${port}/${protocol}`,
  ],
  ['Connections', ({ connections }) => number(connections), 'number'],
  [
    'New a second',
    ({ connectionsPerSecond: value }) => (value === null ? '' : number(value)),
    'number',
  ],
  [
    'Packets a second',
    ({ packetsPerSecond: value }) => (value === null ? '' : number(value)),
    'number',
  ],
  ['Bytes a second', ({ bytesPerSecond: value }) => (value === null ? '' : bytes(value)), 'number'],
];

/** @param {{ state: PageState }} props */
export function TopPage({ state }) {
  const { value, error } = state.answers.get(pathOf(state)) ?? {};
  const by = byOf(state);
  return html`
    <h1 tabindex="-1">Traffic</h1>
    <ul class="routes" aria-label="What to show">
      ${Object.entries(BY).map(
        ([name, title]) => html`<li>
          <a href=${link('top', { by: name })} aria-current=${name === by ? 'true' : undefined}>${title}</a>
        </li>`,
      )}
    </ul>
    ${error !== undefined && html`<p class="notice bad">${error}</p>`}
    ${value === undefined && error === undefined && html`<p>Waiting for the agent …</p>`}
    ${
      value !== undefined &&
      html`<p class="dim-text">
          Counted since ${clock(value.sample?.since ?? Date.now())}. ${(value.sample?.notes ?? []).join(' ')}
        </p>
        <${Table} label="Traffic" rows=${value.items} columns=${COLUMNS.filter(([title]) => isShown(title, by))} empty="No traffic." />`
    }
  `;
}

/** @param {string} title @param {string} by */
function isShown(title, by) {
  if (title === 'Endpoint') return by === 'endpoint';
  return title !== 'Port' || by === 'port';
}
