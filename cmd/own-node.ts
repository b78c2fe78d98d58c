import type { Node } from '../api/objects.ts';
import type { Timers } from '../proxier/runner.ts';
import type { Log } from './log.ts';

/** Milliseconds that a start waits for the Node; kube-proxy's (NodeManager). */
const PATIENCE = 30_000;
const WAITING = `waiting up to ${PATIENCE / 1000} s for the Node, and for its addresses where NodePorts need them`;
/** Milliseconds between two warnings of the same. */
const REPEAT = 5 * 60_000;

export interface OwnNodeOptions {
  readonly name: string;
  /** Whether there has to be one: manifests need not have it, and nobody waits for it then. */
  readonly isRequired: boolean;
  /** Whether node ports are served on its addresses alone, which it then has to have. */
  readonly givesNodePorts: boolean;
  readonly log: Log;
  readonly timers: Timers;
  /** Told when it is known, and when it changed, whether a Node that is required is not there. */
  readonly onMissing: (isMissing: boolean) => void;
}

/** `unknown`: before the first listing. */
type State = 'unknown' | 'complete' | 'missing' | 'without addresses';

/**
 * Follows the Node that the agent runs on. As kube-proxy, a start waits for it for 30 s and goes on without
 * it: it may be about to register, and most of what is served does not depend on it. Then, and every five
 * minutes while it is so, a warning says what is missed.
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

  /** Resolves when the Node is there, or has been waited for long enough. */
  get settled(): Promise<void> {
    return this.#settled.promise;
  }

  /** It is required, and there has been none so far. */
  get isAwaited(): boolean {
    return this.#options.isRequired && !this.#wasSeen;
  }

  /**
   * The Node as it is now; to be called after the first listing, and at each change of any object.
   * @param node undefined: there is none.
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
      if (this.#warned) log.info({ node: name }, 'the Node is there, with all that is needed');
      this.#warned = false;
      this.#settled.resolve();
    } else if (before === 'unknown' || before === 'complete') {
      if (before === 'unknown') log.info({ node: name, state }, WAITING);
      this.#timer = timers.set(() => this.#warn(), PATIENCE);
    }
  }

  #stateOf(node: Node | undefined): State {
    if (node === undefined) return 'missing';
    const lacksAddresses = this.#options.givesNodePorts && node.addresses.length === 0;
    return lacksAddresses ? 'without addresses' : 'complete';
  }

  #warn(): void {
    const { log, name, timers } = this.#options;
    this.#warned = true;
    log.warn({ node: name }, this.#message());
    this.#timer = timers.set(() => this.#warn(), REPEAT);
    this.#settled.resolve();
  }

  #message(): string {
    const { name, givesNodePorts, isRequired } = this.#options;
    const nodePorts = givesNodePorts
      ? ['NodePorts answer on all addresses of this node instead of its primary ones']
      : [];
    if (this.#state === 'without addresses') {
      return `Node "${name}" has no addresses: ${nodePorts.join('; ')}`;
    }
    const missed = [
      'only endpoints with this node name count as local (traffic policies Local)',
      'topology hints for zones are ignored',
      ...nodePorts,
      ...(isRequired ? ['/healthz answers 503'] : []),
    ];
    const hint = this.isAwaited ? ' (is --hostname-override, or hostnameOverride, right?)' : '';
    return `there is no Node "${name}"${hint}: ${missed.join('; ')}`;
  }
}
