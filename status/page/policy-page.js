/** Network policies in order of evaluation. */
import { counted } from './format.js';
import { html } from './html.js';
import { Table } from './table.js';

/** @import { State as PageState } from './store.js' */
/** @import { PolicySummary } from '../api/policies.ts' */

const PATH = '/api/v1/policies?limit=500';

/** @returns {readonly import('./poller.js').Need[]} */
export function policyNeeds() {
  return [{ path: PATH }];
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

/** @param {{ state: PageState }} props */
export function PolicyPage({ state: { answers } }) {
  const { value, error } = answers.get(PATH) ?? {};
  return html`
    <h1 tabindex="-1">Network policies</h1>
    <p>In order of evaluation. The page Trace says what they decide for one connection.</p>
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
