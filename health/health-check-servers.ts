/** HTTP servers of health check node ports, one for each Service, family and address. */
import { isLinkLocal } from '../api/addresses.ts';
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

/** A Service that is served in one family. */
interface ServedService {
  health: ServiceHealth;
  readonly servers: Map<string, Closable>;
}

const ANY_ADDRESS: Readonly<Record<IpFamily, string>> = { IPv4: '0.0.0.0', IPv6: '::' };

/**
 * Servers of health check node ports. Each family has its own sockets and counts its own endpoints,
 * as in kube-proxy since 1.36 (kubernetes/kubernetes#114702). The reason: a load balancer probes a
 * node in the family in which it sends traffic. A change affects only the servers of its Service.
 */
export class HealthCheckServers {
  readonly #options: ServiceServersOptions;
  readonly #served: Readonly<Record<IpFamily, Map<ObjectKey, ServedService>>> = {
    IPv4: new Map(),
    IPv6: new Map(),
  };
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
    for (const served of this.#served[family].values()) this.#listenOn(served);
  }

  /** Applies changes; port 0 closes a Service's servers. */
  update(changes: readonly ServiceHealth[]): void {
    // Close servers first: another Service may use their port now.
    for (const { family, serviceKey, port } of changes) {
      const served = this.#served[family].get(serviceKey);
      if (served === undefined || served.health.port === port) continue;
      for (const host of [...served.servers.keys()]) this.#end(served, host);
      this.#served[family].delete(serviceKey);
    }
    for (const health of changes) {
      if (health.port === 0) continue;
      const servedInFamily = this.#served[health.family];
      const served = servedInFamily.get(health.serviceKey);
      if (served !== undefined) {
        served.health = health;
        continue;
      }
      const started = { health, servers: new Map<string, Closable>() };
      servedInFamily.set(health.serviceKey, started);
      this.#listenOn(started);
    }
  }

  close(): void {
    for (const family of IP_FAMILIES) {
      for (const { servers } of this.#served[family].values()) {
        for (const server of servers.values()) server.close();
      }
      this.#served[family].clear();
    }
  }

  #end({ health: { serviceKey, port }, servers }: ServedService, host: string): void {
    servers.get(host)?.close();
    servers.delete(host);
    this.#options.onEnd(serviceKey, port, host);
  }

  #listenOn(served: ServedService): void {
    const { serviceKey, family, port } = served.health;
    const hosts = this.#hosts[family];
    for (const host of [...served.servers.keys()]) {
      if (!hosts.includes(host)) this.#end(served, host);
    }
    const { listen, isProxyHealthy, onBindFailure, onBindRecovery } = this.#options;
    for (const host of hosts) {
      if (served.servers.has(host)) continue;
      const server = listen({
        address: { host, port },
        // Answer any path and any method, as in kube-proxy.
        onRequest: (_request, response) =>
          sendResponse(response, serviceResponse(served.health, isProxyHealthy())),
        onFailure: (error) => onBindFailure(serviceKey, port, error, host),
        onRecovery: () => onBindRecovery(serviceKey, port, host),
      });
      served.servers.set(host, server);
    }
  }
}
