/** A table of any number of Services. Only visible rows are in the document and asked of the agent. */
import { age, counted } from './format.js';
import { html } from './html.js';
import { serviceLink } from './location.js';
import { Component } from './preact.js';
import { State } from './state-label.js';

/** @import { ServiceList as Page, ServiceSummary } from '../api/services.ts' */

/** Height of a row in pixels, as in page.css. */
const ROW_HEIGHT = 34;
/** Rows above and below the visible ones. */
const SPARE_ROWS = 8;
/** Rows of answers that are kept, so that scrolling back shows something at once. */
const MAX_KEPT = 1000;

/** @type {readonly (readonly [title: string, sort: string | undefined, kind?: string])[]} */
const COLUMNS = [
  ['Service', 'name'],
  ['State', 'problems'],
  ['VIPs', undefined],
  ['Ports', undefined],
  ['Endpoints', 'endpoints', 'number'],
  ['Type', undefined, 'wide'],
  ['Age', 'age', 'wide'],
];

/**
 * @typedef {object} Props
 * @property {Page | undefined} page The rows from `offset` on.
 * @property {number} offset
 * @property {Readonly<Record<string, string>>} selection
 * @property {(changes: Record<string, string>) => void} onSort
 * @property {(row: number) => void} onScroll gets the first visible row.
 * @property {string | number} now
 */

/** @extends {Component<Props, { first: number, count: number }>} */
export class ServiceList extends Component {
  /** @override */
  state = { first: 0, count: 30 };
  /** @type {Map<number, ServiceSummary>} */
  kept = new Map();
  /** @type {number | undefined} */
  total;
  /** @type {HTMLElement | null} */
  frame = null;
  resizes = new ResizeObserver(() => this.measure());

  measure = () => {
    const { frame } = this;
    if (frame === null) return;
    const first = Math.floor(frame.scrollTop / ROW_HEIGHT);
    const count = Math.ceil(frame.clientHeight / ROW_HEIGHT) + 1;
    if (first === this.state.first && count === this.state.count) return;
    this.setState({ first, count });
    this.props.onScroll(first);
  };

  /** @override */
  componentDidMount() {
    if (this.frame !== null) this.resizes.observe(this.frame);
  }

  /** @override */
  componentWillUnmount() {
    this.resizes.disconnect();
  }

  /** @param {Props} props */
  keep({ page, offset }) {
    if (page === undefined) return;
    if (this.kept.size > MAX_KEPT) this.kept.clear();
    this.total = page.total;
    for (const [index, item] of page.items.entries()) this.kept.set(offset + index, item);
  }

  /** @override */
  render() {
    this.keep(this.props);
    const { first, count } = this.state;
    const { total = 0 } = this;
    const from = Math.max(0, Math.min(first, total - count) - SPARE_ROWS);
    const to = Math.min(total, first + count + SPARE_ROWS);
    const rows = Array.from({ length: Math.max(0, to - from) }, (_, index) => from + index);
    return html`<div
      class="frame rows"
      tabindex="0"
      role="region"
      aria-label="Services, scrollable"
      onScroll=${this.measure}
      ref=${(/** @type {HTMLElement | null} */ element) => {
        this.frame = element;
      }}
    >
      <table aria-label="Services" aria-rowcount=${total + 1}>
        <thead>
          <tr aria-rowindex="1">
            ${COLUMNS.map((column) => html`<${Heading} column=${column} ...${this.props} />`)}
          </tr>
        </thead>
        <tbody>
          <${Space} rows=${from} />
          ${rows.map(
            (index) =>
              html`<${Row}
                key=${index}
                index=${index}
                service=${this.kept.get(index)}
                age=${age(this.kept.get(index)?.created ?? null, this.props.now)}
              />`,
          )}
          <${Space} rows=${total - to} />
        </tbody>
      </table>
    </div>
    <p role="status" class="dim-text">
      ${this.total === undefined ? 'Waiting for the agent …' : `${counted(total, 'Service')} found`}
    </p>`;
  }
}

/** Takes the place of rows that are not in the document. @param {{ rows: number }} props */
function Space({ rows }) {
  if (rows <= 0) return undefined;
  return html`<tr class="space" aria-hidden="true">
    <td colspan=${COLUMNS.length} style=${{ height: `${rows * ROW_HEIGHT}px` }}></td>
  </tr>`;
}

/** @param {Pick<Props, 'selection' | 'onSort'> & { column: typeof COLUMNS[number] }} props */
function Heading({ column: [title, sort, kind], selection, onSort }) {
  if (sort === undefined) return html`<th scope="col" class=${kind}>${title}</th>`;
  const isSorted = (selection.sort ?? 'name') === sort;
  const isDescending = selection.order === 'descending';
  const order = isSorted ? (isDescending ? 'descending' : 'ascending') : undefined;
  return html`<th scope="col" class=${kind} aria-sort=${order}>
    <button
      type="button"
      onClick=${() => onSort({ sort, order: isSorted && !isDescending ? 'descending' : '' })}
    >
      ${title}${isSorted && html`<span aria-hidden="true">${isDescending ? ' ▼' : ' ▲'}</span>`}
    </button>
  </th>`;
}

/** @typedef {{ index: number, service: ServiceSummary | undefined, age: string }} RowProps */

/**
 * Drawn again only for another answer or age: answers about the node arrive each second.
 * @extends {Component<RowProps>}
 */
class Row extends Component {
  /** @override @param {RowProps} next */
  shouldComponentUpdate({ service, age }) {
    return service !== this.props.service || age !== this.props.age;
  }

  /** @override */
  render() {
    const { index, service, age } = this.props;
    const place = { 'aria-rowindex': index + 2 };
    if (service === undefined) {
      return html`<tr ...${place}><td colspan=${COLUMNS.length} class="dim-text">…</td></tr>`;
    }
    const { namespace, name, state, ports, type } = service;
    const vips = state === 'refused' ? service.refusedVips : service.vips;
    const key = `${namespace}/${name}`;
    return html`<tr ...${place}>
      <td><a href=${serviceLink(key)}>${key}</a></td>
      <td><${State} state=${state} /></td>
      <td title=${vips.join(', ')}>${vips.join(', ')}</td>
      <td title=${ports.join(', ')}>${ports.join(', ')}</td>
      <td class="number">${endpointText(service)}</td>
      <td class="wide">${type}</td>
      <td class="wide">${age}</td>
    </tr>`;
  }
}

/** Counts a pod with addresses of both families once; names the families if they differ. @param {ServiceSummary} service */
function endpointText({ endpoints, familyEndpoints }) {
  if (familyEndpoints === null) return countsText(endpoints);
  const [four, six] = [countsText(familyEndpoints.IPv4), countsText(familyEndpoints.IPv6)];
  return four === six ? four : `IPv4: ${four}; IPv6: ${six}`;
}

/** @param {ServiceSummary['endpoints']} counts */
function countsText({ ready, terminating, notReady }) {
  const rest = [
    terminating > 0 && `${terminating} terminating`,
    notReady > 0 && `${notReady} not ready`,
  ].filter((text) => text !== false);
  return [`${ready}`, ...rest].join(', ');
}
