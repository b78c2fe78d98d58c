/** Groups of peers of a pod, and what the policies of the pod decide for each port. */
import { counted, number } from './format.js';
import { html } from './html.js';
import { State } from './state-label.js';

/** @import { AccessDecision, AccessPeer, PodAccess } from '../api/policies.ts' */

/** @param {{ rows: readonly PodAccess[] }} props */
export function AccessList({ rows }) {
  /** @type {Map<string, PodAccess[]>} */
  const sections = new Map();
  for (const row of rows) {
    const title =
      row.direction === 'ingress'
        ? `Who may connect to ${row.pod}`
        : `Where ${row.pod} may connect to`;
    sections.set(title, [...(sections.get(title) ?? []), row]);
  }
  return [...sections].map(
    ([title, some]) => html`<section aria-label=${title}>
      <h3>${title}</h3>
      <ul class="access">
        ${some.map(
          ({ peer, decisions, uncertain }) => html`<li>
            <h4>${peerTitle(peer)}</h4>
            <ul>
              ${decisions.map((decision) => html`<${Decision} decision=${decision} />`)}
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

/** @param {{ decision: AccessDecision }} props */
function Decision({ decision: { ports, portsTotal, verdict, tier, reason, passedBy } }) {
  const more = portsTotal - ports.length;
  const by = tier === null || tier === 'NetworkPolicy' ? '' : ` (tier ${tier})`;
  return html`<li>
    <${State} state=${verdict} />${' '}
    <strong>${portText(ports)}${more > 0 && ` and ${number(more)} more ranges`}</strong>${': '}
    ${passedBy !== null && `${passedBy} passes it to the next tier; `}${reason}${by}
  </li>`;
}

/** @param {readonly string[]} ports */
function portText(ports) {
  return ports[0] === 'all' ? 'all ports' : ports.join(', ');
}

/** @param {AccessPeer} peer */
function peerTitle({ kind, names, total, namespaces, family, rest }) {
  const only = family === null ? '' : ` (${family})`;
  const rests = total - names.length;
  const listed = `${names.join(', ')}${rests > 0 ? ` and ${number(rests)} more` : ''}`;
  if (kind === 'ownNode') return 'The node of the pod';
  if (kind === 'addresses' && rest) return `All other addresses${only}`;
  if (kind === 'pods' && rest) {
    const places =
      namespaces.length > 1 ? `, namespaces ${namespaces.join(', ')}` : ` of ${namespaces[0]}`;
    return `All other pods${only}: ${counted(total, 'pod')}${places}`;
  }
  if (kind === 'pods') return `${counted(total, 'pod')}${only}: ${listed}`;
  if (kind === 'nodes')
    return rest
      ? `All other nodes${only}: ${listed}`
      : `${total === 1 ? 'Node' : 'Nodes'}${only}: ${listed}`;
  return `${listed}${kind === 'domainName' ? only : ''}`;
}
