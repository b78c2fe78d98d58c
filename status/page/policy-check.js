/** What network policies of both ends decide for one connection. */
import { Field, ProtocolField } from './field.js';
import { html } from './html.js';
import { link } from './location.js';
import { State } from './state-label.js';

/** @import { State as PageState } from './store.js' */
/** @import { DirectionExplanation, FamilyExplanation } from '../api/policies.ts' */

const FIELDS = ['from', 'to', 'protocol', 'port'];

/** @param {PageState} state */
function parametersOf({ location: { query } }) {
  const given = FIELDS.map((name) => [name, query.get(name)?.trim() ?? '']);
  return new URLSearchParams(given.filter(([, value]) => value !== ''));
}

/** @param {PageState} state @returns {string | undefined} */
export function policyCheckPath(state) {
  const parameters = parametersOf(state);
  const isComplete = ['from', 'to', 'port'].every((name) => parameters.has(name));
  return isComplete ? `/api/v1/policies/explain?${parameters}` : undefined;
}

/** @param {{ state: PageState }} props */
export function PolicyCheck({ state }) {
  const path = policyCheckPath(state);
  const { value, error } = state.answers.get(path ?? '') ?? {};
  const parameters = parametersOf(state);
  const given = Object.fromEntries(state.location.query);
  /** @param {any} event */
  const onSubmit = (event) => {
    event.preventDefault();
    const fields = [...new FormData(event.target)].map(([name, text]) => [name, `${text}`]);
    location.hash = link('policy', { ...given, ...Object.fromEntries(fields) });
  };
  return html`
    <form class="filters" onSubmit=${onSubmit}>
      <${Field} name="from" label="From" hint="namespace/pod or address" value=${parameters.get('from') ?? given.pod} />
      <${Field} name="to" label="To" hint="namespace/pod, address or domain name" value=${parameters.get('to')} />
      <${ProtocolField} value=${parameters.get('protocol')} />
      <${Field} name="port" label="Port of the pod" hint="8080" value=${parameters.get('port')} />
      <button class="action" type="submit">Explain</button>
    </form>
    ${error !== undefined && html`<p class="notice bad">${error}</p>`}
    ${path !== undefined && value === undefined && error === undefined && html`<p>Waiting for the agent …</p>`}
    ${value?.families.map((/** @type {FamilyExplanation} */ each) => html`<${Family} explained=${each} />`)}
  `;
}

/** @param {{ explained: FamilyExplanation }} props */
function Family({ explained: { family, from, to, verdict, egress, ingress } }) {
  return html`<section aria-label=${`Verdict, ${family}`}>
    <h3>${family}: ${from} to ${to ?? 'the name, address unknown'} <${State} state=${verdict} /></h3>
    <ul class="access">
      <${Direction} title="Egress of the source" decision=${egress} />
      <${Direction} title="Ingress of the destination" decision=${ingress} />
    </ul>
  </section>`;
}

/** @param {{ title: string, decision: DirectionExplanation }} props */
function Direction({ title, decision: { verdict, tier, reason, uncertain, notLearned } }) {
  const by = tier === null || tier === 'NetworkPolicy' ? '' : ` (tier ${tier})`;
  return html`<li>
    <h4>${title}</h4>
    <ul>
      <li><${State} state=${verdict} /> ${reason}${by}</li>
      ${uncertain.map((rule) => html`<li>${rule} may decide otherwise: it depends on the addresses of a domain name</li>`)}
      ${notLearned.map((rule) => html`<li>${rule} does not match: this agent saw no DNS answer for it with this address</li>`)}
    </ul>
  </li>`;
}
