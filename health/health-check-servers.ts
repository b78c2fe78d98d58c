/** HTTP servers of health check node ports, one for each Service and address. */
import { isLinkLocal } from '../api/addresses.ts';
import { getOrCreate } from '../api/collections.ts';
import { IP_FAMILIES, type IpFamily, type ObjectKey } from '../api/objects.ts';
import type { Listener, ListenerOptions } from '../process/listener.ts';
import type { BindAddress } from '../process/retrying-server.ts';
import type { ServiceHealth } from '../services/service-health.ts';
import { sendResponse, serviceResponse } from './response.ts';

/** A server on one address. */
type Closable = Pick<Listener, 'close'>;

/** Options of a server of a health check node port. */
export interface HealthServerOptions
  extends Pick<ListenerOptions, 'onRequest' | 'onFailure' | 'onRecovery'> {
  readonly address: BindAddress;
}

interface ServiceServersOptions {
  readonly isProxyHealthy: () => boolean;
  /** Starts a server, which retries to listen until it is closed. */
  readonly listen: (options: HealthServerOptions) => Closable;
  /** A health check node port cannot be bound on this address; called for each failed attempt. */
  readonly onBindFailure: (serviceKey: ObjectKey, port: number, error: Error, host: string) => void;
  /** A health check node port was bound after failures. */
  readonly onBindRecovery: (serviceKey: ObjectKey, port: number, host: string) => void;
  /** The port is no longer served on this address, whether it was bound or not. */
  readonly onEnd: (serviceKey: ObjectKey, port: number, host: string) => void;
}

/** A Service with a health check node port. */
interface ServedService {
  /** By the families that the Service is served in. */
  readonly health: Map<IpFamily, ServiceHealth>;
  /** The servers on the addresses of each family. */
  readonly servers: Readonly<Record<IpFamily, Map<string, Server>>>;
}

interface Server extends Closable {
  readonly port: number;
  /** Why the port cannot be bound; undefined if it is. */
  error?: Error | undefined;
}

/** A health check node port that cannot be bound on an address, and is retried. */
export interface UnboundHealthPort {
  readonly serviceKey: ObjectKey;
  readonly port: number;
  readonly host: string;
  readonly error: Error;
}

const ANY_ADDRESS: Readonly<Record<IpFamily, string>> = { IPv4: '0.0.0.0', IPv6: '::' };

/**
 * Servers of health check node ports. Each family has its own sockets and counts its own endpoints,
 * as in kube-proxy since 1.36 (kubernetes/kubernetes#114702). The reason: a load balancer probes a
 * node in the family in which it sends traffic. In a family that the Service does not have, the
 * servers answer for its other family: kube-proxy listens in both families of a node, whatever the
 * Service is. A change affects only the servers of its Service.
 */
export class HealthCheckServers {
  readonly #options: ServiceServersOptions;
  readonly #served = new Map<ObjectKey, ServedService>();
  readonly #hosts: Record<IpFamily, readonly string[]> = { IPv4: [], IPv6: [] };

  constructor(options: ServiceServersOptions) {
    this.#options = options;
  }

  /** Sets the node addresses that the servers of a family listen on; none before the first call. */
  setAddresses(family: IpFamily, addresses: 'all' | readonly string[]): void {
    // A link-local IPv6 address cannot be bound without its interface, and no load balancer uses it.
    this.#hosts[family] =
      addresses === 'all'
        ? [ANY_ADDRESS[family]]
        : addresses.filter((address) => !isLinkLocal(address));
    for (const [key, served] of this.#served) {
      this.#endUnneeded(key, served);
      this.#listen(key, served);
    }
  }

  /** Applies changes; port 0 closes a Service's servers. */
  update(changes: readonly ServiceHealth[]): void {
    const changed = new Map<ObjectKey, ServedService>();
    for (const health of changes) {
      const { family, serviceKey, port } = health;
      const served = getOrCreate(this.#served, serviceKey, newService);
      if (port === 0) served.health.delete(family);
      else served.health.set(family, health);
      changed.set(serviceKey, served);
    }
    // Close servers first: another Service may use their port now.
    for (const [key, served] of changed) this.#endUnneeded(key, served);
    for (const [key, served] of changed) {
      if (served.health.size === 0) this.#served.delete(key);
      else this.#listen(key, served);
    }
  }

  /** The ports that cannot be bound. Load balancers may get answers of another process from them. */
  *unbound(): Iterable<UnboundHealthPort> {
    for (const [serviceKey, { servers }] of this.#served) {
      for (const family of IP_FAMILIES) {
        for (const [host, { port, error }] of servers[family])
          if (error !== undefined) yield { serviceKey, port, host, error };
      }
    }
  }

  close(): void {
    for (const { servers } of this.#served.values()) {
      for (const family of IP_FAMILIES)
        for (const server of servers[family].values()) server.close();
    }
    this.#served.clear();
  }

  /** Closes the servers whose address or port is no longer needed. */
  #endUnneeded(serviceKey: ObjectKey, served: ServedService): void {
    for (const family of IP_FAMILIES) {
      const port = answeringHealth(served, family)?.port;
      for (const [host, server] of [...served.servers[family]]) {
        if (server.port === port && this.#hosts[family].includes(host)) continue;
        server.close();
        served.servers[family].delete(host);
        this.#options.onEnd(serviceKey, server.port, host);
      }
    }
  }

  #listen(serviceKey: ObjectKey, served: ServedService): void {
    const { listen, isProxyHealthy, onBindFailure, onBindRecovery } = this.#options;
    for (const family of IP_FAMILIES) {
      const health = answeringHealth(served, family);
      if (health === undefined) continue;
      const { port } = health;
      for (const host of this.#hosts[family]) {
        if (served.servers[family].has(host)) continue;
        const server: Server = { port, close: () => listener.close() };
        const listener = listen({
          address: { host, port },
          // Answer any path and any method, as in kube-proxy.
          onRequest: (_request, response) => {
            const current = answeringHealth(served, family) ?? health;
            sendResponse(response, serviceResponse(current, isProxyHealthy()));
          },
          onFailure: (error) => {
            server.error = error;
            onBindFailure(serviceKey, port, error, host);
          },
          onRecovery: () => {
            server.error = undefined;
            onBindRecovery(serviceKey, port, host);
          },
        });
        served.servers[family].set(host, server);
      }
    }
  }
}

function newService(): ServedService {
  return { health: new Map(), servers: { IPv4: new Map(), IPv6: new Map() } };
}

/**
 * What the servers of a family answer. Undefined if the Service has that family and is not served in it, for example
 * before the first sync of the family.
 */
function answeringHealth({ health }: ServedService, family: IpFamily): ServiceHealth | undefined {
  const [any] = health.values();
  return health.get(family) ?? (any?.isOnlyFamily === true ? any : undefined);
}
