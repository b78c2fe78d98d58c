/**
 * Serves node ports on the loopback address by forwarding TCP connections, in modes whose rules
 * cannot serve node ports there.
 */
import { createServer, type Socket } from 'node:net';
import type { IpFamily } from '../api/objects.ts';
import { RetryingServer } from '../process/retrying-server.ts';
import { loopbackAddress } from '../services/node-port-addresses.ts';
import type { Timers } from '../sync/timers.ts';
import { EndpointPicker, type LocalhostNodePort } from './endpoint-picker.ts';
import { forwardConnection, SERVER_OPTIONS } from './forward.ts';

export interface NodePortProxyOptions {
  /** Families that are served on the loopback address; node ports of other families are ignored. */
  readonly families: readonly IpFamily[];
  readonly timers: Timers;
  /** The proxy cannot bind a node port, and will retry. */
  readonly onBindFailure: (port: LocalhostNodePort, error: Error) => void;
  /** A node port was bound after failures. */
  readonly onBindRecovery: (port: LocalhostNodePort) => void;
  /** A node port that could not be bound is no longer served. */
  readonly onBindAbandoned: (port: LocalhostNodePort) => void;
  /**
   * Called once per client connection. `isForwarded`: whether the selected endpoint accepted the
   * connection.
   */
  readonly onConnection: (port: LocalhostNodePort, isForwarded: boolean) => void;
}

interface ServedNodePort {
  nodePort: LocalhostNodePort;
  readonly picker: EndpointPicker;
  readonly server: RetryingServer;
}

/**
 * Serves TCP node ports on 127.0.0.1 and [::1] by forwarding connections, as kube-proxy's nftables
 * mode does (KEP-6032). Like connections through rules, an accepted connection stays with its
 * endpoint until it ends, even if the Service is deleted.
 */
export class NodePortProxy {
  readonly #options: NodePortProxyOptions;
  readonly #served = new Map<string, ServedNodePort>();
  readonly #failing = new Set<string>();
  readonly #listenerCounts: Record<IpFamily, number> = { IPv4: 0, IPv6: 0 };
  readonly #connections = new Set<Socket>();
  #onIdle = () => {};
  #isDraining = false;

  constructor(options: NodePortProxyOptions) {
    this.#options = options;
  }

  /** Number of bound node ports for each served family. */
  listeners(): readonly (readonly [IpFamily, number])[] {
    return this.#options.families.map((family) => [family, this.#listenerCounts[family]]);
  }

  /** Applies changes; port 0 closes a listener. Does nothing after `drain`. */
  update(changes: readonly LocalhostNodePort[]): void {
    if (this.#isDraining) return;
    const relevant = changes.filter(({ family }) => this.#options.families.includes(family));
    // Close listeners first: another Service may use their port now.
    for (const { id, port } of relevant) {
      const served = this.#served.get(id);
      if (served === undefined || served.nodePort.port === port) continue;
      this.#end(id, served);
    }
    for (const nodePort of relevant) {
      if (nodePort.port === 0) continue;
      const served = this.#served.get(nodePort.id);
      if (served === undefined) this.#serve(nodePort);
      else {
        served.nodePort = nodePort;
        served.picker.update(nodePort);
      }
    }
  }

  /**
   * Closes all listeners and waits for open connections to end.
   * @param milliseconds after which the remaining connections are reset.
   */
  async drain(milliseconds: number): Promise<void> {
    this.#isDraining = true;
    for (const [id, served] of this.#served) this.#end(id, served);
    if (this.#connections.size === 0) return;
    const { timers } = this.#options;
    await new Promise<void>((resolve) => {
      const timer = timers.set(resolve, milliseconds);
      this.#onIdle = () => {
        timers.clear(timer);
        resolve();
      };
    });
    for (const connection of this.#connections) connection.resetAndDestroy();
  }

  #serve(nodePort: LocalhostNodePort): void {
    const { timers, onBindFailure, onBindRecovery } = this.#options;
    const picker = new EndpointPicker(nodePort, () => timers.now());
    const current = () => this.#served.get(nodePort.id)?.nodePort ?? nodePort;
    const server = new RetryingServer({
      listen: { host: loopbackAddress(nodePort.family), port: nodePort.port },
      create: () =>
        createServer(SERVER_OPTIONS, (client) => void this.#accept(client, current(), picker)),
      onFailure: (error) => {
        this.#setFailing(nodePort, true);
        onBindFailure(current(), error);
      },
      onRecovery: () => {
        this.#setFailing(nodePort, false);
        onBindRecovery(current());
      },
      timers,
    });
    this.#served.set(nodePort.id, { nodePort, picker, server });
    this.#listenerCounts[nodePort.family] += 1;
  }

  #end(id: string, { nodePort, server }: ServedNodePort): void {
    server.close();
    if (this.#failing.has(id)) this.#options.onBindAbandoned(nodePort);
    this.#setFailing(nodePort, false);
    this.#listenerCounts[nodePort.family] -= 1;
    this.#served.delete(id);
  }

  #setFailing({ id, family }: LocalhostNodePort, isFailing: boolean): void {
    if (isFailing === this.#failing.has(id)) return;
    if (isFailing) this.#failing.add(id);
    else this.#failing.delete(id);
    this.#listenerCounts[family] += isFailing ? -1 : 1;
  }

  async #accept(
    client: Socket,
    nodePort: LocalhostNodePort,
    picker: EndpointPicker,
  ): Promise<void> {
    this.#connections.add(client);
    client.once('close', () => {
      this.#connections.delete(client);
      if (this.#connections.size === 0) this.#onIdle();
    });
    this.#options.onConnection(nodePort, await forwardConnection(client, picker.pick()));
  }
}
