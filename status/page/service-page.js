/** One Service: its problems, the path of its packets, its endpoints, and its objects in the kernel. */
import { ChangeTable } from './change-table.js';
import { EndpointTable } from './endpoint-table.js';
import { FlowTable } from './flow-table.js';
import { age, clock, counted, duration } from './format.js';
import { html } from './html.js';
import { KernelTable } from './kernel-table.js';
import { OwnedPorts } from './owned-ports.js';
import { PacketPath } from './packet-path.js';
import { PortBar } from './port-bar.js';
import { Problems } from './problems.js';
import { State } from './state-label.js';
import { Table } from './table.js';

/** @import { State as PageState } from './store.js' */
/** @import { RouteStatus, ServiceDetail } from '../api/services.ts' */
/** @import { Need } from './poller.js' */

/** Milliseconds between two requests for the Routes of other Services. */
const ROUTES_INTERVAL = 5000;

/** @param {PageState} state */
function pathsOf({ location: { path }, answers }) {
  const [namespace = '', name = ''] = path.map(encodeURIComponent);
  const detail = `/api/v1/services/${namespace}/${name}`;
  /** @type {ServiceDetail | undefined} */
  const known = answers.get(detail)?.value;
  const { paths = [] } = answers.get('/api/v1')?.value ?? {};
  const vip = known?.summary.portKind === 'ports' ? undefined : known?.summary.vips[0];
  const service = encodeURIComponent(path.join('/'));
  const hasTop = paths.includes('/api/v1/top');
  return {
    detail,
    changes: `/api/v1/changes?limit=20&service=${service}`,
    /** Routes of other Services on the same VIP. */
    routes:
      vip === undefined ? undefined : `/api/v1/routes?limit=1000&vip=${encodeURIComponent(vip)}`,
    ports: vip !== undefined && hasTop ? `/api/v1/top?by=port&service=${service}` : undefined,
    endpoints: hasTop ? `/api/v1/top?by=endpoint&service=${service}` : undefined,
  };
}

/** @param {PageState} state @returns {readonly Need[]} */
export function serviceNeeds(state) {
  const { routes, ...paths } = pathsOf(state);
  const needs = Object.values(paths).flatMap((path) => (path === undefined ? [] : [{ path }]));
  // The agent looks through all Services for them, and they seldom change.
  return routes === undefined ? needs : [...needs, { path: routes, interval: ROUTES_INTERVAL }];
}

/** @param {{ state: PageState }} props */
export function ServicePage({ state }) {
  const { location, answers, status } = state;
  const paths = pathsOf(state);
  const { value, error } = answers.get(paths.detail) ?? {};
  const name = location.path.join('/');
  if (value === undefined) {
    return html`<h1 tabindex="-1">${name}</h1>
      ${error === undefined ? html`<p>Waiting for the agent …</p>` : html`<p class="notice bad">${error}</p>`}`;
  }
  /** @type {ServiceDetail} */
  const detail = value;
  const { summary, problems, endpoints, events, connections } = detail;
  const latest = (/** @type {string | undefined} */ path) => answers.get(path ?? '')?.value;
  return html`
    <h1 tabindex="-1">${name} <${State} state=${summary.state} /></h1>
    <h2>Problems</h2>
    <${Problems} problems=${problems} />
    <h2>Packet path</h2>
    <${PacketPath} detail=${detail} top=${latest(paths.endpoints)?.items ?? []} location=${location} />
    ${
      paths.routes !== undefined &&
      html`<h2>Ports of ${summary.vips[0]}</h2>
        <${PortBar}
          service=${name}
          routes=${latest(paths.routes)?.items}
          vip=${summary.vips[0]}
          owned=${detail.ownedPorts}
          top=${latest(paths.ports)?.items}
        />`
    }
    <h2>Endpoints</h2>
    <${EndpointTable} endpoints=${endpoints} />
    ${detail.ownedPorts.map((owned) => html`<${OwnedPorts} owned=${owned} />`)}
    <h2>Routes</h2>
    <${Table} label="Routes" rows=${detail.routes} columns=${ROUTE_COLUMNS} empty="No VIP is served." />
    <h2>Kubernetes objects</h2>
    <${Objects} detail=${detail} now=${status?.now ?? 0} />
    ${
      connections !== null &&
      html`<h2>Connections</h2>
        <p>${counted(connections.total, 'conntrack entry', 'conntrack entries')}</p>
        <${FlowTable} label="Connections" flows=${connections.entries} />`
    }
    <h2>Objects in the kernel</h2>
    <${KernelTable} objects=${detail.kernel} total=${detail.kernelTotal} />
    <h2>Latest changes</h2>
    <${ChangeTable} changes=${latest(paths.changes)?.items ?? []} />
    <h2>Events</h2>
    <${Table} label="Events" rows=${events} columns=${EVENT_COLUMNS} empty="No Event yet." />
  `;
}

/** @type {import('./table.js').Column<RouteStatus>[]} */
const ROUTE_COLUMNS = [
  ['Kind', ({ kind }) => kind],
  ['VIP', ({ vip, family }) => vip ?? `each node address (${family})`],
  ['Ports', ({ ports }) => ports],
  ['Ports of each pod', ({ portsPerPod }) => portsPerPod ?? '', 'number'],
  ['Port name', ({ portName }) => portName],
  ['Endpoints', ({ endpoints }) => endpoints.length, 'number'],
  [
    'For pods and this node',
    ({ podAndNodeEndpoints }) => podAndNodeEndpoints?.length ?? 'the same',
  ],
  ['Masquerade', ({ masquerade }) => MASQUERADE[masquerade]],
  ['Without endpoint', ({ otherwise }) => otherwise ?? ''],
  ['Allowed sources', ({ sourceRanges }) => sourceRanges?.join(', ') ?? 'all'],
];

const MASQUERADE = {
  none: 'never',
  'remote owners': 'for clients that are no pods, if the owner is on another node',
  all: 'for all clients',
  'non-pods': 'for clients that are no pods',
  node: 'for this node',
};

/** @type {import('./table.js').Column<ServiceDetail['events'][number]>[]} */
const EVENT_COLUMNS = [
  ['Time', ({ at }) => clock(at)],
  ['Type', ({ type }) => type],
  ['Reason', ({ reason }) => reason],
  ['Message', ({ message }) => message],
];

/** @param {{ detail: ServiceDetail, now: string | number }} props */
function Objects({ detail: { summary, objects, healthCheck }, now }) {
  const { type, affinitySeconds, internalTrafficPolicy, externalTrafficPolicy, created } = summary;
  /** @type {readonly (readonly [string, any])[]} */
  const facts = [
    ['Type', type],
    ['VIPs', summary.vips.join(', ') || 'none'],
    ['Refused VIPs', summary.refusedVips.join(', ') || 'none'],
    ['Ports', summary.ports.join(', ') || 'none'],
    ['portwide.dev/ports', objects.annotation ?? 'not set'],
    ['portwide.dev/owned-ports', objects.ownedPortsAnnotation ?? 'not set'],
    ['portwide.dev/ports-per-pod', objects.portsPerPodAnnotation ?? 'not set'],
    ['portwide.dev/load-balancing', objects.loadBalancingAnnotation ?? 'not set'],
    ['Session affinity', affinitySeconds === 0 ? 'none' : `ClientIP, ${duration(affinitySeconds)}`],
    ['internalTrafficPolicy', internalTrafficPolicy],
    ['externalTrafficPolicy', externalTrafficPolicy],
    [
      'Health check node port',
      healthCheck === null
        ? 'none'
        : `${healthCheck.port}, ${counted(healthCheck.localEndpoints, 'endpoint')} on this node`,
    ],
    ['Created', created === null ? 'unknown' : `${age(created, now)} ago`],
    ['UID', objects.uid || 'none'],
  ];
  return html`<dl class="facts">
      ${facts.map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}
    </dl>
    <h3>EndpointSlices</h3>
    <${Table} label="EndpointSlices" rows=${objects.slices} columns=${SLICE_COLUMNS} empty="No EndpointSlice." />`;
}

/** @type {import('./table.js').Column<ServiceDetail['objects']['slices'][number]>[]} */
const SLICE_COLUMNS = [
  ['Name', ({ name }) => name],
  ['Family', ({ family }) => family],
  ['Endpoints', ({ endpoints }) => endpoints, 'number'],
  ['Ports', ({ ports }) => ports.join(', ')],
];
