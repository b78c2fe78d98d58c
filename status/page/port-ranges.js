/** Reads the ports of the Services on one VIP. Pure. */

/** @import { OwnedPortsStatus, RouteStatus } from '../api/services.ts' */

/**
 * @typedef {object} PortRange
 * @property {number} from
 * @property {number} to inclusive.
 * @property {string} protocol empty for all protocols.
 */

export const LAST_PORT = 65_535;

/** Reads the field `ports` of a Route: `all` (1 to 65535), or a list. @param {string} ports such as `5060/UDP,20000-50000/UDP` @returns {PortRange[]} */
export function parsePorts(ports) {
  if (ports === 'all') return [{ from: 1, to: LAST_PORT, protocol: '' }];
  return ports.split(',').flatMap((text) => {
    const match = /^(\d+)(?:-(\d+))?(?:\/(\w+))?$/.exec(text.trim());
    if (match === null) return [];
    const [, from = '', to = from, protocol = ''] = match;
    return [{ from: Number(from), to: Number(to), protocol }];
  });
}

/**
 * The ports of all Services on one VIP.
 * @param {string} service `namespace/name` @param {readonly RouteStatus[]} routes
 */
export function portsOfVip(service, routes) {
  const onVip = routes.filter(({ vip }) => vip !== null);
  const isOwn = (/** @type {RouteStatus} */ route) => route.service === service;
  return {
    served: onVip.filter(isOwn).flatMap(({ ports }) => parsePorts(ports)),
    others: onVip
      .filter((route) => !isOwn(route))
      .flatMap((route) =>
        parsePorts(route.ports).map((range) => ({ ...range, service: route.service })),
      ),
  };
}

/**
 * Slices of owned ports on one VIP, with and without an owner that serves. UDP ports are served on one VIP of a family only.
 * @param {readonly OwnedPortsStatus[]} owned of a Service @param {string} vip
 */
export function slicesOfVip(owned, vip) {
  const slices = owned
    .filter(({ family }) => (family === 'IPv6') === vip.includes(':'))
    .flatMap(({ udpVip, slices: all }) =>
      all.flatMap(({ ports, state }) =>
        parsePorts(ports)
          .filter(({ protocol }) => protocol !== 'UDP' || vip === udpVip)
          .map((range) => ({ ...range, isServed: state === 'served' })),
      ),
    );
  return {
    served: slices.filter(({ isServed }) => isServed),
    vacant: slices.filter(({ isServed }) => !isServed),
  };
}

/** @param {PortRange} range */
export function rangeText({ from, to, protocol }) {
  const ports = from === to ? `${from}` : `${from}–${to}`;
  return protocol === '' ? ports : `${ports}/${protocol}`;
}
