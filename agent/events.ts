/** The Events that the agent writes on Services and on its Node. */
import type { ObjectKey } from '../api/objects.ts';
import { nodeRef, type ObjectRef, serviceRef } from '../events/event.ts';
import type { Events } from '../events/recorder.ts';
import type { RefusalChanges, RouteTable } from '../proxier/route-table.ts';

/** What the agent was doing, in its Events on the Node. */
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

  /** A part of the start failed; it is tried again. */
  startFailed(reason: string, { message }: Error): void {
    this.#events.warning(nodeRef(this.#nodeName), reason, message, START);
  }

  /** A Warning on a Service. */
  warning(key: ObjectKey, reason: string, note: string): void {
    this.#events.warning(this.#ref(key), reason, note);
  }

  /** A Warning on a Service of what is so on this node alone. */
  nodeWarning(key: ObjectKey, reason: string, note: string): void {
    this.warning(key, reason, `on node ${this.#nodeName}: ${note}`);
  }

  /**
   * A Warning Event on the Service for each refusal that came, and for each warning; the note says what
   * the log says, with the field before it. All nodes share one Event, except for what
   * is so on one node alone, such as a VIP that is an address of it.
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
