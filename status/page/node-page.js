/** The node: whether the agent is well, and what it does. */
import { Charts } from './charts.js';
import { age, counted, duration, number } from './format.js';
import { html } from './html.js';
import { link } from './location.js';
import { NodeChecks } from './node-checks.js';
import { Problems } from './problems.js';
import { State } from './state-label.js';
import { Table } from './table.js';

/** @import { State as PageState } from './store.js' */
/** @import { FamilyStatus, NodeStatus } from '../api/node-status.ts' */

const SERIES = '/api/v1/series';

/** @returns {readonly import('./poller.js').Need[]} */
export function nodeNeeds() {
  return [{ path: SERIES, interval: 5000 }];
}

/** @param {{ state: PageState, paths: readonly string[] }} props */
export function NodePage({ state: { status, answers, lostSince }, paths }) {
  if (status === undefined) return html`<h1 tabindex="-1">Node</h1><p>Waiting for the agent …</p>`;
  const { families, kernel, source, waitingFor, problems, zone, now } = status;
  return html`
    <h1 tabindex="-1">Node ${status.nodeName} <${State} state=${lostSince === undefined ? status.state : 'unknown'} /></h1>
    ${zone !== null && html`<p>Zone ${zone}</p>`}
    ${waitingFor.length > 0 && html`<p class="notice">Waiting for ${waitingFor.join(', ')}.</p>`}
    <h2>Problems</h2>
    <${Problems} problems=${problems} />
    ${paths.includes('/api/v1/checks') && html`<${NodeChecks} />`}
    <h2>Services</h2>
    <${Counts} status=${status} />
    <h2>Syncs</h2>
    <${Table} label="Syncs" rows=${families} columns=${familyColumns(now)} />
    <h2>The last 15 minutes</h2>
    <${Charts} list=${answers.get(SERIES)?.value} />
    <h2>Kubernetes objects</h2>
    <p>From ${source.kind} <code>${source.location}</code></p>
    <${Table} label="Kubernetes objects" rows=${source.kinds} columns=${KIND_COLUMNS} />
    <h2>Kernel ${kernel.release}</h2>
    <${Table} label="Kernel" rows=${kernel.features} columns=${FEATURE_COLUMNS} />
    ${status.policy !== null && html`<h2>Network policy</h2><${Policy} status=${status} />`}
  `;
}

/** @param {{ status: NodeStatus }} props */
function Counts({ status: { services } }) {
  /** @type {readonly (readonly [string, number, string?])[]} */
  const counts = [
    ['Services', services.total, link('services')],
    ['served', services.served, link('services', { state: 'served' })],
    ['without endpoints', services.noEndpoints, link('services', { state: 'noEndpoints' })],
    ['partly without endpoints', services.partial, link('services', { state: 'partial' })],
    ['partly refused', services.partlyRefused, link('services', { state: 'partlyRefused' })],
    ['refused', services.refused, link('services', { state: 'refused' })],
    ['ignored', services.ignored, link('services', { state: 'ignored' })],
    ['with all ports', services.allPorts, link('services', { ports: 'all' })],
    ['with port ranges', services.portRanges, link('services', { ports: 'ranges' })],
    ['changes not yet in the kernel', services.pendingChanges],
  ];
  return html`<dl class="counts">
    ${counts.map(
      ([label, count, target]) => html`<div>
        <dt>${target === undefined ? label : html`<a href=${target}>${label}</a>`}</dt>
        <dd>${number(count)}</dd>
      </div>`,
    )}
  </dl>`;
}

/** @param {string} now */
function familyColumns(now) {
  /** @type {import('./table.js').Column<FamilyStatus>[]} */
  const columns = [
    ['Family', ({ family }) => family],
    [
      'Last sync',
      ({ lastSync, lastSyncSeconds }) =>
        lastSync === null
          ? 'none yet'
          : `${age(lastSync, now)} ago, took ${duration(lastSyncSeconds ?? 0)}`,
    ],
    ['Written', ({ lastWritten }) => (lastWritten === null ? '' : number(lastWritten)), 'number'],
    [
      'Last full sync',
      ({ lastFullSync, lastFullSyncSeconds }) =>
        lastFullSync === null
          ? 'none yet'
          : `${age(lastFullSync, now)} ago, took ${duration(lastFullSyncSeconds ?? 0)}`,
    ],
    [
      'Waiting',
      ({ waitingSince }) => (waitingSince === null ? 'nothing' : `since ${age(waitingSince, now)}`),
    ],
    [
      'Failure',
      ({ failure }) =>
        failure === null
          ? 'none'
          : `${failure.message} (${counted(failure.count, 'attempt')}, ${age(failure.at, now)} ago)`,
    ],
    [
      'Last change by another program',
      ({ lastDrift }) =>
        lastDrift === null
          ? 'none'
          : `${lastDrift.change}, ${age(lastDrift.at, now)} ago (${counted(lastDrift.count, 'change')})`,
    ],
    [
      'Finds such changes',
      ({ watchesChanges }) => (watchesChanges ? 'immediately' : 'with a periodic check'),
    ],
  ];
  return columns;
}

/** @type {import('./table.js').Column<NodeStatus['source']['kinds'][number]>[]} */
const KIND_COLUMNS = [
  ['Kind', ({ kind }) => kind],
  ['First list', ({ synced }) => (synced ? 'complete' : 'not complete')],
  [
    'Watch',
    ({ watching }) => (watching === null ? 'of the directory' : watching ? 'open' : 'closed'),
  ],
];

/** @type {import('./table.js').Column<NodeStatus['kernel']['features'][number]>[]} */
const FEATURE_COLUMNS = [
  ['Feature', ({ name }) => html`<code>${name}</code>`],
  ['Value', ({ value }) => value],
  ['State', ({ ok }) => (ok ? 'ok' : html`<span class="bad-text">problem</span>`)],
  ['Note', ({ note }) => note],
];

/** @param {{ status: NodeStatus }} props */
function Policy({ status: { policy, now } }) {
  if (policy === null) return undefined;
  const { policies, isolatedPods, lastSync, failure, lastDrift } = policy;
  return html`<p>
    ${counted(policies, 'policy', 'policies')}, ${counted(isolatedPods, 'isolated pod')}, last sync
    ${' '}${lastSync === null ? 'none yet' : `${age(lastSync, now)} ago`}.
    ${lastDrift !== null && html` Last change by another program: ${lastDrift.change}, ${age(lastDrift.at, now)} ago (${counted(lastDrift.count, 'change')}).`}
    ${failure !== null && html` <span class="bad-text">${failure.message}</span>`}
  </p>`;
}
