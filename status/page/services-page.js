/** All Services of the node, with search, filters and order. */
import { html } from './html.js';
import { link } from './location.js';
import { ServiceList } from './service-list.js';

/** @import { State as PageState } from './store.js' */

/** Rows of one request; more than a screen shows. */
const PAGE_SIZE = 100;
/** Rows between the first rows of two requests. */
const STEP = 50;

/** Parameters of the page that are parameters of the API. */
const PARAMETERS = ['search', 'state', 'ports', 'sort', 'order', 'namespace'];

const STATES = [
  ['', 'any state'],
  ['served', 'served'],
  ['noEndpoints', 'no endpoints'],
  ['partial', 'partly no endpoints'],
  ['partlyRefused', 'partly refused'],
  ['refused', 'refused'],
  ['ignored', 'ignored'],
];
const PORTS = [
  ['', 'any ports'],
  ['all', 'all ports'],
  ['ranges', 'port ranges'],
  ['ports', 'single ports'],
];

/** The filters and the order. @param {PageState} state */
function selectionOf({ location }) {
  const given = PARAMETERS.map((name) => [name, location.query.get(name) ?? '']);
  return Object.fromEntries(given.filter(([, value]) => value !== ''));
}

/** @param {PageState} state */
function pathOf(state) {
  const offset = Math.max(0, Math.floor(state.scroll / STEP) * STEP - STEP / 2);
  const query = {
    limit: `${PAGE_SIZE}`,
    ...selectionOf(state),
    ...(offset > 0 ? { offset: `${offset}` } : {}),
  };
  return `/api/v1/services?${new URLSearchParams(query)}`;
}

/** @param {PageState} state @returns {readonly import('./poller.js').Need[]} */
export function servicesNeeds(state) {
  return [{ path: pathOf(state) }];
}

/** @param {{ state: PageState, onScroll: (row: number) => void }} props */
export function ServicesPage({ state, onScroll }) {
  const selection = selectionOf(state);
  const path = pathOf(state);
  const { value, error } = state.answers.get(path) ?? {};
  const change = (/** @type {Record<string, string>} */ changes) =>
    history.replaceState(null, '', link('services', { ...selection, ...changes }));
  /** @param {Record<string, string>} changes */
  const select = (changes) => {
    change(changes);
    // replaceState sends no event.
    window.dispatchEvent(new HashChangeEvent('hashchange'));
  };
  return html`
    <h1 tabindex="-1">Services</h1>
    <form class="filters" role="search" onSubmit=${(/** @type {Event} */ event) => event.preventDefault()}>
      <label>
        Search
        <input
          type="search"
          placeholder="name, VIP or port"
          value=${selection.search ?? ''}
          maxlength="100"
          onInput=${(/** @type {any} */ { target }) => select({ search: target.value })}
        />
      </label>
      <${Select} label="State" options=${STATES} value=${selection.state} onSelect=${(/** @type {string} */ state) => select({ state })} />
      <${Select} label="Ports" options=${PORTS} value=${selection.ports} onSelect=${(/** @type {string} */ ports) => select({ ports })} />
    </form>
    ${error !== undefined && html`<p class="notice bad">${error}</p>`}
    <${ServiceList}
      key=${JSON.stringify(selection)}
      page=${value}
      offset=${Number(new URLSearchParams(path.split('?')[1]).get('offset') ?? 0)}
      selection=${selection}
      onSort=${select}
      onScroll=${onScroll}
      now=${state.status?.now ?? 0}
    />
  `;
}

/** @param {{ label: string, options: readonly string[][], value: string | undefined, onSelect: (value: string) => void }} props */
function Select({ label, options, value = '', onSelect }) {
  return html`<label>
    ${label}
    <select value=${value} onChange=${(/** @type {any} */ { target }) => onSelect(target.value)}>
      ${options.map(
        ([option, text]) =>
          html`<option value=${option} selected=${option === value}>${text}</option>`,
      )}
    </select>
  </label>`;
}
