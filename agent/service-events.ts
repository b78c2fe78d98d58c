import type { ObjectKey } from '../api/objects.ts';
import { serviceRef } from '../events/event.ts';
import type { Events } from '../events/recorder.ts';
import type { RefusalChanges } from '../proxier/route-table.ts';

/**
 * A Warning Event on the Service for each refusal that came, and for each warning; the note says what
 * the log says, with the field before it. All nodes share one Event, except for what
 * is so on one node alone, such as a VIP that is an address of it.
 * @param uidOf of the Service as it is now; empty when it is not known.
 */
export function tellOnServices(
  events: Events,
  uidOf: (key: ObjectKey) => string,
  nodeName: string,
  { raised, warnings }: RefusalChanges,
): void {
  const ref = (key: ObjectKey) => serviceRef(key, uidOf(key));
  for (const { serviceKey, reason, field, message } of raised) {
    const note = `${field}: ${message}`;
    if (reason === 'NodeAddress') {
      events.warning(ref(serviceKey), `Refused${reason}`, `on node ${nodeName}: ${note}`);
    } else {
      events.sharedWarning(ref(serviceKey), `Refused${reason}`, note);
    }
  }
  for (const { serviceKey, isOfThisNode, message } of warnings) {
    if (isOfThisNode) {
      events.warning(ref(serviceKey), 'ServedWithWarning', `on node ${nodeName}: ${message}`);
    } else {
      events.sharedWarning(ref(serviceKey), 'ServedWithWarning', message);
    }
  }
}
