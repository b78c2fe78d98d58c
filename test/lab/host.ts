/** A host of the lab, as used by tests and demo. */
import type { ResultPromise } from 'execa';
import ipaddr from 'ipaddr.js';
import { LabError } from './errors.ts';
import type { ProbeRequest, ReachRequest } from './messages.ts';
import type {
  BurstTally,
  Family,
  HttpResult,
  IptablesVariant,
  LookupResult,
  ProbeOutcome,
  Protocol,
  ServerReply,
} from './outcomes.ts';
import { type ExecOptions, type ExecResult, runIn, type SpawnOptions } from './processes.ts';
import { everyPortRules, iptablesTool } from './rules.ts';
import { type HostThread, startThread } from './thread.ts';
import type { HostPlan } from './topology.ts';
import { PATIENCE } from './wait.ts';

/** Options of a probe. */
export interface ProbeOptions {
  /** Milliseconds to wait for an answer; default 3000, more in slow kernels. */
  readonly timeoutMs?: number;
  /**
   * Source port; default: chosen by the kernel. Choose below 32768, where the kernel's range
   * begins.
   */
  readonly localPort?: number;
  /** Source address; default: chosen by the routes. */
  readonly localAddress?: string;
}

export interface ServeOptions {
  readonly protocol: Protocol;
  readonly port?: number;
  readonly ports?: readonly number[];
  /**
   * Default: TCP listens on all present and future addresses of the host, UDP and SCTP on the
   * addresses of the plan. A UDP server on `0.0.0.0` or `::` reports that as its own address.
   */
  readonly address?: string;
}

/** A long-lived TCP connection to a lab server. */
export interface HeldConnection {
  /** The server's greeting. */
  readonly reply: ServerReply;
  /** The client's source port. */
  readonly localPort: number;
  /**
   * False once either side has closed the connection. Silently dropped packets are not detected.
   */
  readonly alive: boolean;
  /**
   * Sends a line and returns the echo.
   *
   * @throws LabError `THREAD_FAILED` if no echo arrives in time (default 3000 ms) or the connection
   * closes
   */
  exchange(text: string, timeoutMs?: number): Promise<string>;
  close(): Promise<void>;
}

/** A host: a network namespace with a thread. All promises reject with LabError. */
export interface Host {
  readonly name: string;
  readonly namespace: string;
  /** The main address of each family; `addresses` has all. */
  readonly ipv4: string;
  readonly ipv6: string;
  readonly addresses: Readonly<Record<Family, readonly string[]>>;
  /**
   * Serves ports. TCP servers greet with a ServerReply and echo lines; UDP and SCTP servers answer
   * with one.
   */
  serve(options: ServeOptions): Promise<void>;
  /** Stops serving these ports (default: all). Accepted connections stay open. */
  stopServing(which?: Partial<Omit<ServeOptions, 'address'>>): Promise<void>;
  /** Serves every TCP, UDP and SCTP port of the host's addresses. */
  serveEveryPort(): Promise<void>;
  stopServingEveryPort(): Promise<void>;
  tcp(
    address: string,
    port: number,
    options?: ProbeOptions & { readonly keepOpen?: boolean },
  ): Promise<ProbeOutcome>;
  udp(
    address: string,
    port: number,
    options?: ProbeOptions & Pick<ProbeRequest, 'payload' | 'hops' | 'hasChecksum'>,
  ): Promise<ProbeOutcome>;
  sctpProbe(address: string, port: number, options?: ProbeOptions): Promise<ProbeOutcome>;
  /** @throws LabError `CONNECTION` if the connection fails; the message has the outcome */
  hold(address: string, port: number, options?: ProbeOptions): Promise<HeldConnection>;
  /** Sends many probes over the ports in turn and counts the answering hosts. */
  burst(
    address: string,
    ports: number | readonly number[],
    count: number,
    options?: Omit<ProbeOptions, 'localPort'> & {
      readonly protocol?: 'TCP' | 'UDP';
      /** Probes in flight; default 32. */
      readonly concurrency?: number;
    },
  ): Promise<BurstTally>;
  /**
   * Opens a connection to each target concurrently. Returns for each target whether it answered. To
   * detect silence quickly, the others get only `quietMs` more after `awaited` answers.
   */
  reach(request: ReachRequest): Promise<readonly boolean[]>;
  /** Sends one DNS query. */
  resolve(
    server: string,
    name: string,
    type: 'A' | 'AAAA' | 'SRV',
    timeoutMs?: number,
  ): Promise<LookupResult>;
  /** Sends one HTTP request; default of `timeoutMs`: 5000. */
  httpGet(url: string, timeoutMs?: number): Promise<HttpResult>;
  /** Sends one echo request. Returns whether it was answered within `timeoutMs` (default 1000). */
  ping(address: string, timeoutMs?: number): Promise<boolean>;
  /** @throws LabError `COMMAND_FAILED`, with execa's error as cause */
  exec(command: string, args?: readonly string[], options?: ExecOptions): Promise<ExecResult>;
  /** Starts a process that destroy() kills. Output and exit are handled by execa. */
  spawn(command: string, args?: readonly string[], options?: SpawnOptions): ResultPromise;
}

/** A host with the functions that remove it. */
export interface OwnedHost {
  readonly host: Host;
  /** Stops the host's processes and its thread. */
  stop(): Promise<void>;
  /** Kills the host's processes at once. */
  kill(): void;
}

const DEFAULT_TIMEOUT_MS = 3000 * PATIENCE;
const HTTP_TIMEOUT_MS = 5000 * PATIENCE;
/** Milliseconds that a thread may need beyond the network timeout, on a slow machine. */
const THREAD_SLACK_MS = 20_000 * PATIENCE;

/** Creates the host of a plan; its thread starts on first use. */
export function createHost(plan: HostPlan, podRules: IptablesVariant): OwnedHost {
  const { name, namespace, addresses } = plan;
  const processes = runIn(name, namespace);
  const { exec, spawn } = processes;
  const connections = new Map<number, { alive: boolean }>();
  let thread: HostThread | undefined;
  let everyPort: Readonly<Record<Family, number>> | undefined;

  const call: HostThread['call'] = (method, takes, timeoutMs) => {
    thread ??= startThread({ name, namespace, addresses }, (connection) => {
      const state = connections.get(connection);
      if (state) state.alive = false;
    });
    return thread.call(method, takes, timeoutMs + THREAD_SLACK_MS);
  };
  const probe = (method: 'tcp' | 'udp' | 'sctp', request: ProbeRequest) =>
    call(method, request, request.timeoutMs);

  const changeRules = async (action: 'add' | 'remove', ports: Readonly<Record<Family, number>>) => {
    await Promise.all(
      ([4, 6] as const).map((family) =>
        exec(iptablesTool(podRules, family, 'restore'), ['--noflush', '-w', '10'], {
          input: everyPortRules(action, family, ports[family]),
        }),
      ),
    );
  };

  const host: Host = {
    name,
    namespace,
    addresses,
    ipv4: addresses[4][0] ?? '',
    ipv6: addresses[6][0] ?? '',
    serve: async ({ protocol, address, ...which }) => {
      const ports = portsOf(which) ?? [];
      await call('serve', { protocol, ports, ...(address ? { address } : {}) }, 0);
    },
    stopServing: async ({ protocol, ...which } = {}) => {
      const ports = portsOf(which);
      await call(
        'stopServing',
        { ...(protocol ? { protocol } : {}), ...(ports ? { ports } : {}) },
        0,
      );
    },
    serveEveryPort: async () => {
      if (everyPort) return;
      const ports = await call('serveEveryPort', undefined, 0);
      await changeRules('add', ports);
      everyPort = ports;
    },
    stopServingEveryPort: async () => {
      if (!everyPort) return;
      const ports = everyPort;
      everyPort = undefined;
      await changeRules('remove', ports);
      await call('stopServingEveryPort', undefined, 0);
    },
    tcp: (address, port, options) => probe('tcp', probeRequest(address, port, options)),
    udp: (address, port, options) => probe('udp', probeRequest(address, port, options)),
    sctpProbe: (address, port, options) => probe('sctp', probeRequest(address, port, options)),
    hold: async (address, port, options) => {
      const request = probeRequest(address, port, options);
      const outcome = await call('hold', request, request.timeoutMs);
      if (outcome.outcome !== 'answered' || outcome.connection === undefined) {
        const text = JSON.stringify(outcome);
        throw new LabError('CONNECTION', `${name} to ${address} port ${port}: ${text}`);
      }
      const { connection, reply, localPort } = outcome;
      const state = { alive: true };
      connections.set(connection, state);
      return {
        reply,
        localPort,
        get alive() {
          return state.alive;
        },
        exchange: (text, timeoutMs = DEFAULT_TIMEOUT_MS) =>
          call('exchange', { connection, text, timeoutMs }, timeoutMs),
        close: async () => {
          await call('release', { connection }, 0);
          state.alive = false;
        },
      };
    },
    burst: (address, ports, count, options = {}) => {
      const { protocol = 'TCP', concurrency = 32, timeoutMs = DEFAULT_TIMEOUT_MS } = options;
      const { localAddress } = options;
      const request = {
        protocol,
        address: canonical(address),
        ports: typeof ports === 'number' ? [ports] : ports,
        count,
        concurrency,
        timeoutMs,
        ...(localAddress ? { localAddress } : {}),
      };
      return call('burst', request, timeoutMs * Math.ceil(count / concurrency));
    },
    reach: (request) => call('reach', request, request.timeoutMs + request.quietMs),
    resolve: (server, name, type, timeoutMs = DEFAULT_TIMEOUT_MS) =>
      call('resolve', { server, name, type, timeoutMs }, timeoutMs),
    httpGet: (url, timeoutMs = HTTP_TIMEOUT_MS) => call('httpGet', { url, timeoutMs }, timeoutMs),
    ping: async (address, timeoutMs = 1000) => {
      const wait = (timeoutMs / 1000).toFixed(3);
      const { exitCode } = await exec('ping', ['-n', '-q', '-c1', `-W${wait}`, address], {
        reject: false,
      });
      return exitCode === 0;
    },
    exec,
    spawn,
  };

  return {
    host,
    kill: processes.kill,
    stop: async () => {
      await processes.stop();
      await thread?.stop();
    },
  };
}

function portsOf(which: { port?: number; ports?: readonly number[] }) {
  return which.ports ?? (which.port === undefined ? undefined : [which.port]);
}

/** Replies and ICMP errors contain addresses in canonical text. */
function canonical(address: string): string {
  return ipaddr.parse(address).toString();
}

function probeRequest(
  address: string,
  port: number,
  options: Partial<Omit<ProbeRequest, 'address' | 'port'>> = {},
): ProbeRequest {
  return {
    timeoutMs: DEFAULT_TIMEOUT_MS,
    ...options,
    address: canonical(address),
    port,
  };
}
