/** The Node object of this node: what its start waits for, and what is warned of while it is missing. */
import type { Node } from '../api/objects.ts';
import type { Log } from '../process/log.ts';
import { systemTimers, type Timers } from '../sync/timers.ts';
import type { AgentContext } from './context.ts';
import { nodeIpOverride } from './node-setup.ts';

/** Milliseconds that the agent waits for its Node at the start; as kube-proxy (NodeManager). */
const WAIT_TIMEOUT = 30_000;
const WAITING = `waiting up to ${WAIT_TIMEOUT / 1000} s for the Node object, and for its addresses if NodePorts need them`;
/** Milliseconds between repetitions of the warning. */
const WARN_INTERVAL = 5 * 60_000;

interface OwnNodeOptions {
  readonly name: string;
  /** Whether the Node must exist. Manifests may lack it; the agent then neither waits nor warns. */
  readonly isRequired: boolean;
  /** Whether node ports are served on the Node's addresses only, so that it must have some. */
  readonly limitsNodePorts: boolean;
  readonly log: Log;
  readonly timers: Timers;
  /** Called after the first listing and at changes: whether a required Node is missing. */
  readonly onMissing: (isMissing: boolean) => void;
}

/** `unknown`: before the first listing. */
type State = 'unknown' | 'complete' | 'missing' | 'without addresses';

/**
 * Tracks the Node object of this node. As in kube-proxy, the start waits up to 30 s for it, because the kubelet may
 * be about to register it, and then continues, because most Services do not depend on it. While the Node is missing, a
 * warning every five minutes names the consequences.
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

  /** Resolves when the Node exists or the wait is over. */
  get settled(): Promise<void> {
    return this.#settled.promise;
  }

  /** The Node is required and has not been seen since the start. */
  get isAwaited(): boolean {
    return this.#options.isRequired && !this.#wasSeen;
  }

  /**
   * Call it after the first listing and at each change of any object.
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
      if (state === 'missing') log.info({ node: name }, this.#message());
      this.#settled.resolve();
      return;
    }
    onMissing(state === 'missing');
    if (state === 'complete') {
      timers.clear(this.#timer);
      if (this.#warned) log.info({ node: name }, 'the Node object exists and is complete');
      this.#warned = false;
      this.#settled.resolve();
    } else if (before === 'unknown' || before === 'complete') {
      if (before === 'unknown') log.info({ node: name, state }, WAITING);
      this.#timer = timers.set(() => this.#warn(), WAIT_TIMEOUT);
    }
  }

  #stateOf(node: Node | undefined): State {
    if (node === undefined) return 'missing';
    const lacksAddresses = this.#options.limitsNodePorts && node.addresses.length === 0;
    return lacksAddresses ? 'without addresses' : 'complete';
  }

  #warn(): void {
    const { log, name, timers } = this.#options;
    this.#warned = true;
    log.warn({ node: name }, this.#message());
    this.#timer = timers.set(() => this.#warn(), WARN_INTERVAL);
    this.#settled.resolve();
  }

  #message(): string {
    const { name, limitsNodePorts: givesNodePorts, isRequired } = this.#options;
    const nodePorts = givesNodePorts
      ? ['NodePorts are served on all addresses of this node instead of its primary ones']
      : [];
    if (this.#state === 'without addresses') {
      return `Node "${name}" has no addresses: ${nodePorts.join('; ')}`;
    }
    const missed = [
      'for traffic policy Local, only endpoints whose nodeName is this name are local',
      'topology hints for zones are ignored',
      ...nodePorts,
      ...(isRequired ? ['/healthz answers 503'] : []),
    ];
    const hint = this.isAwaited
      ? ' (check --hostname-override, or hostnameOverride in the configuration file)'
      : '';
    return `there is no Node "${name}"${hint}: ${missed.join('; ')}`;
  }
}

/** The Node of a running agent, followed from now on. */
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
