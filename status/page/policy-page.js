/** Network policies: who may reach whom, one connection, and all policies in order of evaluation. */
import { AccessList } from './access-list.js';
import { clock, counted } from './format.js';
import { html } from './html.js';
import { link } from './location.js';
import { PolicyCheck, policyCheckPath } from './policy-check.js';
import { Table } from './table.js';

/** @import { State as PageState } from './store.js' */
/** @import { LocalPod, PolicySummary } from '../api/policies.ts' */

const POLICIES = '/api/v1/policies?limit=500';
const PODS = '/api/v1/pods?limit=1000';
/** Groups of peers on one page. */
const PAGE_SIZE = 100;
/** Milliseconds between two requests for what reads all pods of the cluster. */
const INTERVAL = 5000;

/** The groups of peers to show. @param {PageState} state @returns {string | undefined} */
function accessPath({ location: { query } }) {
  const names = ['pod', 'namespace', 'firstPod', 'direction', 'continue'];
  const given = names.map((name) => [name, query.get(name) ?? '']);
  const parameters = new URLSearchParams(given.filter(([, value]) => value !== ''));
  if (!parameters.has('pod') && !parameters.has('namespace')) return undefined;
  return `/api/v1/access?${parameters}&limit=${PAGE_SIZE}`;
}

/** Several groups of pods take the agent long, so the page asks for them only at a click. @param {PageState} state */
function isNamespace({ location: { query } }) {
  return !query.get('pod');
}

/** @param {PageState} state @returns {readonly import('./poller.js').Need[]} */
export function policyNeeds(state) {
  const access = accessPath(state);
  const paths = [POLICIES, PODS, access, policyCheckPath(state)];
  return paths.flatMap((path) =>
    path === undefined
      ? []
      : [{ path, interval: INTERVAL, isOnce: path === access && isNamespace(state) }],
  );
}

/** @type {import('./table.js').Column<PolicySummary>[]} */
const COLUMNS = [
  ['Tier', ({ tier }) => tier],
  ['Priority', ({ tier, priority }) => (tier === 'NetworkPolicy' ? '' : priority), 'number'],
  ['Kind', ({ kind }) => kind],
  ['Name', ({ namespace, name }) => (namespace === '' ? name : `${namespace}/${name}`)],
  ['Ingress', ({ ingressRules }) => rulesText(ingressRules)],
  ['Egress', ({ egressRules }) => rulesText(egressRules)],
  ['Pods of this node', ({ localPods }) => localPods, 'number'],
  [
    'Faults',
    ({ faults }) =>
      faults.map(({ field, reason }) => html`<div class="bad-text">${field}: ${reason}</div>`),
  ],
];

/** @param {number | null} rules */
function rulesText(rules) {
  if (rules === null) return 'does not apply';
  return rules === 0 ? 'no rule' : counted(rules, 'rule');
}

/** @param {{ state: PageState, onAgain: (path: string) => void }} props */
export function PolicyPage({ state, onAgain }) {
  const { value, error } = state.answers.get(POLICIES) ?? {};
  return html`
    <h1 tabindex="-1">Network policies</h1>
    <h2>Who may reach whom</h2>
    <${Selection} state=${state} />
    <${SelectedAccess} state=${state} onAgain=${onAgain} />
    <h2>One connection</h2>
    <${PolicyCheck} state=${state} />
    <h2>All policies, in order of evaluation</h2>
    ${error !== undefined && html`<p class="notice bad">${error}</p>`}
    ${
      value === undefined
        ? error === undefined && html`<p>Waiting for the agent …</p>`
        : html`<${Table}
            label="Network policies"
            rows=${value.items}
            columns=${COLUMNS}
            empty="No network policy."
          />`
    }
  `;
}

const DIRECTIONS = [
  ['', 'both'],
  ['ingress', 'ingress'],
  ['egress', 'egress'],
];

/** Selects a pod of this node, or all of a namespace. @param {{ state: PageState }} props */
function Selection({ state: { answers, location } }) {
  const { query } = location;
  /** @type {readonly LocalPod[]} */
  const pods = answers.get(PODS)?.value?.items ?? [];
  const namespaces = [...new Set(pods.map(({ namespace }) => namespace))];
  const [pod, namespace, direction] = ['pod', 'namespace', 'direction'].map(
    (name) => query.get(name) ?? '',
  );
  const selected = pod ? `pod=${pod}` : namespace ? `namespace=${namespace}` : '';
  /** @param {string} subject @param {string} which */
  const select = (subject, which) => {
    const chosen = Object.fromEntries(new URLSearchParams(subject));
    globalThis.location.hash = link('policy', { ...chosen, direction: which });
  };
  /** @param {string} value @param {string} text */
  const option = (value, text) =>
    html`<option value=${value} selected=${value === selected}>${text}</option>`;
  return html`<form class="filters" onSubmit=${(/** @type {Event} */ event) => event.preventDefault()}>
    <label>
      Pod of this node
      <select onChange=${(/** @type {any} */ { target }) => select(target.value, direction ?? '')}>
        ${option('', 'none')}
        ${namespaces.map(
          (each) => html`<optgroup label=${each}>
            ${option(`namespace=${each}`, `all pods of ${each}`)}
            ${pods
              .filter((one) => one.namespace === each)
              .map(({ name }) => option(`pod=${each}/${name}`, name))}
          </optgroup>`,
        )}
      </select>
    </label>
    <label>
      Direction
      <select onChange=${(/** @type {any} */ { target }) => select(selected, target.value)}>
        ${DIRECTIONS.map(
          ([value, text]) =>
            html`<option value=${value} selected=${value === direction}>${text}</option>`,
        )}
      </select>
    </label>
  </form>`;
}

/** @param {{ state: PageState, onAgain: (path: string) => void }} props */
function SelectedAccess({ state, onAgain }) {
  const path = accessPath(state);
  if (path === undefined) {
    return html`<p class="dim-text">Select a pod to see its peers, as its policies group them.</p>`;
  }
  const { value, error, at = 0 } = state.answers.get(path) ?? {};
  if (error !== undefined) return html`<p class="notice bad">${error}</p>`;
  if (value === undefined) return html`<p>Waiting for the agent …</p>`;
  const given = Object.fromEntries(state.location.query);
  return html`
    <p>
      By the policies of the pod itself. Policies of its peer may deny, too: see One connection.
    </p>
    ${
      isNamespace(state) &&
      html`<p>
        As of ${clock(at)}.${' '}
        <button class="action" type="button" onClick=${() => onAgain(path)}>Read again</button>
      </p>`
    }
    <${AccessList} rows=${value.items} groups=${value.podGroups} />
    ${
      value.continue !== null &&
      html`<p>
        <a href=${link('policy', { ...given, continue: value.continue })}>
          Further peers, ${value.total} groups in all
        </a>
      </p>`
    }
    ${
      value.nextPod !== null &&
      html`<p>
        <a href=${link('policy', { ...given, continue: '', firstPod: value.nextPod })}>
          Further pods of ${given.namespace}, from ${value.nextPod}
        </a>
      </p>`
    }
  `;
}
