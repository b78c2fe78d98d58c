/** Waits for the Node object of this node at the start, and warns while it is missing. */
import type { Node } from '../api/objects.ts';
import type { Log } from '../process/log.ts';
import { systemTimers, type Timers } from '../sync/timers.ts';
import type { AgentContext } from './context.ts';
import { nodeIpOverride } from './node-setup.ts';

/** Milliseconds to wait for the Node at the start, as in kube-proxy's NodeManager. */
const WAIT_TIMEOUT = 30_000;
/** Milliseconds between repeated warnings. */
const WARN_INTERVAL = 5 * 60_000;

interface OwnNodeOptions {
  readonly name: string;
  /** Whether the Node must exist. With --manifests it may be missing: the agent neither waits nor warns. */
  readonly isRequired: boolean;
  /** Whether node ports are served only on the Node's addresses, so that the Node must have addresses. */
  readonly limitsNodePorts: boolean;
  readonly log: Log;
  readonly timers: Timers;
  /** Called after the first list and on each change of the state, with whether a required Node is missing. */
  readonly onMissing: (isMissing: boolean) => void;
}

/** `unknown`: before the first list. */
type State = 'unknown' | 'complete' | 'missing' | 'without addresses';

/**
 * Tracks the Node object of this node. As in kube-proxy, the start waits up to 30 s for it, because the kubelet may
 * be about to register it. Then the start continues, because most Services do not depend on it. While the Node is
 * missing, a warning every five minutes names the consequences.
 */
export class OwnNode {
  readonly #options: OwnNodeOptions;
  readonly #settled = Promise.withResolvers<void>();
  #state: State = 'unknown';
  #wasSeen = false;
  #warned = false;
  #timer: unknown;

  constructor(options: OwnNodeOptions) {
    this.#options = options;
  }

  /** Resolves when the Node is complete or the wait has timed out. */
  get settled(): Promise<void> {
    return this.#settled.promise;
  }

  /** Whether the start waits for addresses of the Node. */
  get awaitsAddresses(): boolean {
    return this.#options.isRequired && this.#state === 'without addresses' && !this.#warned;
  }

  /** Whether the Node is required and has not been seen since the start. */
  get isAwaited(): boolean {
    return this.#options.isRequired && !this.#wasSeen;
  }

  /**
   * Must be called after the first list and after each change of the Node.
   * @param node the current Node; undefined if it does not exist.
   */
  update(node: Node | undefined): void {
    const { isRequired, onMissing, timers, log, name } = this.#options;
    const before = this.#state;
    const state = this.#stateOf(node);
    if (state === before) return;
    this.#state = state;
    this.#wasSeen ||= node !== undefined;
    if (!isRequired) {
      if (state === 'missing') log.info(...this.#report());
      this.#settled.resolve();
      return;
    }
    onMissing(state === 'missing');
    if (state === 'complete') {
      timers.clear(this.#timer);
      if (this.#warned) log.info({ node: name }, 'Node object is complete');
      this.#warned = false;
      this.#settled.resolve();
    } else if (before === 'unknown' || before === 'complete') {
      if (before === 'unknown')
        log.info(
          { node: name, state, seconds: WAIT_TIMEOUT / 1000 },
          'waiting for the Node object',
        );
      this.#timer = timers.set(() => this.#warn(), WAIT_TIMEOUT);
    }
  }

  #stateOf(node: Node | undefined): State {
    if (node === undefined) return 'missing';
    const lacksAddresses = this.#options.limitsNodePorts && node.addresses.length === 0;
    return lacksAddresses ? 'without addresses' : 'complete';
  }

  #warn(): void {
    const { log, timers } = this.#options;
    this.#warned = true;
    log.warn(...this.#report());
    this.#timer = timers.set(() => this.#warn(), WARN_INTERVAL);
    this.#settled.resolve();
  }

  /** The log line about a missing or incomplete Node. */
  #report(): [details: Record<string, string>, message: string] {
    const { name: node, limitsNodePorts, isRequired } = this.#options;
    const nodePorts = limitsNodePorts
      ? [
          'NodePorts are served on all addresses of this node except loopback, not only on its primary addresses',
        ]
      : [];
    if (this.#state === 'without addresses') {
      return [{ node, effect: nodePorts.join('; ') }, 'Node object has no addresses'];
    }
    const effects = [
      'traffic policy Local uses only endpoints with this nodeName',
      'zone topology hints are ignored',
      ...nodePorts,
      ...(isRequired ? ['/healthz returns 503'] : []),
    ];
    const hint = this.isAwaited
      ? { hint: 'check --hostname-override, or hostnameOverride in the configuration file' }
      : {};
    return [{ node, effect: effects.join('; '), ...hint }, 'Node object not found'];
  }
}

/** Starts tracking the Node of a running agent. */
export function watchOwnNode(context: AgentContext): OwnNode {
  const { options, nodeName, nodePorts, table, changes, metrics, log } = context;
  const ownNode = new OwnNode({
    name: nodeName,
    isRequired: options.manifests === undefined,
    limitsNodePorts: nodePorts.includes('primary') && nodeIpOverride(options) === undefined,
    log,
    timers: systemTimers,
    onMissing: (isMissing) => metrics.nodeMissing.set(isMissing ? 1 : 0),
  });
  changes.on('change', () => {
    if (table.isSynced) ownNode.update(table.node);
  });
  return ownNode;
}
