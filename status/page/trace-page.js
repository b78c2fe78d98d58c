/** The path of a connection: computed from the objects, and as the kernel reports it. */
import { Field, ProtocolField } from './field.js';
import { html } from './html.js';
import { LiveTrace } from './live-trace.js';
import { link } from './location.js';
import { Table } from './table.js';

/** @import { State as PageState } from './store.js' */

const FIELDS = ['from', 'to', 'protocol', 'port'];

/** The parameters that are given. @param {(name: string) => unknown} read */
function parametersFrom(read) {
  const given = FIELDS.map((name) => [name, `${read(name) ?? ''}`.trim()]);
  return new URLSearchParams(given.filter(([, value]) => value !== ''));
}

/** @param {PageState} state */
function parametersOf({ location }) {
  return parametersFrom((name) => location.query.get(name));
}

/** @param {PageState} state */
function pathOf(state) {
  const parameters = parametersOf(state);
  return parameters.has('from') && parameters.has('to') ? `/api/v1/trace?${parameters}` : undefined;
}

/** @param {PageState} state @returns {readonly import('./poller.js').Need[]} */
export function traceNeeds(state) {
  const path = pathOf(state);
  return path === undefined ? [] : [{ path }];
}

/** @param {{ state: PageState }} props */
export function TracePage({ state }) {
  const path = pathOf(state);
  const { value, error } = state.answers.get(path ?? '') ?? {};
  const parameters = parametersOf(state);
  /** @param {any} event */
  const onSubmit = (event) => {
    event.preventDefault();
    const form = new FormData(event.target);
    const parameters = parametersFrom((name) => form.get(name));
    location.hash = link('trace', Object.fromEntries(parameters));
  };
  return html`
    <h1 tabindex="-1">Trace</h1>
    <form class="filters" onSubmit=${onSubmit}>
      <${Field} name="from" label="From" hint="address, namespace/pod, node or external" value=${parameters.get('from')} />
      <${Field} name="to" label="To" hint="address, or namespace/name of a Service or pod" value=${parameters.get('to')} />
      <${ProtocolField} value=${parameters.get('protocol')} />
      <${Field} name="port" label="Port" hint="443" value=${parameters.get('port')} required=${false} />
      <button class="action" type="submit">Trace</button>
    </form>
    ${error !== undefined && html`<p class="notice bad">${error}</p>`}
    ${path !== undefined && value === undefined && error === undefined && html`<p>Waiting for the agent …</p>`}
    ${value?.paths.map((/** @type {any} */ each) => html`<${Computed} path=${each} />`)}
    ${value !== undefined && html`<${LiveTrace} status=${state.status} parameters=${parameters} />`}
  `;
}

/** @type {import('./table.js').Column<any>[]} */
const STEP_COLUMNS = [
  ['Step', ({ title }) => title],
  ['Decision', ({ decision }) => decision],
  ['Object', ({ object }) => object ?? ''],
  ['Details', ({ detail }) => detail.map((/** @type {string} */ line) => html`<div>${line}</div>`)],
];

/** @type {import('./table.js').Column<any>[]} */
const ENDPOINT_COLUMNS = [
  [
    'Endpoint',
    ({ address, port }) => (address.includes(':') ? `[${address}]:${port}` : `${address}:${port}`),
  ],
  ['Node', ({ local }) => (local ? 'this node' : 'another node')],
  ['Masqueraded', ({ masqueraded }) => (masqueraded ? 'yes' : 'no')],
  ['Network policy', ({ policy }) => policy ?? 'not enforced here'],
  ['Rules of other programs', ({ foreignRules }) => foreignRules ?? 'not evaluated'],
];

/** The colour and the text of an outcome; the verdict says how connections fail. */
const OUTCOMES = {
  reached: ['good', undefined],
  partly: ['warn', 'some connections fail'],
  failed: ['bad', undefined],
  uncertain: ['warn', 'uncertain'],
};

/** @param {{ path: any }} props `TracePath` of the API. */
function Computed({
  path: { family, source, destination, steps, verdict, outcome, endpoints, uncertain },
}) {
  const [state, text] = OUTCOMES[/** @type {keyof typeof OUTCOMES} */ (outcome)];
  return html`<section aria-label=${`Computed path, ${family}`}>
    <h2>
      Computed path, ${family}: ${source ?? 'unknown address'} to ${destination}${' '}
      <span class="state ${state}">${text ?? verdict}</span>
    </h2>
    <${Table} label=${`Steps, ${family}`} rows=${steps} columns=${STEP_COLUMNS} />
    ${endpoints.length > 0 && html`<${Table} label=${`Endpoints, ${family}`} rows=${endpoints} columns=${ENDPOINT_COLUMNS} />`}
    ${uncertain.map((/** @type {string} */ text) => html`<p class="notice">${text}</p>`)}
  </section>`;
}
