/** A bar over all ports of a VIP. */
import { number } from './format.js';
import { html } from './html.js';
import { serviceLink } from './location.js';
import { LAST_PORT, portsOfVip, rangeText, slicesOfVip } from './port-ranges.js';

/** @import { OwnedPortsStatus, RouteStatus } from '../api/services.ts' */
/** @typedef {{ port: number | null, protocol: string | null, connections: number }} TopRow */
/** @import { PortRange } from './port-ranges.js' */

const WIDTH = 1000;
const HEIGHT = 28;
/** One port would be too thin to see. */
const LEAST_WIDTH = 3;
const LABELS = [0, 16_384, 32_768, 49_152, LAST_PORT];
/** Ranges named in the text. */
const MAX_NAMED = 20;

/** @param {number} port */
const x = (port) => (port / (LAST_PORT + 1)) * WIDTH;

/**
 * @typedef {object} PortBarProps
 * @property {string} service
 * @property {string} vip
 * @property {readonly RouteStatus[] | undefined} routes
 * @property {readonly TopRow[] | undefined} top
 * @property {readonly OwnedPortsStatus[]} owned
 */

/** @param {PortBarProps} props */
export function PortBar({ service, vip, routes, top, owned }) {
  if (routes === undefined) return html`<p>Waiting for the agent …</p>`;
  const { served, others } = portsOfVip(service, routes);
  const slices = slicesOfVip(owned, vip);
  const used = (top ?? []).flatMap(({ port, protocol, connections }) =>
    port === null || connections === 0 ? [] : [{ from: port, to: port, protocol: protocol ?? '' }],
  );
  return html`<figure class="ports">
    <svg viewBox=${`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" role="img" aria-label="Ports 0 to 65,535">
      <rect class="rejected" x="0" y="0" width=${WIDTH} height=${HEIGHT} />
      ${served.map((range) => html`<${Mark} range=${range} kind="served" />`)}
      ${slices.vacant.map((range) => html`<${Mark} range=${range} kind="vacant" />`)}
      ${slices.served.map((range) => html`<${Mark} range=${range} kind="owned" />`)}
      ${others.map((range) => html`<${Mark} range=${range} kind="other" />`)}
      ${used.map((range) => html`<${Mark} range=${range} kind="used" />`)}
    </svg>
    <div class="labels" aria-hidden="true">${LABELS.map((label) => html`<span>${number(label)}</span>`)}</div>
    <figcaption>
      <ul class="legend">
        <li><span class="key served"></span>Served by this Service: ${list(served.map(rangeText))}${others.length > 0 ? ', except the ports of other Services' : ''}</li>
        ${
          owned.length > 0 &&
          html`<li><span class="key owned"></span>Owned by pods: ${list(slices.served.map(rangeText))}</li>
            <li><span class="key vacant"></span>Without an owner that serves, rejected: ${list(slices.vacant.map(rangeText))}</li>`
        }
        <li>
          <span class="key other"></span>Served by other Services on this VIP: ${' '}
          ${
            others.length === 0
              ? 'none'
              : others
                  .slice(0, MAX_NAMED)
                  .map(
                    (range, index) =>
                      html`${index > 0 ? ', ' : ''}${rangeText(range)} <a href=${serviceLink(range.service)}>${range.service}</a>`,
                  )
          }${others.length > MAX_NAMED ? ` and ${others.length - MAX_NAMED} more` : ''}
        </li>
        ${top !== undefined && html`<li><span class="key used"></span>In use: ${list(used.map(rangeText))}</li>`}
        <li><span class="key rejected"></span>Other ports are rejected</li>
      </ul>
    </figcaption>
  </figure>`;
}

/** @param {readonly string[]} texts */
function list(texts) {
  if (texts.length === 0) return 'none';
  const rest = texts.length - MAX_NAMED;
  return `${texts.slice(0, MAX_NAMED).join(', ')}${rest > 0 ? ` and ${rest} more` : ''}`;
}

/** @param {{ range: PortRange, kind: string }} props */
function Mark({ range: { from, to }, kind }) {
  const width = Math.max(x(to + 1) - x(from), LEAST_WIDTH);
  const isThin = kind === 'used';
  return html`<rect
    class=${kind}
    x=${Math.min(x(from), WIDTH - width)}
    y=${isThin ? HEIGHT * 0.6 : 0}
    width=${width}
    height=${isThin ? HEIGHT * 0.4 : HEIGHT}
  />`;
}
