/** Events that the agent records on Services and on its Node. */
import type { ObjectKey } from '../api/objects.ts';
import { nodeRef, type ObjectRef, serviceRef } from '../events/event.ts';
import type { Events } from '../events/recorder.ts';
import type { RefusalChanges, RouteTable } from '../proxier/route-table.ts';
import type { ModeWarning } from './mode.ts';

/** The `action` of Events on the Node. */
const START = 'StartPortwide';

export class AgentEvents {
  readonly #events: Events;
  readonly #nodeName: string;
  readonly #table: Pick<RouteTable, 'service'>;

  constructor(events: Events, nodeName: string, table: Pick<RouteTable, 'service'>) {
    this.#events = events;
    this.#nodeName = nodeName;
    this.#table = table;
  }

  starting(): void {
    this.#events.normal(nodeRef(this.#nodeName), 'Starting', '', START);
  }

  /** Records a Warning on the Node: an HTTP server of the agent cannot listen yet and is retried. */
  startFailed(reason: string, { message }: Error): void {
    this.#events.warning(nodeRef(this.#nodeName), reason, message, START);
  }

  /** Records a Warning on the Node about its proxy mode. */
  modeWarning({ reason, message }: ModeWarning): void {
    this.#events.warning(nodeRef(this.#nodeName), reason, message, START);
  }

  /** Records a Warning on a Service. */
  warning(key: ObjectKey, reason: string, note: string): void {
    this.#events.warning(this.#ref(key), reason, note);
  }

  /** Records a Warning on a Service, about a problem that only this node has. */
  nodeWarning(key: ObjectKey, reason: string, note: string): void {
    this.warning(key, reason, `on node ${this.#nodeName}: ${note}`);
  }

  /**
   * Records a Warning Event on the Service for each new refusal and warning. All nodes share one Event, unless
   * the problem is specific to a node, such as a VIP that is an address of the node.
   */
  refusals({ raised, warnings }: Pick<RefusalChanges, 'raised' | 'warnings'>): void {
    for (const { serviceKey, reason, field, message } of raised) {
      const isOfThisNode = reason === 'NodeAddress';
      this.#warn(serviceKey, `Refused${reason}`, `${field}: ${message}`, isOfThisNode);
    }
    for (const { serviceKey, isOfThisNode = false, message } of warnings) {
      this.#warn(serviceKey, 'ServedWithWarning', message, isOfThisNode);
    }
  }

  #warn(key: ObjectKey, reason: string, note: string, isOfThisNode: boolean): void {
    if (isOfThisNode) this.nodeWarning(key, reason, note);
    else this.#events.sharedWarning(this.#ref(key), reason, note);
  }

  #ref(key: ObjectKey): ObjectRef {
    return serviceRef(key, this.#table.service(key)?.uid ?? '');
  }
}
