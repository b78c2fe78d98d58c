/** The path of a packet to a Service, drawn. A click on a step shows its objects in the kernel. */
import { html } from './html.js';
import { KernelTable } from './kernel-table.js';
import { serviceLink } from './location.js';
import { BOX, ENDPOINT_HEIGHT, layout } from './packet-layout.js';
import { objectsOf, stepsOf } from './packet-steps.js';
import { Component } from './preact.js';
import { trafficLines } from './traffic.js';

/** @import { EndpointTraffic } from './packet-steps.js' */
/** @import { RouteStatus, ServiceDetail } from '../api/services.ts' */
/** @import { PageLocation } from './location.js' */
/** @import { Step } from './packet-steps.js' */

/** Endpoints that are drawn. */
const MAX_ENDPOINTS = 5;
/** Narrower windows get a drawing from top to bottom. */
const NARROW = '(max-width: 900px)';

/** @typedef {{ detail: ServiceDetail, top: readonly EndpointTraffic[], location: PageLocation }} Props */

/** @extends {Component<Props>} */
export class PacketPath extends Component {
  narrow = matchMedia(NARROW);
  redraw = () => this.forceUpdate();

  /** @override */
  componentDidMount() {
    this.narrow.addEventListener('change', this.redraw);
  }

  /** @override */
  componentWillUnmount() {
    this.narrow.removeEventListener('change', this.redraw);
  }

  /** @override */
  render() {
    const { detail, top, location } = this.props;
    const { routes } = detail;
    const index = Math.min(Number(location.query.get('route') ?? 0) || 0, routes.length - 1);
    const route = routes[index];
    if (route === undefined) {
      return html`<p class="dim-text">No rule exists, so packets pass as if there were no Service.</p>`;
    }
    const service = location.path.join('/');
    const step = location.query.get('step') ?? '';
    const target = (/** @type {string} */ name) =>
      serviceLink(service, {
        route: index === 0 ? '' : `${index}`,
        step: name === step ? '' : name,
      });
    const steps = stepsOf(route, detail, top);
    return html`
      ${routes.length > 1 && html`<${RouteLinks} service=${service} routes=${routes} current=${index} />`}
      <${Drawing}
        steps=${steps}
        route=${route}
        detail=${detail}
        top=${top}
        step=${step}
        target=${target}
        isNarrow=${this.narrow.matches}
      />
      ${
        step === ''
          ? html`<p class="dim-text">Select a step to see its objects in the kernel.</p>`
          : html`<section aria-label="Objects of the step" class="step-objects">
              <h3>${steps.find(({ name }) => name === step)?.title ?? 'Step'}: objects in the kernel</h3>
              <${KernelTable}
                label="Objects of the step in the kernel"
                objects=${objectsOf(detail.kernel, step, route.vip, detail.summary.vips)}
                empty=${
                  step === 'client'
                    ? 'This step has no object: it is the packet as the client sent it.'
                    : 'No object of this Service belongs to the step.'
                }
              />
            </section>`
      }
    `;
  }
}

/** @param {{ service: string, routes: readonly RouteStatus[], current: number }} props */
function RouteLinks({ service, routes, current }) {
  return html`<ul class="routes" aria-label="VIPs and node ports">
    ${routes.map(
      ({ kind, vip, ports, family }, index) => html`<li>
        <a
          href=${serviceLink(service, { route: index === 0 ? '' : `${index}` })}
          aria-current=${index === current ? 'true' : undefined}
          >${kind} ${vip ?? family} ${ports}</a
        >
      </li>`,
    )}
  </ul>`;
}

/**
 * @param {object} props
 * @param {readonly Step[]} props.steps
 * @param {RouteStatus} props.route
 * @param {ServiceDetail} props.detail
 * @param {readonly EndpointTraffic[]} props.top
 * @param {string} props.step
 * @param {(name: string) => string} props.target
 * @param {boolean} props.isNarrow
 */
function Drawing({ steps, route, detail, top, step, target, isNarrow }) {
  const shown = endpointTexts(route, detail, top);
  const { boxes, ends, width, height } = layout(steps.length, shown.length, isNarrow);
  const last = boxes.at(-1);
  return html`<div class="path">
    <svg
      viewBox=${`-2 -2 ${width + 4} ${height + 4}`}
      class=${isNarrow ? 'narrow' : ''}
      role="group"
      aria-label=${`Path of a packet to ${route.vip ?? 'a node port'}, ports ${route.ports}`}
    >
      ${boxes.slice(1).map((to, index) => {
        const from = boxes[index];
        return from && html`<${Arrow} from=${from} to=${to} isNarrow=${isNarrow} />`;
      })}
      ${last && ends.map((to) => html`<${Arrow} from=${last} to=${to} isNarrow=${isNarrow} isEnd />`)}
      ${steps.map((each, index) => html`<${Box} place=${boxes[index]} step=${each} isCurrent=${each.name === step} target=${target(each.name)} />`)}
      ${ends.map((place, index) => html`<${EndpointBox} place=${place} lines=${shown[index]} />`)}
    </svg>
  </div>`;
}

/**
 * @param {RouteStatus} route @param {ServiceDetail} detail @param {readonly EndpointTraffic[]} top
 * @returns {readonly (readonly string[])[]}
 */
function endpointTexts({ endpoints }, detail, top) {
  const texts = endpoints.map((text) => {
    const found = detail.endpoints.find(
      ({ address }) =>
        text === address || text.startsWith(`${address}:`) || text.startsWith(`[${address}]:`),
    );
    const place = found?.local ? 'this node' : (found?.node ?? '');
    const traffic = top.find(({ endpoint }) => endpoint === text);
    const parts = [place, ...trafficLines(traffic).slice(0, 1)];
    return [text, parts.filter((part) => part !== '').join(', ')];
  });
  const rest = texts.length - MAX_ENDPOINTS;
  return rest > 0 ? [...texts.slice(0, MAX_ENDPOINTS), [`and ${rest} more`]] : texts;
}

/** @import { Place } from './packet-layout.js' */

/** @param {{ place: Place, step: Step, isCurrent: boolean, target: string }} props */
function Box({ place: { x, y }, step: { title, lines, isBad = false }, isCurrent, target }) {
  return html`<a href=${target} class=${`step ${isBad ? 'bad' : ''}`} aria-current=${isCurrent ? 'step' : undefined}>
    <rect x=${x} y=${y} width=${BOX.width} height=${BOX.height} rx="6" />
    <text x=${x + 10} y=${y + 22} class="title">${title}</text>
    ${lines.slice(0, 3).map((line, index) => html`<text x=${x + 10} y=${y + 44 + index * 18}>${line}</text>`)}
  </a>`;
}

/** @param {{ place: Place, lines: readonly string[] | undefined }} props */
function EndpointBox({ place: { x, y }, lines = [] }) {
  return html`<g class="endpoint">
    <rect x=${x} y=${y} width=${BOX.width} height=${ENDPOINT_HEIGHT} rx="6" />
    ${lines.map((line, index) => html`<text x=${x + 10} y=${y + 18 + index * 17} class=${index === 0 ? 'title' : ''}>${line}</text>`)}
  </g>`;
}

/** @param {{ from: Place, to: Place, isNarrow: boolean, isEnd?: boolean }} props */
function Arrow({ from, to, isNarrow, isEnd = false }) {
  const height = isEnd ? ENDPOINT_HEIGHT : BOX.height;
  const start = isNarrow
    ? { x: BOX.width / 2, y: from.y + BOX.height }
    : { x: from.x + BOX.width, y: from.y + BOX.height / 2 };
  const end = isNarrow ? { x: BOX.width / 2, y: to.y } : { x: to.x, y: to.y + height / 2 };
  // Lines to stacked endpoints would cross them.
  if (isNarrow && isEnd && end.y - start.y > BOX.gap) return undefined;
  const head = isNarrow ? 'l-4 -8 h8 z' : 'l-8 -4 v8 z';
  const middle = (start.x + end.x) / 2;
  const line = isNarrow
    ? `M${start.x} ${start.y}V${end.y}`
    : `M${start.x} ${start.y}H${middle}V${end.y}H${end.x}`;
  return html`<path class="line" d=${line} /><path class="head" d=${`M${end.x} ${end.y}${head}`} />`;
}
