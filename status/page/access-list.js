/** Groups of peers of a pod, and what the policies of the pod decide for each port. */
import { counted, number } from './format.js';
import { html } from './html.js';
import { State } from './state-label.js';

/** @import { AccessDecision, AccessPeer, PodAccess, PodGroup } from '../api/policies.ts' */

/** @param {{ rows: readonly PodAccess[], groups: readonly PodGroup[] }} props */
export function AccessList({ rows, groups }) {
  const byPod = new Map(groups.map((group) => [group.pod, group]));
  /** @type {Map<string, PodAccess[]>} */
  const sections = new Map();
  for (const row of rows) {
    const others = (byPod.get(row.pod)?.total ?? 1) - 1;
    const pod = others === 0 ? row.pod : `${row.pod} and ${counted(others, 'other pod')}`;
    const title =
      row.direction === 'ingress' ? `Who may connect to ${pod}` : `Where ${pod} may connect to`;
    sections.set(title, [...(sections.get(title) ?? []), row]);
  }
  return [...sections].map(
    ([title, some]) => html`<section aria-label=${title}>
      <h3>${title}</h3>
      <${Others} group=${byPod.get(some[0]?.pod ?? '')} />
      <ul class="access">
        ${some.map(
          ({ peer, decisions, uncertain }) => html`<li>
            <h4>${peerTitle(peer)}</h4>
            <ul>
              ${decisions.map((decision) => html`<${Decision} decision=${decision} all=${decisions} />`)}
              ${uncertain.map(
                (rule) =>
                  html`<li class="dim-text">
                    ${rule} may decide otherwise: it depends on the address of the name
                  </li>`,
              )}
            </ul>
          </li>`,
        )}
      </ul>
    </section>`,
  );
}

/** Other pods with the same policies. @param {{ group: PodGroup | undefined }} props */
function Others({ group }) {
  if (group === undefined || group.total === 1) return null;
  const { others, total } = group;
  const more = total - 1 - others.length;
  return html`<details>
    <summary>The same policies apply to ${counted(total - 1, 'other pod')}</summary>
    <p>${others.join(', ')}${more > 0 && ` and ${number(more)} more`}</p>
  </details>`;
}

/** @param {{ decision: AccessDecision, all: readonly AccessDecision[] }} props */
function Decision({ decision, all }) {
  const { verdict, tier, rule, reason, passedBy } = decision;
  // The only one by default has the ports that no rule has.
  const isRest =
    all.length > 1 && rule === null && all.every((each) => each === decision || each.rule !== null);
  const by = tier === null || tier === 'NetworkPolicy' ? '' : ` (tier ${tier})`;
  return html`<li>
    <${State} state=${verdict} />${' '}
    <strong>${isRest ? 'all other ports' : portText(decision)}</strong>${': '}
    ${passedBy !== null && `${passedBy} passes it to the next tier; `}${reason}${by}
  </li>`;
}

/** @param {AccessDecision} decision */
function portText({ ports, portsTotal }) {
  if (ports[0] === 'all') return 'all ports';
  const more = portsTotal - ports.length;
  return `${ports.join(', ')}${more > 0 ? ` and ${number(more)} more ranges` : ''}`;
}

/** @param {AccessPeer} peer */
function peerTitle({ kind, names, total, namespaces, family, rest }) {
  const only = family === null ? '' : ` (${family})`;
  const rests = total - names.length;
  const listed = `${names.join(', ')}${rests > 0 ? ` and ${number(rests)} more` : ''}`;
  if (kind === 'ownNode') return 'The node of the pod';
  if (kind === 'addresses' && rest) return `All other addresses${only}`;
  if (kind === 'pods' && rest && rests > 0) {
    return `All other pods${only}: ${number(total)} of ${placeText(namespaces)}`;
  }
  if (kind === 'pods' && rest) return `All other pods${only}: ${listed}`;
  if (kind === 'pods') return `${counted(total, 'pod')}${only}: ${listed}`;
  if (kind === 'nodes')
    return rest
      ? `All other nodes${only}: ${listed}`
      : `${total === 1 ? 'Node' : 'Nodes'}${only}: ${listed}`;
  return `${listed}${kind === 'domainName' ? only : ''}`;
}

/** The API names ten at most. */
const MAX_NAMESPACES = 10;

/** @param {readonly string[]} namespaces */
function placeText(namespaces) {
  if (namespaces.length === 1) return `namespace ${namespaces[0]}`;
  const more = namespaces.length === MAX_NAMESPACES ? ' …' : '';
  return `namespaces ${namespaces.join(', ')}${more}`;
}
